"""Tests `vmsst embed` on many lines with repeated kills: memory, speed and correct rows.

  python benchmarks/embed_lines.py                    # 50,000 lines
  python benchmarks/embed_lines.py --lines=1000000

Lines are numbers spelled in words, of different lengths; every 97th line is empty. A small random
T5 over bytes embeds them (1 layer, hidden size 64). The command is killed (SIGKILL) at times spread
over the run and rerun each time. Then every vector is compared with that of its line, embedded
again.

Prints a JSON line: `ratio` is the peak resident memory of the first tenth of the lines over that of
the whole run (1: memory does not grow with the lines); `lost_or_duplicated` counts lines with a
wrong vector.
"""

import argparse
import itertools
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import measure
import numpy as np

_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_SHARD_LINES = 1 << 14


def make_lines(count: int) -> Iterator[str]:
  """Yields lines that are distinct except for empty ones."""
  for number in range(count):
    digits = str(number * 7919)
    yield "" if number % 97 == 96 else " ".join(_WORDS[int(digit)] for digit in digits)


def make_encoder(folder: pathlib.Path, layers: int = 1, width: int = 64) -> None:
  """Writes a small encoder with random weights in the format of `vmsst export safetensors`."""
  import jax
  import jax.numpy as jnp
  from flax import traverse_util
  from safetensors.numpy import save_file

  from vmsst.checkpoints import encoder_json
  from vmsst.networks import sentence_encoder, t5
  from vmsst.text import vocabularies

  config = t5.T5Config(
    vocab_size=259,
    emb_dim=width,
    num_heads=width // 32,
    head_dim=32,
    mlp_dim=width,
    num_encoder_layers=layers,
  )
  network = sentence_encoder.SentenceEncoder(config, width, head=False)

  class Model:
    sentence_encoder = network
    vocabulary = vocabularies.ByteVocabulary()
    max_length = 64

  Model.network = network
  encoder_json.save_encoder_assets(Model, folder)
  params = jax.jit(network.init)(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
  flat = traverse_util.flatten_dict(params, sep="/")
  save_file({name: np.asarray(value) for name, value in flat.items()}, folder / "model.safetensors")


def done_lines(folder: pathlib.Path, total: int) -> int:
  """Returns an estimate of the number of lines whose vectors are stored."""
  return min(total, _SHARD_LINES * len(list(folder.glob("vectors-*.npy"))))


def embed(
  folder: pathlib.Path, text: pathlib.Path, total: int, kills: int
) -> tuple[list[tuple[int, int]], float]:
  """Runs the command until it completes; returns memory by finished lines, and seconds."""
  out = folder / "vectors"
  command = [sys.executable, "-m", "vmsst.cli", "embed", str(folder / "encoder"), str(text)]
  samples, start = [], time.perf_counter()
  limits = [total * (number + 1) // (kills + 1) for number in range(kills)]
  for limit in [*limits, None]:
    with subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL) as process:
      while process.poll() is None:
        done = done_lines(out, total)
        samples.append((done, measure.resident_bytes(process.pid)))
        if limit is not None and done >= limit:
          process.send_signal(signal.SIGKILL)
        time.sleep(0.02)
    if limit is None and process.returncode:
      raise SystemExit(f"vmsst embed failed (exit code {process.returncode})")
  return samples, time.perf_counter() - start


def wrong_lines(folder: pathlib.Path, count: int) -> int:
  """Returns the number of lines whose vector differs from that of the line embedded again."""
  import vmsst
  from vmsst.vectors import vector_store

  encoder, wrong = vmsst.load(folder / "encoder"), 0
  vectors = vector_store.open_vectors(folder / "vectors")
  lines = make_lines(count)
  for start in range(0, count, _SHARD_LINES):
    expected_BD = encoder.encode(itertools.islice(lines, _SHARD_LINES), progress=False, on_cut=None)
    found_BD = vectors[start : start + _SHARD_LINES]
    wrong += int((np.abs(found_BD - expected_BD).max(axis=1) > 1e-4).sum())
  return wrong + abs(len(vectors) - count)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--lines", type=int, default=50_000, help="number of lines")
  parser.add_argument("--kills", type=int, default=3, help="number of kills")
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    text = folder / "text.txt"
    with text.open("w", encoding="utf-8") as stream:
      stream.writelines(f"{line}\n" for line in make_lines(options.lines))
    make_encoder(folder / "encoder")
    samples, seconds = embed(folder, text, options.lines, options.kills)
    wrong = wrong_lines(folder, options.lines)
  early = max(size for done, size in samples if done <= max(options.lines // 10, _SHARD_LINES))
  peak = max(size for _, size in samples)
  print(
    json.dumps(
      {
        "benchmark": "embed_lines",
        "lines": options.lines,
        "kills": options.kills,
        "device": "cpu",
        **measure.machine("jax"),
        "seconds": round(seconds, 1),
        "lines_per_second": round(options.lines / seconds, 1),
        "early_gb": round(early / 1e9, 3),
        "peak_gb": round(peak / 1e9, 3),
        "lost_or_duplicated": wrong,
        "ratio": round(early / peak, 3),
      }
    )
  )
  if wrong:
    raise SystemExit(f"{wrong} lines were lost, duplicated or moved")


if __name__ == "__main__":
  main()
