"""Language-agnosticism of vectors: search errors of every ordered pair of N-way translations.

After Chen and Avgustinova (2021), here "the paper". `BENCHMARK` searches among translations into
many languages (as its Tables 2 and 3), `WMT2012` on the news of its Table 1, `TED` on TED talks as
in its Table 2. `TRANSLATIONS` also searches among several versions in one language and translations
of translations (its Tables 4 to 6). As in the paper, rows with a text of more than 50 tokens and
repeated texts are skipped (`usable_rows`), but not in `WMT2012`, where it scores all 3,003.

A label defines a version of a text: codes of languages from the original to the version, joined by
"+", with or without "_" and a suffix that distinguishes versions in one language. Each text gives

* a result with its name, or `ALL`, the metrics of `summary_of_matrix`, and two arrays: `labels`
  and `error`, the matrix [L, L] in percent, from the row's language, which has the queries, to the
  column's;
* a result "path eng+deu+zho" for each translation of known source: mean distances of its vectors
  x 100.
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

ALL = "all languages"
"""Name of the result of the only text of a benchmark."""
WMT2012_CODES = ("cs", "de", "en", "es", "fr")
TED_CODES = (
  *("bg", "cs", "de", "en", "es", "fr", "hr", "it"),
  *("ko", "pl", "ro", "ru", "sr", "uk", "vi", "zh"),
)
TED_SENTENCES = 10_000


def read_wmt2012(root: storage.Path) -> list[suite.Task]:
  """Returns one task of the five languages of the paper's Table 1; other files are ignored."""
  paths = [root / "wmt2012" / f"newstest2012.{code}" for code in WMT2012_CODES]
  paths_by_code = dict(zip(WMT2012_CODES, map(files.plain_or_gzipped, paths), strict=True))
  return [_task(ALL, files.by_label(paths_by_code))]


def read_ted(root: storage.Path) -> list[suite.Task]:
  """Returns one task of the 16 languages that the paper's Table 2 lists.

  Its sentences are the first 10,000 of the training file with a usable text in each language. Lines
  that lack a column, and those marked as not translated ("__NULL__"), are skipped.
  """
  path = files.plain_or_gzipped(root / "ted" / "all_talks_train.tsv")
  lines = (line.split("\t") for line in text_files.read_lines(str(path)))
  header = next(lines, [])
  places = [header.index("zh-cn" if code == "zh" else code) for code in TED_CODES]
  rows = ([line[place] for place in places] for line in lines if len(line) == len(header))
  complete = [row for row in rows if not any("NULL" in text for text in row)]
  texts = dict(zip(TED_CODES, zip(*complete, strict=True), strict=True))
  return [_usable_task(ALL, texts, TED_SENTENCES)]


def read_translations(root: storage.Path) -> list[suite.Task]:
  """Returns one task per text, with a side per version."""
  texts: dict[str, dict[str, storage.Path]] = {}
  for path in files.files_in(root / "translations", "*.txt"):
    name, _, label = files.plain_name(path).removesuffix(".txt").partition(".")
    label = label.replace(".", "_")
    files.known_code(_code(label), path)
    texts.setdefault(name, {})[label] = path
  return [_usable_task(name, files.by_label(paths)) for name, paths in texts.items()]


def _task(text: str, columns: Mapping[str, Sequence[str]]) -> suite.Task:
  """Returns the task of a text, given its name or `ALL`, and the lines of each version by label."""
  sides = tuple(suite.Side(_code(label), lines) for label, lines in columns.items())
  return suite.Task(text, sides, functools.partial(_score, text, tuple(columns)))


def _usable_task(
  text: str, columns: Mapping[str, Sequence[str]], most: int | None = None
) -> suite.Task:
  """Returns the task of the first lines of a text that are usable in all versions."""
  rows = usable_rows(columns.values())[:most].tolist()
  return _task(text, {label: [lines[row] for row in rows] for label, lines in columns.items()})


def _code(label: str) -> str:
  """Returns the language code of a version: pol for eng+pol_a, but zho_Hans, a code, itself."""
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
  """Returns numbers over all ordered pairs, and their relation to language families.

  Mean, lowest and highest error; errors between versions in one language, and how much the errors
  of these versions with the same other text differ (highest minus lowest, mean and maximum over
  texts and directions); errors within and between families, and the same for branches, if there are
  several in a family.
  """
  known = [languages.language(code) for code in codes]
  error_P = error_LL[~np.eye(len(known), dtype=bool)]
  numbers = {
    "error": float(error_P.mean()),
    "lowest error": float(error_P.min()),
    "highest error": float(error_P.max()),
  }
  within = within_and_between(error_LL, known).get("within")
  if within is not None:
    numbers["error within a language"] = within
  if spreads := version_spreads(error_LL, known):
    numbers["spread over versions"] = statistics.fmean(spreads)
    numbers["largest spread over versions"] = max(spreads)
  kinds = {"families": [x.family for x in known], "branches": [x.branch for x in known]}
  if len(set(kinds["branches"])) == len(set(kinds["families"])):
    del kinds["branches"]
  for kind, group_L in kinds.items():
    for way, value in within_and_between(error_LL, group_L).items():
      numbers[f"error {way} {kind}"] = value
  return numbers


def pair_errors(result: suite.Result) -> Iterator[suite.Result]:
  """Yields the error of each ordered pair of a result's matrix, as results "deu->eng"."""
  versions = list(zip(result.arrays["labels"], result.languages, strict=True))
  for i, j in itertools.permutations(range(len(versions)), 2):
    (label, code), (other, other_code) = versions[i], versions[j]
    error = {"error": result.arrays["error"][i][j]}
    yield suite.Result(result_name(result.name, f"{label}->{other}"), (code, other_code), error)


def result_name(text: str, name: str) -> str:
  """Returns a name after the text that it is about, unless this is the only one."""
  return name if text == ALL else f"{text} {name}"


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns the metrics of each text, its error by seen languages, and the mean over texts."""
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
  """Returns the rows of aligned texts that can be scored, int64 [K].

  A row is skipped if, in any language, its text is empty, has more than `max_words` words (the
  paper's limit is 50 tokens), or repeats the text of an earlier row that is kept: repeated texts
  have no unique translation. Words are separated by white space, so that scripts without spaces
  have no limit; texts that differ only in white space are repeats.
  """
  seen: list[set[str]] = [set() for _ in columns]
  rows = []
  for row, texts in enumerate(zip(*columns, strict=True)):
    words = [text.split() for text in texts]
    if not all(0 < len(sentence) <= max_words for sentence in words):
      continue
    keys = [" ".join(sentence) for sentence in words]
    if any(key in known for key, known in zip(keys, seen, strict=True)):
      continue
    for key, known in zip(keys, seen, strict=True):
      known.add(key)
    rows.append(row)
  return np.array(rows, np.int64)


def error_matrix(vectors: Sequence[np.ndarray]) -> np.ndarray:
  """Returns similarity search errors of every ordered pair of languages, 0 to 1, float64 [L, L].

  Cell (i, j) is the share of texts of language i (the source) whose nearest text of language j (the
  target), by cosine, is not the translation. Among equally near ones the first counts. The diagonal
  is 0. The similarities of each unordered pair are computed once.

  Args:
    vectors: Vectors of each language, [N, D]; equal rows are translations.

  Raises:
    ValueError: a value is not finite.
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
  """Returns the error of queries in each language, over all other languages, [L].

  These are the margins of the paper's tables. Transpose the matrix for the error of searches in
  each language.
  """
  return error_LL.sum(axis=1) / (len(error_LL) - 1)


def within_and_between(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> dict[str, float]:
  """Returns mean errors over ordered pairs `within` one group and `between` two, if there are any.

  With languages as groups, this compares translations into one language with those into others
  (Tables 4 and 6 of the paper); with families, it shows the effect of relatedness.
  """
  same_LL = np.array([[x == y for y in group_L] for x in group_L])
  ways = {"within": same_LL & ~np.eye(len(group_L), dtype=bool), "between": ~same_LL}
  return {name: float(error_LL[way_LL].mean()) for name, way_LL in ways.items() if way_LL.any()}


def version_spreads(error_LL: np.ndarray, group_L: Sequence[Hashable]) -> list[float]:
  """Returns the highest minus the lowest error of the versions in one language with the same text.

  One number for each language with several versions, as queries, then as the texts that are
  searched, and for each text in another language (the paper's Section 3.2.2).
  """
  spreads: list[float] = []
  for group in dict.fromkeys(group_L):
    of_group_L = np.array([number == group for number in group_L])
    if of_group_L.sum() > 1:
      for from_LL in (error_LL, error_LL.T):
        spreads += np.ptp(from_LL[of_group_L][:, ~of_group_L], axis=0).tolist()
  return spreads


def language_tree(error_LL: np.ndarray) -> np.ndarray:
  """Returns a tree of languages in scipy's format, [L - 1, 4]: average linkage of their errors.

  Row k joins two clusters, columns 0 and 1, at a distance, column 2: the mean error over both
  directions of all pairs of their languages. Cluster i < L is language i, cluster L + k is the
  result of row k. Branches are ordered so that neighboring languages are near. The paper groups
  languages by this matrix in Section 3.2.1.
  """
  from scipy.cluster import hierarchy  # Here: it takes a second.
  from scipy.spatial import distance

  distance_P = distance.squareform((error_LL + error_LL.T) / 2)
  return hierarchy.linkage(distance_P, method="average", optimal_ordering=True)


def mean_distance(first_ND: np.ndarray, second_ND: np.ndarray) -> float:
  """Returns the mean Euclidean distance, 0 to 2, of equal rows, scaled to length 1."""
  first_ND, second_ND = (
    exact_search.unit_rows(side).astype(np.float64) for side in (first_ND, second_ND)
  )
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
  title="Several translations of one text, and translations of translations",
  files=suite.Files(
    ("translations",),
    "TEXT.CODE.txt or, for translations of translations, TEXT.eng+deu+zho.txt; versions in one "
    "language are TEXT.CODE.a.txt, TEXT.CODE.b.txt; one text per line, plain or .gz",
  ),
  read=read_translations,
  averages=summarize,
)
