"""Measures how language-agnostic vectors are, using retrieval errors between all language pairs.

The method is from Chen and Avgustinova (2021), called "the paper" below. Each benchmark consists of
texts that are translated into several languages.

* `BENCHMARK` uses NTREX, as in the paper's Tables 2 and 3.
* `WMT2012` uses the news texts from Table 1, and `TED` uses the TED talks from Table 2.
* `TRANSLATIONS` uses texts with several translations into one language, and translations made from
  other translations, as in Tables 4 to 6.

As in the paper, long and repeated texts are skipped (see `usable_rows`), except in `WMT2012`, where
all 3,003 rows are scored.

Each text has several versions: the original and its translations. Each version has a label, which
lists the language codes from the original to this version, joined by "+". For example,
"eng+deu+zho" is a Chinese translation of a German translation of an English original. An optional
suffix after "_" distinguishes versions in the same language. A benchmark reports these results for
each text:

* one result named after the text, or `ALL` if the benchmark has only one text. This result contains
  the metrics from `summary_of_matrix` and the arrays `labels` and `error`. `error` is an error
  matrix [L, L] in percent, with one row per query version and one column per candidate version.
* one result such as "path eng+deu+zho" for every version with several codes in its label. The
  metrics are mean distances between vectors, times 100: from this version to its source (here
  "eng+deu"), from this version to the original, and the sum along the path from the original.
"""

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import bitext_retrieval, files
from vmsst.io import text_files
from vmsst.search import exact_search

ALL = "all languages"  # name of the result if a benchmark has only one text
WMT2012_CODES = ("cs", "de", "en", "es", "fr")
TED_CODES = (
  *("bg", "cs", "de", "en", "es", "fr", "hr", "it"),
  *("ko", "pl", "ro", "ru", "sr", "uk", "vi", "zh"),
)
TED_SENTENCES = 10_000


def read_wmt2012(root: storage.Path) -> list[suite.Task]:
  """Returns one task with five languages, as in Table 1 of Chen and Avgustinova (2021)."""
  paths = [root / "wmt2012" / f"newstest2012.{code}" for code in WMT2012_CODES]
  paths_by_code = dict(zip(WMT2012_CODES, map(files.plain_or_gzipped, paths), strict=True))
  return [_task(ALL, files.by_label(paths_by_code))]


def read_ted(root: storage.Path) -> list[suite.Task]:
  """Returns one task with 16 languages, as in Table 2 of Chen and Avgustinova (2021).

  The task uses the first 10,000 usable rows in the training file of the TED talks. Rows with a
  missing column or a missing translation ("__NULL__") are skipped.
  """
  path = files.plain_or_gzipped(root / "ted" / "all_talks_train.tsv")
  lines = (line.split("\t") for line in text_files.read_lines(str(path)))
  header = next(lines, [])
  columns = [header.index("zh-cn" if code == "zh" else code) for code in TED_CODES]
  rows = ([line[column] for column in columns] for line in lines if len(line) == len(header))
  complete = [row for row in rows if not any("NULL" in text for text in row)]
  texts = dict(zip(TED_CODES, zip(*complete, strict=True), strict=True))
  return [_usable_task(ALL, texts, TED_SENTENCES)]


def read_translations(root: storage.Path) -> list[suite.Task]:
  """Returns one task per text, with one text set per version."""
  texts: dict[str, dict[str, storage.Path]] = {}
  for path in files.files_in(root / "translations", "*.txt"):
    name, _, label = files.plain_name(path).removesuffix(".txt").partition(".")
    label = label.replace(".", "_")
    files.known_code(_code(label), path)
    texts.setdefault(name, {})[label] = path
  return [_usable_task(name, files.by_label(paths)) for name, paths in texts.items()]


def _task(text: str, columns: Mapping[str, Sequence[str]]) -> suite.Task:
  """Returns the task for a text.

  Args:
    text: Name of the text, or `ALL`.
    columns: Lines in each version, by label.
  """
  text_sets = tuple(suite.TextSet(_code(label), lines) for label, lines in columns.items())
  return suite.Task(text, text_sets, functools.partial(_score, text, tuple(columns)))


def _usable_task(
  text: str, columns: Mapping[str, Sequence[str]], limit: int | None = None
) -> suite.Task:
  """Returns the task for the first `limit` usable rows of a text."""
  rows = usable_rows(columns.values())[:limit].tolist()
  return _task(text, {label: [lines[row] for row in rows] for label, lines in columns.items()})


def _code(label: str) -> str:
  """Returns the last code in a label, without a suffix such as "_a": "pol" for eng+pol_a."""
  step = label.rpartition("+")[2]
  try:
    languages.language(step)
  except errors.InputError:
    return step.rpartition("_")[0] or step
  return step


def _score(text: str, labels: Sequence[str], *vectors: np.ndarray) -> list[suite.Result]:
  codes = tuple(map(_code, labels))
  error_LL = 100 * error_matrix(vectors)
  arrays = {"labels": list(labels), "error": error_LL.tolist()}
  results = [suite.Result(text, codes, summary_of_matrix(error_LL, codes), arrays)]
  for label in labels:
    steps = label.split("+")
    rows = [labels.index("+".join(steps[:count])) for count in range(1, len(steps) + 1)]
    if len(rows) > 1:
      path = [vectors[row] for row in rows]
      distances = [mean_distance(*pair) for pair in itertools.pairwise(path)]
      metrics = {
        "distance to its source": 100 * distances[-1],
        "distance to the original": 100 * mean_distance(path[0], path[-1]),
        "distance along the path": 100 * sum(distances),
      }
      name = result_name(text, f"path {label}")
      results.append(suite.Result(name, tuple(codes[row] for row in rows), metrics))
  return results


def summary_of_matrix(error_LL: np.ndarray, codes: Sequence[str]) -> suite.Numbers:
  """Returns summary statistics of an error matrix.

  * `error`, `lowest error`, `highest error`: mean, minimum and maximum over all ordered pairs
  * `error within a language`: mean error between versions in the same language
  * `spread over versions`, `largest spread over versions`: see `version_spreads`
  * `error within families`, `error between families`: see `within_and_between`
  * `error within branches`, `error between branches`: the same for branches of families; omitted if
    no family has several branches
  """
  language_L = [languages.language(code) for code in codes]
  error_P = error_LL[~np.eye(len(codes), dtype=bool)]
  numbers = {
    "error": float(error_P.mean()),
    "lowest error": float(error_P.min()),
    "highest error": float(error_P.max()),
  }
  within = within_and_between(error_LL, language_L).get("within")
  if within is not None:
    numbers["error within a language"] = within
  if spreads := version_spreads(error_LL, language_L):
    numbers["spread over versions"] = statistics.fmean(spreads)
    numbers["largest spread over versions"] = max(spreads)
  groupings = {
    "families": [x.family for x in language_L],
    "branches": [x.branch for x in language_L],
  }
  if len(set(groupings["branches"])) == len(set(groupings["families"])):
    del groupings["branches"]
  for grouping, group_L in groupings.items():
    for relation, value in within_and_between(error_LL, group_L).items():
      numbers[f"error {relation} {grouping}"] = value
  return numbers


def pair_errors(result: suite.Result) -> Iterator[suite.Result]:
  """Yields a result such as "deu->eng" for every off-diagonal cell of an error matrix."""
  labels, codes = result.arrays["labels"], result.languages
  for i, j in itertools.permutations(range(len(labels)), 2):
    name = result_name(result.name, f"{labels[i]}->{labels[j]}")
    yield suite.Result(name, (codes[i], codes[j]), {"error": result.arrays["error"][i][j]})


def result_name(text: str, name: str) -> str:
  """Returns the name of a result, prefixed with the name of the text unless the text is `ALL`."""
  return name if text == ALL else f"{text} {name}"


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns metrics per text, errors for seen and unseen languages, and the mean over texts."""
  summary: suite.Numbers = {}
  texts = [result for result in results if result.arrays]
  if len(texts) > 1:
    values = (result.metrics["error"] for result in texts)
    summary |= suite.mean("error, mean of texts", values, complete=complete)
  for result in texts:
    numbers = suite.seen_means("error", [*pair_errors(result)], "error", seen, complete=complete)
    for name, value in result.metrics.items():
      numbers |= suite.mean(name, [value], complete=complete)
    prefix = "" if result.name == ALL else f"{result.name}: "
    summary |= {prefix + name: value for name, value in numbers.items()}
  return summary


def usable_rows(columns: Collection[Sequence[str]], *, max_words: int = 50) -> np.ndarray:
  """Returns the numbers of the rows to score in aligned texts, int64 [K].

  A row is skipped if, in any language, its text is empty, has more than `max_words` words, or
  repeats the text of an earlier usable row. The limit on words replaces the limit of 50 tokens in
  Chen and Avgustinova (2021). Words are separated by white space, so the limit has no effect in
  scripts without spaces. Repeated texts are skipped because they have several correct translations.
  Texts that differ only in white space count as repeated.
  """
  earlier: set[tuple[int, str]] = set()  # Column and text of each usable row.
  rows = []
  for row, texts in enumerate(zip(*columns, strict=True)):
    words = [text.split() for text in texts]
    keys = {*enumerate(map(" ".join, words))}
    if all(0 < len(x) <= max_words for x in words) and earlier.isdisjoint(keys):
      earlier |= keys
      rows.append(row)
  return np.array(rows, np.int64)


def error_matrix(vectors: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the retrieval error for every ordered language pair, 0 to 1, float64 [L, L].

  For cell (i, j), each text in language i is a query, and all texts in language j are the
  candidates. The cell is the share of queries for which the nearest candidate by cosine is not the
  translation. If several candidates are equally near, the first one counts. The diagonal is 0.

  Args:
    vectors: Vectors [N, D] for each language; row n is the same text in every language.

  Raises:
    ValueError: If a vector is not finite.
  """
  gold_N = np.arange(len(vectors[0]))
  error_LL = np.zeros((len(vectors), len(vectors)))
  for i, source_ND in enumerate(vectors):
    for j in range(i):
      forward, backward = exact_search.mutual_top_k(source_ND, vectors[j], 1)
      error_LL[i, j] = np.mean(forward.index_NK[:, 0] != gold_N)
      error_LL[j, i] = np.mean(backward.index_NK[:, 0] != gold_N)
  return error_LL


def mean_errors(error_LL: np.ndarray) -> np.ndarray:
  """Returns the mean error for the queries in each language, [L].

  For the mean error by candidate language, pass the transposed matrix. The tables in Chen and
  Avgustinova (2021) show both means.
  """
  return error_LL.sum(axis=1) / (len(error_LL) - 1)


def within_and_between(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> dict[str, float]:
  """Returns the mean errors `within` and `between` groups; omits a mean if it covers no pairs.

  `group_L` contains the group of each row and column of the matrix. If the groups are languages,
  `within` is the mean error between several translations into one language. If the groups are
  language families, the two means show the effect of language relatedness.
  """
  same_LL = np.array([[x == y for y in group_L] for x in group_L])
  masks = {"within": same_LL & ~np.eye(len(group_L), dtype=bool), "between": ~same_LL}
  return {name: float(error_LL[mask_LL].mean()) for name, mask_LL in masks.items() if mask_LL.any()}


def version_spreads(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> list[float]:
  """Returns how much the error differs between versions in one language.

  For example, three English translations have different retrieval errors if the German version is
  always the query. The spread is the highest of these errors minus the lowest. The returned list
  contains one spread for every combination of a language with several versions (here English), a
  version in a different language (German), and a retrieval direction (German to English). See
  section 3.2.2 of Chen and Avgustinova (2021).
  """
  spreads: list[float] = []
  for group in dict.fromkeys(group_L):
    member_L = np.array([x == group for x in group_L])
    if member_L.sum() > 1:
      for direction_LL in (error_LL, error_LL.T):
        spreads += np.ptp(direction_LL[member_L][:, ~member_L], axis=0).tolist()
  return spreads


def language_tree(error_LL: np.ndarray) -> np.ndarray:
  """Clusters languages into a tree by average linkage, as in Chen and Avgustinova (2021).

  The tree is returned as a SciPy linkage matrix, [L - 1, 4]. The distance between two languages is
  the mean retrieval error over both directions. The leaves are the languages, ordered so that
  similar languages are adjacent.
  """
  from scipy.cluster import hierarchy  # SciPy is slow to import, so it is imported here.
  from scipy.spatial import distance

  distance_P = distance.squareform((error_LL + error_LL.T) / 2)
  return hierarchy.linkage(distance_P, method="average", optimal_ordering=True)


def mean_distance(first_ND: np.ndarray, second_ND: np.ndarray) -> float:
  """Returns the mean Euclidean distance between corresponding rows after normalization, 0 to 2."""
  first_ND, second_ND = (exact_search.unit_rows(x).astype(float) for x in (first_ND, second_ND))
  return float(np.mean(np.linalg.norm(first_ND - second_ND, axis=1)))


BENCHMARK = dataclasses.replace(
  bitext_retrieval.NTREX,
  name="agnosticism",
  title="Language-agnosticism (NTREX, every ordered pair)",
  read=lambda root: [_usable_task(ALL, files.by_label(bitext_retrieval.ntrex_files(root)))],
  averages=summarize,
)
WMT2012 = suite.Benchmark(
  name="wmt2012",
  title="Language-agnosticism (WMT 2012, every ordered pair)",
  files=suite.Files(
    ("wmt2012",), f"newstest2012.{{{','.join(WMT2012_CODES)}}}, one text per line, plain or .gz"
  ),
  read=read_wmt2012,
  averages=summarize,
)
TED = suite.Benchmark(
  name="agnosticism_ted",
  title="Language-agnosticism (TED talks, every ordered pair)",
  files=suite.Files(("ted",), "all_talks_train.tsv with a column per language, plain or .gz"),
  read=read_ted,
  averages=summarize,
)
TRANSLATIONS = suite.Benchmark(
  name="translations",
  title="Several translations of one text, including translations of translations",
  files=suite.Files(
    ("translations",),
    "TEXT.CODE.txt or, for translations of translations, TEXT.eng+deu+zho.txt; versions in one "
    "language are TEXT.CODE.a.txt, TEXT.CODE.b.txt; one text per line, plain or .gz",
  ),
  read=read_translations,
  averages=summarize,
)
