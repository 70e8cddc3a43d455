"""Measures how much `vmsst embed` gains by overlapping its stages in one process.

  python benchmarks/embed_overlap.py                      # a tiny encoder: 1 layer, hidden size 64
  python benchmarks/embed_overlap.py --layers=6 --width=512 --lines=16384 --shard-lines=2048

Shards of lines (numbers spelled in words, tokenized into bytes) are read and tokenized, computed,
and written: stage after stage, as before, and with the stages of neighboring shards overlapping.
Both variants alternate in one process; the first pass of each compiles and does not count.

Prints a JSON line with the seconds of each stage: `ratio` is the time of
stage after stage over that with overlap, both as medians. `bound` is the most that overlap can
gain: all stages over the longest one.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import embed_lines
import measure

import vmsst
from vmsst.files import line_spans
from vmsst.units import base
from vmsst.vectors import encoder_sources, file_embedding, vector_store


class Timed(file_embedding.EmbedShard):
  """A shard that notes the seconds of each stage."""

  seconds: ClassVar[collections.Counter[str]] = collections.Counter()

  @contextlib.contextmanager
  def _timed(self, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    self.seconds[name] += time.perf_counter() - start

  def read(self) -> Any:
    """Reads and tokenizes."""
    with self._timed("read"):
      return super().read()

  def compute(self, prepared: Any) -> Any:
    """Computes the vectors."""
    with self._timed("compute"):
      return super().compute(prepared)

  def write(self, computed: Any) -> Any:
    """Writes the file."""
    with self._timed("write"):
      return super().write(computed)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--lines", type=int, default=80_000, help="number of lines")
  parser.add_argument("--shard-lines", type=int, default=1 << 14, help="lines per shard")
  parser.add_argument("--layers", type=int, default=1, help="layers of the encoder")
  parser.add_argument("--width", type=int, default=64, help="hidden size of the encoder")
  parser.add_argument("--repeats", type=int, default=5, help="passes of each variant")
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    embed_lines.make_encoder(folder / "encoder", options.layers, options.width)
    text = folder / "text.txt"
    text.write_text("".join(f"{line}\n" for line in embed_lines.make_lines(options.lines)))
    encoder = vmsst.load(folder / "encoder")
    source = encoder_sources.of(encoder, "encoder")
    kind = vector_store.Kind(encoder.dimension)
    out = folder / "out"
    units = [
      Timed(
        encoder=source,
        span=span,
        field=None,
        language=None,
        long_texts="cut",
        batch_size=128,
        kind=kind,
        path=vector_store.shard_path(out, kind, number),
      )
      for number, span in enumerate(line_spans.cut([str(text)], options.shard_lines).spans)
    ]

    def stage_after_stage() -> None:
      for unit in units:
        unit.make()

    def overlapping() -> None:
      for _ in base.do("embed", units):
        pass

    seconds = collections.defaultdict(list)
    with encoder_sources.using(source, encoder):
      for repeat in range(options.repeats + 1):
        for work in (stage_after_stage, overlapping):
          shutil.rmtree(out, ignore_errors=True)
          out.mkdir()
          Timed.seconds.clear()
          start = time.perf_counter()
          work()
          if repeat:
            seconds[work].append(time.perf_counter() - start)
            if work is stage_after_stage:
              profile = dict(Timed.seconds)
  before, after = (statistics.median(seconds[work]) for work in (stage_after_stage, overlapping))
  print(
    json.dumps(
      {
        "benchmark": "embed_overlap",
        "lines": options.lines,
        "layers": options.layers,
        "width": options.width,
        "device": "cpu",
        **measure.machine("jax"),
        **{f"{stage}_seconds": round(value, 2) for stage, value in profile.items()},
        "lines_per_second_before": round(options.lines / before),
        "lines_per_second": round(options.lines / after),
        "bound": round(sum(profile.values()) / max(profile.values()), 2),
        "ratio": round(before / after, 2),
      }
    )
  )


if __name__ == "__main__":
  main()
