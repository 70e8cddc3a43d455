"""Numbers published in the five papers, as far as evaluations here measure them too.

published.json stores them: `papers` has the titles by a short key, `tables` has, for each table,
its columns, [benchmark, metric, language, part] as in `Published`, and its rows by system. Shares
are multiplied by 100. `note` documents tables that contradict themselves. Tables of the soft
contrastive paper on STS and BUCC are omitted, because they measure MTEB's collections, not the
benchmarks of that name here; and the single languages of the VMSST paper's Table 6, because their
labels contradict the values (Arabic and Spanish appear swapped).
"""

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Sequence

from vmsst import errors, languages
from vmsst.evaluation.benchmarks import questions

_FILE = pathlib.Path(__file__).with_name("published.json")


# Published averages by benchmark: name of the metric here, which the name of a part and ": " with a
# language may follow, and benchmark and metric in published.json. "" is for parts without a metric.
_AVERAGES: dict[str, dict[str, tuple[str, str]]] = {
  "sts": {"pearson": ("sts", "pearson"), "spearman": ("sts", "spearman")},
  "xlsts": {"pearson": ("xlsts", "pearson"), "spearman": ("xlsts", "spearman")},
  "tatoeba": {"average": ("tatoeba", "accuracy"), "": ("tatoeba", "accuracy")},
  "bucc": {"cosine_f1": ("bucc", "cosine_f1"), "margin_f1": ("bucc", "margin_f1")},
  "questions": {"nq": ("nq", "accuracy"), "mkqa": ("mkqa", "accuracy")},
  "flores": {"accuracy": ("flores", "accuracy"), "xsim": ("xsim", "error")},
  "wmt2012": {"error": ("wmt2012", "error")},
  "paracrawl": {"accuracy": ("paracrawl", "accuracy")},
  "mldoc": {"accuracy": ("mldoc", "accuracy"), "": ("mldoc", "accuracy")},
  "cls": {"accuracy": ("cls", "accuracy")},
  "amazon": {"accuracy": ("amazon", "accuracy")},
}
# The same for single results: benchmark, metric, pattern of the result's name (with the part, if
# any), separator of languages.
_RESULTS: list[tuple[str, str, str, str, tuple[str, str]]] = [
  ("xlsts", "pearson", "(?!track4b).*", "-", ("xlsts", "pearson")),
  ("xlsts", "spearman", "(?!track4b).*", "-", ("xlsts", "spearman")),
  ("tatoeba", "average", ".*", "-", ("tatoeba", "accuracy")),
  ("questions", "accuracy", "mkqa .*", "-", ("mkqa", "accuracy")),
  ("bucc", "cosine_f1", ".*", "-", ("bucc", "cosine_f1")),
  ("bucc", "margin_f1", ".*", "-", ("bucc", "margin_f1")),
  ("flores", "accuracy", ".*", "-", ("flores", "accuracy")),
  ("wmt2012", "error", ".*", "->", ("wmt2012", "error")),
  ("paracrawl", "accuracy", ".*", "-", ("paracrawl", "accuracy")),
  ("mldoc", "accuracy", ".*", "->", ("mldoc", "accuracy")),
  ("cls", "accuracy", r"(?P<part>\w+) .*", "->", ("cls", "accuracy")),
  ("amazon", "accuracy", ".*", "->", ("amazon", "accuracy")),
]
_OTHER_TEXTS = "The papers report errors on other texts (news, TED talks, novels)."
_REMARKS = {
  "questions": (
    "The papers search all of PAQ (64.9 million questions); numbers on a part of it are not "
    "comparable."
  ),
  "mkqa_small": "Not published: searches MKQA's questions in English, not in PAQ.",
  "bucc_test": "The papers report numbers on the training data: not comparable with these.",
  "flores_dev": "The papers report numbers on devtest: not comparable with these.",
  "mining": "No numbers on these texts are published.",
  "agnosticism": _OTHER_TEXTS,
  "agnosticism_flores": _OTHER_TEXTS,
  "translations": _OTHER_TEXTS,
}

# The same for the options of benchmarks, by name and choice.
_UNANSWERED = (
  "A third of MKQA's questions have no short answer in English and cannot be found. The paper does "
  "not say whether it counts them"
)
_OPTION_REMARKS = {
  (questions.MKQA_OPTION, "answered"): (
    f"{_UNANSWERED}; here they are dropped, so that accuracies are 1.5 times those of all "
    "questions (`vmsst eval --mkqa-questions all`)."
  ),
  (questions.MKQA_OPTION, "all"): (
    f"{_UNANSWERED}; here they count as wrong (`vmsst eval --mkqa-questions answered` drops them)."
  ),
}


@dataclasses.dataclass(frozen=True)
class Published:
  """A published number.

  Attributes:
    paper: Short key of the paper.
    title: Title of the paper.
    table: Number of the table in the paper.
    system: Name of the encoder.
    benchmark: The benchmark.
    metric: The metric.
    language: Codes joined by "-" (either direction or the mean of both) or "->" (from the first, or
      trained on it, to the second; "*" is the mean over all others); None for an average.
    part: Year, domain, group of languages or text; None for the whole benchmark.
    value: As published, shares times 100.
    note: Remark on the table; "" if there is none.
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
  """Returns all published numbers, in file order."""
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
  """Returns the published numbers of a measurement; arguments as the attributes of `Published`.

  Languages match across code standards, and "de-en" matches "en-de".
  """
  return list(_index().get((benchmark, metric, _language_key(language), part), ()))


def for_average(benchmark: str, key: str) -> list[Published]:
  """Returns the published numbers of an average, given its name in the benchmark's summary."""
  found = []
  for name, (other, metric) in _AVERAGES.get(benchmark, {}).items():
    if key == name:
      found += find(other, metric)
    elif not name or key.startswith(f"{name} "):
      part, _, language = key.removeprefix(name).strip().partition(": ")
      found += find(other, metric, language or None, part)
  return found


def for_result(benchmark: str, name: str, codes: Sequence[str], metric: str) -> list[Published]:
  """Returns the published numbers of one metric of a result, given its name and languages."""
  found = []
  for own, own_metric, pattern, joint, (other, other_metric) in _RESULTS:
    match = re.fullmatch(pattern, name)
    if (own, own_metric) == (benchmark, metric) and match:
      part = match.groupdict().get("part")
      found += find(other, other_metric, joint.join(codes), part)
  return found


def remark(benchmark: str) -> str:
  """Returns when a benchmark's numbers are comparable with published ones; "" if always."""
  return _REMARKS.get(benchmark, "")


def option_remark(option: str, choice: str) -> str:
  """Returns how a benchmark's option affects comparisons with published numbers; "" if unknown."""
  return _OPTION_REMARKS.get((option, choice), "")


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
  """Returns the language's name, or the code itself if it is a version of a text such as "pl_1"."""
  try:
    return languages.language(code).name
  except errors.InputError:
    return code
