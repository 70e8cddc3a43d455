"""A user's own files as benchmarks: scored pairs, bitext, and queries with the texts to find.

Each file is a benchmark with one result, which is never incomplete. Languages are those in its name
(`my.de-en.tsv`). Metrics, times 100:

* `sts`: `pearson` and `spearman` of the cosines and the scores.
* `bitext`: `accuracy`, the share of texts whose nearest one by cosine on the other side is the
  translation; `xsim`, the error rate by ratio margin among the k = 4 nearest. `forward` searches
  the targets; without a direction: the mean of both. A text that occurs on several lines, such as
  a question with several answers, has all their translations.
* `retrieval`: `accuracy`, `MRR@10`, `R@10` and `nDCG@10` of each query's texts among all distinct
  texts. Queries and texts get the encoder's prompts for queries and documents.
"""

import functools
import glob
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.data import readers
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files
from vmsst.evaluation.benchmarks import sts as sts_lib
from vmsst.evaluation.metrics import retrieval
from vmsst.search import exact_search

_UNKNOWN = "und"


def benchmarks(
  *, sts: Iterable[str] = (), bitext: Iterable[str] = (), retrieval: Iterable[str] = ()
) -> list[suite.Benchmark]:
  """Returns a benchmark of each file, named `sts-STEM`, `bitext-STEM` or `retrieval-STEM`.

  Args:
    sts: Files or shell patterns, local or in an object store, plain or gzipped: score TAB first TAB
      second sentence.
    bitext: The same, in any format of `vmsst.data.readers`.
    retrieval: The same: query TAB text, or JSON Lines of objects with `query` and `text`. Lines
      with the same query are one query with several texts. A number is a label: query TAB text TAB
      label, label TAB query TAB text, or a field of the object. A text of label 0 is not relevant.

  Raises:
    InputError: a pattern matches no file, the name of a TMX or Moses file does not show its
      languages, or two files have the same name.
  """
  made = [_benchmark("sts", [x], functools.partial(_sts, x)) for x in readers.find_files([*sts])]
  pairs: dict[readers.BitextFile, None] = {}
  for path in readers.find_files([*bitext]):  # Files with both sides may lack languages in names.
    both = path.removesuffix(".gz").endswith((".tsv", ".jsonl"))
    pairs |= dict.fromkeys(readers.find_bitext(path, _languages(path) if both else None))
  made += [_benchmark("bitext", x.paths, functools.partial(_bitext, x)) for x in pairs]
  for x in readers.find_bitext([*retrieval], (_UNKNOWN, _UNKNOWN), ("query", "text")):
    made.append(_benchmark("retrieval", x.paths, functools.partial(_retrieval, x)))
  names = [each.name for each in made]
  if twice := {name for name in names if names.count(name) > 1}:
    raise errors.InputError(f"two files are {' and '.join(sorted(twice))}: rename one")
  return made


def is_own(name: str) -> bool:
  """Whether a benchmark's name is that of a user's own file."""
  return name.startswith(("sts-", "bitext-", "retrieval-"))


def _benchmark(kind: str, paths: Sequence[str], task: Callable[[], suite.Task]) -> suite.Benchmark:
  folder, name = os.path.split(paths[0])
  return suite.Benchmark(
    name=f"{kind}-{os.path.splitext(name.removesuffix('.gz'))[0]}",
    title=f"{name} ({kind})",
    files=suite.Files(
      (),
      more=tuple(glob.escape(os.path.basename(path)) for path in paths),
      root=storage.path(folder),
    ),
    read=functools.cache(lambda root: [task()]),  # Commands check the files first.
    averages=lambda results, seen, complete: results[0].metrics,
  )


def _languages(path: str) -> tuple[str, str]:
  """Returns the codes of the languages in a file's name, if it has any."""
  try:
    first, second = readers.languages_in_name(path)
  except errors.InputError:
    return _UNKNOWN, _UNKNOWN
  return readers.language_code(first), readers.language_code(second)


def _sts(path: str) -> suite.Task:
  return sts_lib.scored_table(storage.path(path), path, _languages(path)).task()


def _bitext(pairs: readers.BitextFile) -> suite.Task:
  codes = readers.language_code(pairs.source), readers.language_code(pairs.target)
  texts = tuple(zip(*readers.read_pairs(pairs), strict=True))

  def score(*vectors: np.ndarray) -> suite.Numbers:
    shares: suite.Numbers = {}
    ways = {"forward": texts, "backward": texts[::-1]}
    for (way, both), near in zip(ways.items(), retrieval.nearest(*vectors), strict=True):
      shares[f"accuracy {way}"] = 100 * retrieval.pair_accuracy(near.cosine_N, *both)
      shares[f"xsim {way}"] = 100 * (1 - retrieval.pair_accuracy(near.margin_N, *both))
    sides = [(x, shares[f"{x} forward"], shares[f"{x} backward"]) for x in ("accuracy", "xsim")]
    means = {name: (forward + backward) / 2 for name, forward, backward in sides}
    return means | shares

  return suite.pair_task(str(pairs), codes, texts, score)


def _retrieval(pairs: readers.BitextFile) -> suite.Task:
  row_by_text: dict[str, int] = {}
  gold: dict[str, dict[int, float]] = {}
  path = storage.path(pairs.paths[0])
  for row in readers.read_rows(pairs, graded=True):
    query, text, *more = row.texts
    index = row_by_text.setdefault(text, len(row_by_text))
    labels = [*more, *row.scores]
    if not labels or files.number(labels[0], path, row.number) > 0:
      gold.setdefault(query, {})[index] = 1.0
  if not gold:
    raise errors.InputError(f"{pairs}: no text has a label above 0; label the relevant texts 1")
  codes = _languages(pairs.paths[0])

  def score(query_QD: np.ndarray, text_ND: np.ndarray) -> list[suite.Result]:
    near = exact_search.top_k(query_QD, text_ND, 10)
    shares = retrieval.rank_metrics(near, [*gold.values()], 10)
    return [suite.Result(str(pairs), codes, {key: 100 * x for key, x in shares.items()})]

  queries = suite.Side(codes[0], [*gold], "encode_query")
  texts = suite.Side(codes[1], [*row_by_text], "encode_document")
  return suite.Task("all", (queries, texts), score, large=True)
