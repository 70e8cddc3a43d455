"""The numbers that the five papers print, as far as an evaluation here can give them too.

They lie in published.json: `papers` has the titles by a short key, `tables` lists for each table
its columns, [benchmark, metric, language, part] as in `Published`, and its rows by system. Values
that a paper prints as shares are there times 100. Where a text's table contradicts itself, `note`
says so. Tables of the soft contrastive paper on STS and BUCC are left out: they measure MTEB's
collections, not the benchmarks of that name here. So are the single languages of the VMSST paper's
Table 6, whose labels contradict the values (Arabic and Spanish look exchanged).
"""

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Sequence

from vmsst import errors, languages

_FILE = pathlib.Path(__file__).with_name("published.json")


# Where the averages of a benchmark are printed: its name of a metric, which the name of a part may
# follow, and benchmark and metric in published.json. "" stands before parts without a metric.
_AVERAGES: dict[str, dict[str, tuple[str, str]]] = {
  "sts": {"pearson": ("sts", "pearson"), "spearman": ("sts", "spearman")},
  "xlsts": {"pearson": ("xlsts", "pearson"), "spearman": ("xlsts", "spearman")},
  "tatoeba": {"average": ("tatoeba", "accuracy"), "": ("tatoeba", "accuracy")},
  "bucc": {"cosine_f1": ("bucc", "cosine_f1"), "margin_f1": ("bucc", "margin_f1")},
  "questions": {"nq": ("nq", "accuracy"), "mkqa": ("mkqa", "accuracy")},
  "flores": {"accuracy": ("flores", "accuracy"), "xsim": ("xsim", "error")},
  "paracrawl": {"accuracy": ("paracrawl", "accuracy")},
  "mldoc": {"accuracy": ("mldoc", "accuracy"), "": ("mldoc", "accuracy")},
  "cls": {"accuracy": ("cls", "accuracy")},
  "amazon": {"accuracy": ("amazon", "accuracy")},
}
# The same for single results: benchmark, metric, form of the result's name (with the part, if any),
# what joins languages.
_RESULTS: list[tuple[str, str, str, str, tuple[str, str]]] = [
  ("xlsts", "pearson", "(?!track4b).*", "-", ("xlsts", "pearson")),
  ("xlsts", "spearman", "(?!track4b).*", "-", ("xlsts", "spearman")),
  ("tatoeba", "average", ".*", "-", ("tatoeba", "accuracy")),
  ("questions", "accuracy", "mkqa .*", "-", ("mkqa", "accuracy")),
  ("bucc", "cosine_f1", ".*", "-", ("bucc", "cosine_f1")),
  ("bucc", "margin_f1", ".*", "-", ("bucc", "margin_f1")),
  ("flores", "accuracy", ".*", "-", ("flores", "accuracy")),
  ("paracrawl", "accuracy", ".*", "-", ("paracrawl", "accuracy")),
  ("mldoc", "accuracy", ".*", "->", ("mldoc", "accuracy")),
  ("cls", "accuracy", r"(?P<part>\w+) .*", "->", ("cls", "accuracy")),
  ("amazon", "accuracy", ".*", "->", ("amazon", "accuracy")),
]
_OTHER_TEXTS = "The papers print errors of other texts (news, TED talks, novels), not of these."
_REMARKS = {
  "questions": (
    "The papers look questions up in all of PAQ (64.9 million questions); with a part of it the "
    "numbers are not comparable."
  ),
  "mkqa_small": "No paper prints this: it looks for MKQA's questions in English, not in PAQ.",
  "bucc_test": "The papers print numbers of the training data: not comparable with these.",
  "flores_dev": "The papers print numbers of devtest: not comparable with these.",
  "mining": "No paper prints numbers of these texts.",
  "agnosticism": _OTHER_TEXTS,
  "agnosticism_flores": _OTHER_TEXTS,
  "translations": _OTHER_TEXTS,
}


@dataclasses.dataclass(frozen=True)
class Published:
  """A number that a paper prints.

  Attributes:
    paper: Short key of it.
    title: Its title.
    table: Number of the table, as the paper has it.
    system: What was measured.
    benchmark: What it was measured on.
    metric: In which unit.
    language: Codes joined by "-" (either direction or the mean of both) or "->" (from the first, or
      trained on it, to the second); None for an average.
    part: Year, domain, group of languages or text; None for the whole benchmark.
    value: As printed, times 100 if it is a share.
    note: What is to be known about the table; "" if nothing.
  """

  paper: str
  title: str
  table: str
  system: str
  benchmark: str
  metric: str
  language: str | None
  part: str | None
  value: float
  note: str

  @property
  def source(self) -> str:
    """Paper and table, for people."""
    return f"{self.paper}, Table {self.table}"


@functools.cache
def load() -> tuple[Published, ...]:
  """All of them, in the order of the file."""
  content = json.loads(_FILE.read_text(encoding="utf-8"))
  found = []
  for table in content["tables"]:
    columns = [(*column, None, None)[:4] for column in table["columns"]]
    for system, values in table["rows"].items():
      for (benchmark, metric, language, part), value in zip(columns, values, strict=True):
        if value is not None:
          found.append(
            Published(
              paper=table["paper"],
              title=content["papers"][table["paper"]],
              table=table["table"],
              system=system,
              benchmark=benchmark,
              metric=metric,
              language=language,
              part=part,
              value=value,
              note=table.get("note", ""),
            )
          )
  return tuple(found)


def find(
  benchmark: str, metric: str, language: str | None = None, part: str | None = None
) -> list[Published]:
  """What is printed for one measurement; arguments as the attributes of `Published`.

  Languages are the same whatever standard their codes are of, and so are "de-en" and "en-de".
  """
  return list(_index().get((benchmark, metric, _language_key(language), part), ()))


def for_average(benchmark: str, key: str) -> list[Published]:
  """What is printed for an average, given as a benchmark's summary names it."""
  found = []
  for name, (other, metric) in _AVERAGES.get(benchmark, {}).items():
    if key == name:
      found += find(other, metric)
    elif not name or key.startswith(f"{name} "):
      found += find(other, metric, part=key.removeprefix(name).strip())
  return found


def for_result(benchmark: str, name: str, codes: Sequence[str], metric: str) -> list[Published]:
  """What is printed for one metric of a benchmark's result, given its name and languages."""
  found = []
  for own, own_metric, pattern, joint, (other, other_metric) in _RESULTS:
    match = re.fullmatch(pattern, name)
    if (own, own_metric) == (benchmark, metric) and match:
      part = match.groupdict().get("part")
      found += find(other, other_metric, joint.join(codes), part)
  return found


def remark(benchmark: str) -> str:
  """When a benchmark's numbers can be compared with the papers', for people; "" if always."""
  return _REMARKS.get(benchmark, "")


@functools.cache
def _index() -> dict[tuple[object, ...], list[Published]]:
  index: dict[tuple[object, ...], list[Published]] = {}
  for number in load():
    key = (number.benchmark, number.metric, _language_key(number.language), number.part)
    index.setdefault(key, []).append(number)
  return index


def _language_key(language: str | None) -> object:
  if language is None:
    return None
  if "->" in language:
    return tuple(_name(code) for code in language.split("->"))
  return frozenset(_name(code) for code in language.split("-"))


def _name(code: str) -> str:
  """The language's name, or the text itself where it names a version of a text, as "pl_1" does."""
  try:
    return languages.language(code).name
  except errors.InputError:
    return code
