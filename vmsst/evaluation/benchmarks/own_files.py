"""Benchmarks from a user's own files: scored pairs, bitext, or queries with relevant texts.

Each file is a separate benchmark with one result. The languages are read from the file name
(`my.de-en.tsv`). The metrics, times 100, are

* for `sts`: `pearson` and `spearman`, the correlations between cosines and scores.
* for `bitext`: `accuracy`, the accuracy of nearest-neighbor search by cosine, and `xsim`, the error
  rate of the ratio margin among the k = 4 nearest neighbors. Metrics with `forward` in the name are
  for retrieval of the targets, with the sources as queries. Metrics with `backward` in the name are
  for retrieval of the sources. All other metrics are means over both directions. If a text is
  on several lines, for example a question with several answers, all texts paired with this text
  count as correct.
* for `retrieval`: `accuracy`, `MRR@10`, `R@10` and `nDCG@10`. The candidates for each query are all
  distinct texts in the file. The encoder's query prompt is applied to queries, and its document
  prompt is applied to texts.
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
  """Returns one benchmark per file, named `sts-STEM`, `bitext-STEM` or `retrieval-STEM`.

  All files may be plain or gzipped, and local or in an object store.

  Args:
    sts: Files or shell patterns with lines `score TAB first sentence TAB second sentence`.
    bitext: Files or shell patterns in any bitext format of `vmsst.data.readers`.
    retrieval: Files or shell patterns with lines `query TAB text`, or JSON Lines files whose
      objects contain `query` and `text`. A query with several relevant texts is repeated on several
      lines. A numeric first or third column, or an additional numeric field in an object, is read
      as the relevance label of the text. Texts with label 0 are not relevant.

  Raises:
    InputError: If a pattern matches no file, the name of a TMX or Moses file does not show the
      languages, or two files have the same benchmark name.
  """
  results = [_benchmark("sts", [x], functools.partial(_sts, x)) for x in readers.find_files([*sts])]
  pairs: dict[readers.BitextFile, None] = {}
  for path in readers.find_files([*bitext]):
    # TSV and JSONL files do not need languages in their names.
    has_columns = path.removesuffix(".gz").endswith((".tsv", ".jsonl"))
    pairs |= dict.fromkeys(readers.find_bitext(path, _languages(path) if has_columns else None))
  results += [_benchmark("bitext", x.paths, functools.partial(_bitext, x)) for x in pairs]
  for x in readers.find_bitext([*retrieval], (_UNKNOWN, _UNKNOWN), ("query", "text")):
    results.append(_benchmark("retrieval", x.paths, functools.partial(_retrieval, x)))
  names = [benchmark.name for benchmark in results]
  if duplicates := {name for name in names if names.count(name) > 1}:
    raise errors.InputError(
      f"duplicate benchmark names: {', '.join(sorted(duplicates))}; rename the files"
    )
  return results


def is_own(name: str) -> bool:
  """Returns whether this is the name of a benchmark from a user's own file."""
  return name.startswith(("sts-", "bitext-", "retrieval-"))


def _benchmark(kind: str, paths: Sequence[str], task: Callable[[], suite.Task]) -> suite.Benchmark:
  folder, name = os.path.split(paths[0])
  return suite.Benchmark(
    name=f"{kind}-{os.path.splitext(name.removesuffix('.gz'))[0]}",
    title=f"{name} ({kind})",
    files=suite.Files(
      (),
      optional=tuple(glob.escape(os.path.basename(path)) for path in paths),
      root=storage.path(folder),
    ),
    read=functools.cache(lambda root: [task()]),  # The cache avoids reading files twice.
    averages=lambda results, seen, complete: results[0].metrics,
  )


def _languages(path: str) -> tuple[str, str]:
  """Returns the language codes in a file name, or "und" twice if the name contains none."""
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
    metrics = {"accuracy": 0.0, "xsim": 0.0}  # Means over both directions.
    for direction, columns, nearest in zip(
      ("forward", "backward"), (texts, texts[::-1]), retrieval.nearest(*vectors), strict=True
    ):
      accuracy = 100 * retrieval.pair_accuracy(nearest.cosine_N, *columns)
      xsim = 100 * (1 - retrieval.pair_accuracy(nearest.margin_N, *columns))
      metrics |= {f"accuracy {direction}": accuracy, f"xsim {direction}": xsim}
      metrics["accuracy"] += accuracy / 2
      metrics["xsim"] += xsim / 2
    return metrics

  return suite.pair_task(str(pairs), codes, texts, score)


def _retrieval(pairs: readers.BitextFile) -> suite.Task:
  row_by_text: dict[str, int] = {}
  gold: dict[str, dict[int, float]] = {}
  path = storage.path(pairs.paths[0])
  for row in readers.read_rows(pairs, graded=True):
    query, text, *columns = row.texts
    index = row_by_text.setdefault(text, len(row_by_text))
    labels = [*columns, *row.scores]
    if not labels or files.number(labels[0], path, row.number) > 0:
      gold.setdefault(query, {})[index] = 1.0
  if not gold:
    raise errors.InputError(f"{pairs}: no text has a label above 0; label relevant texts with 1")
  codes = _languages(pairs.paths[0])

  def score(query_QD: np.ndarray, text_ND: np.ndarray) -> list[suite.Result]:
    neighbors = exact_search.top_k(query_QD, text_ND, 10)
    shares = retrieval.rank_metrics(neighbors, [*gold.values()], 10)
    return [suite.Result(str(pairs), codes, {key: 100 * x for key, x in shares.items()})]

  queries = suite.TextSet(codes[0], [*gold], "encode_query")
  texts = suite.TextSet(codes[1], [*row_by_text], "encode_document")
  return suite.Task("all", (queries, texts), score, large=True)
