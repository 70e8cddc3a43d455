"""Results of the benchmarks in `agnosticism`: computed from vectors, averaged, parsed for plots.

Names of results, after the name of the text and a space if a benchmark has several texts:

* "deu->eng" for each ordered pair: `error`, in percent; from the query's language to the other;
* "path eng+deu+zho" for each translation of known source: mean distances of its vectors x 100;
* "deu of line 12" for each version of one sentence: its coordinates x 100 in the plot of all
  versions, and "picture of line 12": the share of the variance along the axes. The sentence is the
  first that is scored.

Steps define a version of a text: codes of languages from the original to the version, with or
without "_" and a suffix that distinguishes versions in one language.
"""

import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages
from vmsst.evaluation.metrics import agnosticism

Steps = tuple[str, ...]

_POINT = re.compile(r"(?:(?P<text>.+) )?(?P<label>\S+) of line (?P<line>\d+)")
_SOURCE_DISTANCE = "distance to its source"


@dataclasses.dataclass(frozen=True)
class Matrix:
  """Errors of all ordered pairs of versions of a text.

  Attributes:
    text: Name of the text; "" if the benchmark has only one.
    labels: Labels of the versions.
    languages: Language code of each version.
    error_LL: Errors in percent, [L, L], from row to column; the diagonal is 0.
  """

  text: str
  labels: tuple[str, ...]
  languages: tuple[str, ...]
  error_LL: np.ndarray


@dataclasses.dataclass(frozen=True)
class SentenceFigure:
  """One sentence in all its versions, as in the paper's Fig. 1.

  Attributes:
    text: Name of the text; "" if the benchmark has only one.
    line: Line of the sentence in the files, from 1.
    labels: Labels of the versions.
    languages: Language code of each version.
    point_V2: Coordinates of the versions.
    share_2: Share of the variance along each axis, 0 to 1.
    edges: Rows of a version's source and of the version, and the distance of their vectors.
  """

  text: str
  line: int
  labels: tuple[str, ...]
  languages: tuple[str, ...]
  point_V2: np.ndarray
  share_2: tuple[float, float]
  edges: tuple[tuple[int, int, float], ...]


def matrices(results: Iterable[suite.Result]) -> list[Matrix]:
  """Returns the error matrix of each text from the results of one of these benchmarks."""
  errors_by_text: dict[str, dict[tuple[str, str], float]] = {}
  found_code: dict[tuple[str, str], str] = {}
  for result in results:
    text, _, pair = result.name.rpartition(" ")
    first, arrow, second = pair.partition("->")
    if arrow:
      errors_by_text.setdefault(text, {})[first, second] = result.metrics["error"]
      found_code[text, first] = result.languages[0]
  listed = []
  for text, error_by_pair in errors_by_text.items():
    labels = tuple(dict.fromkeys(label for pair in error_by_pair for label in pair))
    error_LL = [[error_by_pair.get((x, y), 0.0) for y in labels] for x in labels]
    codes = tuple(found_code[text, label] for label in labels)
    listed.append(Matrix(text, labels, codes, np.array(error_LL)))
  return listed


def sentence_figures(results: Iterable[suite.Result]) -> list[SentenceFigure]:
  """Returns the plotted sentence of each text from the results of one of these benchmarks."""
  of_text: dict[tuple[str, int], dict[str, suite.Result]] = {}
  for result in results:
    if match := _POINT.fullmatch(result.name):
      key = match["text"] or "", int(match["line"])
      of_text.setdefault(key, {})[match["label"]] = result
  figures = []
  for (text, line), of_label in of_text.items():
    share = of_label.pop("picture").metrics
    labels = tuple(of_label)
    points = [result.metrics for result in of_label.values()]
    edges = [
      (labels.index(label.rpartition("+")[0]), row, point[_SOURCE_DISTANCE] / 100)
      for row, (label, point) in enumerate(zip(labels, points, strict=True))
      if _SOURCE_DISTANCE in point
    ]
    figures.append(
      SentenceFigure(
        text=text,
        line=line,
        labels=labels,
        languages=tuple(result.languages[0] for result in of_label.values()),
        point_V2=np.array([[point["x"], point["y"]] for point in points]) / 100,
        share_2=(share["x"] / 100, share["y"] / 100),
        edges=tuple(edges),
      )
    )
  return figures


def language_errors(listed: Iterable[Matrix]) -> dict[str, dict[str, float]]:
  """Returns the error of each language on each text, by language code and name of the text.

  It is the mean error over all ordered pairs with a text in this language, on either side; each of
  several versions in this language has the same weight. The code is the first that occurs.
  """
  first: dict[languages.Language, str] = {}
  error_by_pair: dict[str, dict[str, float]] = {}
  for matrix in listed:
    edges = agnosticism.averages(matrix.error_LL)
    by_code: dict[str, list[float]] = {}
    for code, error in zip(matrix.languages, (edges.source_L + edges.target_L) / 2, strict=True):
      by_code.setdefault(first.setdefault(languages.language(code), code), []).append(float(error))
    for code, values in by_code.items():
      error_by_pair.setdefault(code, {})[matrix.text] = statistics.fmean(values)
  return error_by_pair


def language_code(step: str) -> str:
  """Returns the language code of a step: pol for pol_a, but zho_Hans for zho_Hans, a code."""
  try:
    languages.language(step)
  except errors.InputError:
    return step.rpartition("_")[0] or step
  return step


def score(
  text: str, steps: Sequence[Steps], row_K: np.ndarray, *vectors: np.ndarray
) -> list[suite.Result]:
  """Returns the results of a text.

  Args:
    text: Name of the text, or "".
    steps: Steps of each version.
    row_K: Rows of the files, from 0, to which the vectors belong.
    *vectors: Vectors of each version, [K, D].
  """
  prefix = f"{text} " if text else ""
  labels = ["+".join(languages_of_step) for languages_of_step in steps]
  codes = [language_code(languages_of_step[-1]) for languages_of_step in steps]
  error_LL = 100 * agnosticism.error_matrix(vectors)
  results = [
    suite.Result(
      f"{prefix}{labels[i]}->{labels[j]}", (codes[i], codes[j]), {"error": float(error_LL[i, j])}
    )
    for i, j in itertools.permutations(range(len(labels)), 2)
  ]
  for way in steps:
    if len(way) > 1:
      path = agnosticism.path_distances(
        [vectors[steps.index(way[:length])] for length in range(1, len(way) + 1)]
      )
      results.append(
        suite.Result(
          f"{prefix}path {'+'.join(way)}",
          tuple(language_code(step) for step in way),
          {
            _SOURCE_DISTANCE: 100 * float(path.step_S[-1]),
            "distance to the original": 100 * float(path.start_S[-1]),
            "distance along the path": 100 * float(path.step_S.sum()),
          },
        )
      )
  return results + _figure_results(prefix, steps, row_K, vectors)


def _figure_results(
  prefix: str,
  steps: Sequence[Steps],
  row_K: np.ndarray,
  vectors: Sequence[np.ndarray],
) -> list[suite.Result]:
  line, vector_VD = row_K[0] + 1, np.stack([vectors_ND[0] for vectors_ND in vectors])
  plane = agnosticism.principal_plane(vector_VD)
  codes = tuple(language_code(way[-1]) for way in steps)
  results = []
  for way, code, (x, y), vector_D in zip(steps, codes, plane.point_V2, vector_VD, strict=True):
    metrics = {"x": 100 * float(x), "y": 100 * float(y)}
    if len(way) > 1:
      pair = vector_VD[[steps.index(way[:-1])]], vector_D[None]
      metrics[_SOURCE_DISTANCE] = 100 * float(agnosticism.path_distances(pair).step_S[0])
    name = f"{prefix}{'+'.join(way)} of line {line}"
    results.append(suite.Result(name, (code,), metrics))
  shares = {"x": 100 * float(plane.share_2[0]), "y": 100 * float(plane.share_2[1])}
  name = f"{prefix}picture of line {line}"
  return [*results, suite.Result(name, codes, shares)]


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Summarizes errors over all ordered pairs, and their relation to language families.

  Returns mean, lowest and highest error; errors between versions in one language, and how much the
  errors of these versions with the same other text differ (highest minus lowest, mean and maximum
  over texts and directions); errors within and between families, and, if errors differ and families
  group languages, the agreement of as many clusters by error with them; the same for branches, if
  there are several in a family. Several texts prefix their names.
  """
  all_matrices = matrices(results)
  summary: suite.Numbers = {}
  for matrix in all_matrices:
    prefix = f"{matrix.text}: " if matrix.text else ""
    paths = [x for x in results if "->" in x.name and x.name.rpartition(" ")[0] == matrix.text]
    numbers = averages.by_seen("error", paths, "error", seen, complete=complete)
    for name, value in _numbers(matrix).items():
      numbers |= averages.mean(name, [value], complete=complete)
    summary |= {prefix + name: value for name, value in numbers.items()}
  if len(all_matrices) > 1:
    means = [agnosticism.averages(matrix.error_LL).overall for matrix in all_matrices]
    summary = averages.mean("error, mean of texts", means, complete=complete) | summary
  return summary


def _numbers(matrix: Matrix) -> suite.Numbers:
  known = [languages.language(code) for code in matrix.languages]
  off_P = matrix.error_LL[~np.eye(len(known), dtype=bool)]
  numbers = {
    "error": agnosticism.averages(matrix.error_LL).overall,
    "lowest error": float(off_P.min()),
    "highest error": float(off_P.max()),
  }
  of_language = agnosticism.within_and_between(matrix.error_LL, known)
  if "within" in of_language:
    numbers["error within a language"] = of_language["within"]
  if spreads := agnosticism.version_spreads(matrix.error_LL, known):
    numbers["spread over versions"] = statistics.fmean(spreads)
    numbers["largest spread over versions"] = max(spreads)
  families = [language.family for language in known]
  branches = [language.branch for language in known]
  kinds = {"families": families}
  if len(set(branches)) > len(set(families)):
    kinds["branches"] = branches
  for kind, group_L in kinds.items():
    of_group = agnosticism.within_and_between(matrix.error_LL, group_L)
    numbers |= {f"error {way} {kind}": value for way, value in of_group.items()}
  return numbers
