"""Quality of stored vectors by their numbers and dimensions: Tatoeba, and mining by margin.

  python benchmarks/vector_precision.py RUN DATA

RUN is a run that `compare.py` has trained; DATA contains tatoeba/ and mining/. Each row evaluates
the vectors that `vmsst embed --dtype --dimensions` would store. The last line is JSON, with scores
relative to those of float32 as `ratio`.
"""

import argparse
import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import compare
import comparison_tasks
import numpy as np

import vmsst
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import tatoeba
from vmsst.search import quantization
from vmsst.vectors import shard_files

_COLUMNS = comparison_tasks.SUITES["batches"]
_SAMPLE = 4096  # Texts whose vectors give the ranges of int8, as in `vmsst embed`.


class Stored:
  """An encoder whose vectors were stored and read again."""

  def __init__(self, encoder: Any, kind: shard_files.Kind):
    self._encoder, self._kind = encoder, kind

  def encode(self, texts: Sequence[str], *, batch_size: int = 128) -> np.ndarray:
    """Returns vectors [N, D]."""
    vectors_ND = np.asarray(self._encoder.encode(texts, batch_size=batch_size, progress=False))
    stored_NC = shard_files.encoded(vectors_ND[:, : self._kind.dimension], self._kind)
    return np.asarray(shard_files.decoded(stored_NC, self._kind), np.float32)


def sample(data: str, seen: suite.SeenTest) -> list[str]:
  """Returns texts from all languages of the run."""
  tasks = tatoeba.BENCHMARK.read(pathlib.Path(data))
  sides = [side for task in tasks if seen(x.language for x in task.sides) for side in task.sides]
  texts = [text for side in sides for text in side.texts]
  return texts[:: max(1, len(texts) // _SAMPLE)]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("run", metavar="RUN")
  parser.add_argument("data", metavar="DATA")
  options = parser.parse_args()
  run = pathlib.Path(options.run)
  files = compare.training_files(compare.read_gin(run / "config.gin"), options.data)
  known = {side for file in files for side in (file.source, file.target)}
  seen = suite.seen_test(known)
  encoder = vmsst.load(run)
  width = encoder.dimension
  ranges_2D = quantization.ranges(encoder.encode(sample(options.data, seen), progress=False))
  kinds = [(dtype, width) for dtype in shard_files.DTYPES]
  kinds += [(dtype, width // part) for part in (2, 4) for dtype in ("float32", "int8")]
  table = {}
  for dtype, dimension in kinds:
    ranges = tuple(map(tuple, ranges_2D[:, :dimension].tolist()))
    kind = shard_files.Kind(dimension, dtype, ranges=ranges)
    with tempfile.TemporaryDirectory() as folder:
      found = suite.evaluate(
        Stored(encoder, kind),
        comparison_tasks.benchmarks_of(_COLUMNS, seen),
        options.data,
        folder,
        name=f"{dtype}-{dimension}",
        seen=known,
      )
    results = {key: suite.results_of(each) for key, each in found["benchmarks"].items()}
    scores, _ = comparison_tasks.scores(_COLUMNS, results, seen)
    table[f"{dtype}, {dimension}"] = scores
    size = kind.columns * np.dtype(kind.stored_dtype).itemsize
    cells = " | ".join(f"{score:.2f}" for score in scores.values())
    print(f"| {dtype} | {dimension} | {size} | {cells} |", flush=True)
  exact = table[f"float32, {width}"]
  ratio = {
    key: {name: round(score / exact[name], 4) for name, score in scores.items()}
    for key, scores in table.items()
  }
  print(json.dumps({"columns": list(_COLUMNS), "scores": table, "ratio": ratio}))


if __name__ == "__main__":
  main()
