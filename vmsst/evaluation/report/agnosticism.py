"""Tables and figures of the benchmarks in `agnosticism`."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism_results
from vmsst.evaluation.metrics import agnosticism, clustering
from vmsst.evaluation.report import plots


def averages(results: Sequence[suite.Result]) -> Iterator[suite.Result]:
  """Yields the averages of rows ("de->*") and columns ("*->de") of error matrices, as results.

  With several texts, also the errors of each language on each text, as in the paper's Table 5.
  """
  matrices = agnosticism_results.matrices(results)
  for matrix in matrices:
    edges = agnosticism.averages(matrix.error_LL)
    for index, (label, code) in enumerate(zip(matrix.labels, matrix.languages, strict=True)):
      for pair, codes, edge_L in (
        (f"{label}->*", (code, "*"), edges.source_L),
        (f"*->{label}", ("*", code), edges.target_L),
      ):
        name = f"{matrix.text} {pair}".strip()
        yield suite.Result(name, codes, {"error": float(edge_L[index])})
  if len(matrices) > 1:
    for code, of_text in agnosticism_results.language_errors(matrices).items():
      mean = {"mean of texts": statistics.fmean(of_text.values())}
      yield suite.Result(code, (code,), of_text | mean)


def figures(title: str, of_encoder: Mapping[str, Sequence[suite.Result]]) -> Iterator[plots.Figure]:
  """Yields a heat map of the errors on each text, a tree of the languages, and one sentence."""
  for encoder, results in of_encoder.items():
    for matrix in agnosticism_results.matrices(results):
      if len(matrix.labels) > 2:  # Two make no tree.
        tree_M4 = clustering.tree(clustering.distances(matrix.error_LL))
        order = clustering.leaf_order(tree_M4)
        labels = [matrix.labels[row] for row in order]
        error_LL = matrix.error_LL[np.ix_(order, order)]
        where = f"{encoder}, {matrix.text or title}"
        yield plots.heat_map(f"Errors: {where}", error_LL, labels)
        families = _branches(matrix.languages)
        yield plots.dendrogram(f"Languages by error: {where}", tree_M4, matrix.labels, families)
    for sentence in agnosticism_results.sentence_figures(results):
      where = f"{encoder}, {sentence.text or title}, line {sentence.line}"
      families = _branches(sentence.languages)
      yield plots.sentence(f"One sentence in all versions: {where}", sentence, families)


def _branches(codes: tuple[str, ...]) -> list[str]:
  return [languages.language(code).branch for code in codes]
