"""Measures sentence encoders of 24 and 12 layers on an accelerator: sentences/s and MFU.

  python benchmarks/encode_paper.py
  python benchmarks/encode_paper.py --size=tiny --peak_tflops=0.1 --sentences=1000

Encoders have random weights and are called as `vmsst.load` returns them:

* t5_24l: VMSST's, 24 layers of width 1024 (gin/sizes/24l.gin);
* bert_12l: LaBSE's shape, 12 layers of width 768, first token, pooler, unit length.

Two measurements per batch size: `device` embeds the same batch of random tokens of --length again
and again, and `text` maps sentences of the sample corpus to vectors, tokenizer and transfers
included. MFU counts the encoder's matmuls over the device's bfloat16 peak; of `device` alone, for
lengths of texts vary. Each model runs in its own process, without TensorFlow, SeqIO or PyTorch.

Prints a JSON line per model and batch size, and a last one: `ratio` is the largest MFU of each
model, the smallest of the models, over 0.5.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import measure
from paper_step import TARGET_MFU, encoder_multiplications, peak_tflops

from vmsst.inference import encoder as encoders
from vmsst.networks import bert, sentence_encoder, t5
from vmsst.tasks import sample
from vmsst.text import vocabularies

LANGUAGES = ("ar", "de", "en", "es", "fr", "ru", "tr", "zh")
MODELS = ("t5_24l", "bert_12l")
TINY = {"vocab_size": 4096, "emb_dim": 64, "num_heads": 4, "mlp_dim": 128}
_MAX_LENGTH = 128


def make_network(name: str, options: argparse.Namespace) -> sentence_encoder.SentenceEncoder:
  """Returns the network of a model."""
  tiny = options.size == "tiny"
  numerics = {"dtype": options.dtype, "scan_layers": options.scan_layers}
  if name == "bert_12l":
    sizes = {"vocab_size": 250112, "emb_dim": 768, "num_heads": 12, "mlp_dim": 3072}
    layers = 2 if tiny else 12
    bert_config = bert.BertConfig(
      **(TINY if tiny else sizes),
      num_layers=layers,
      max_positions=512,
      activation="gelu",
      **numerics,
    )
    return sentence_encoder.SentenceEncoder(
      bert_config, bert_config.emb_dim, head=False, pooling="pooler", normalize=True
    )
  sizes = {"vocab_size": 250112, "emb_dim": 1024, "num_heads": 16, "mlp_dim": 2816}
  layers = 2 if tiny else 24
  t5_config = t5.T5Config(**(TINY if tiny else sizes), num_encoder_layers=layers, **numerics)
  return sentence_encoder.SentenceEncoder(t5_config, t5_config.emb_dim)


def seconds_of(run: Callable[[], Any], repeats: int) -> tuple[float, list[float]]:
  """Returns the seconds of a first call, and those of the calls after it."""
  seconds = []
  for _ in range(repeats + 1):
    start = time.perf_counter()
    run()
    seconds.append(time.perf_counter() - start)
  return seconds[0], seconds[1:]


def measure_model(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
  """Yields the line of each batch size."""
  network = make_network(name, options)
  params = jax.jit(lambda rng: network.init(rng, jnp.ones((1, 8), jnp.int32))["params"])(
    jax.random.key(0)
  )
  vocabulary = vocabularies.SentencePieceVocabulary(sample.vocabulary_path())
  encoder = encoders.Encoder(network, params, vocabulary, max_length=_MAX_LENGTH)
  meanings = -(-options.sentences // len(LANGUAGES))
  texts = [sample.sentence(meaning, code) for meaning in range(meanings) for code in LANGUAGES]
  texts = texts[: options.sentences]
  measure.reset_peak()
  embed = jax.jit(lambda params, tokens: sentence_encoder.embed(network, params, tokens))
  device = jax.devices()[0]
  peak = peak_tflops(device, options.peak_tflops)
  for batch_size in options.batch_sizes:
    shape = (batch_size, options.length)
    tokens_BT = jax.random.randint(jax.random.key(1), shape, 5, network.config.vocab_size)

    def run_batches(tokens_BT: jax.Array = tokens_BT) -> None:
      for _ in range(options.batches):
        vectors_BD = embed(params, tokens_BT)
      vectors_BD.block_until_ready()

    first_batch, seconds = seconds_of(run_batches, options.repeats)
    per_second = batch_size * options.batches / statistics.median(seconds)
    multiplications = encoder_multiplications(network.config, options.length)
    tflops = 2 * per_second * multiplications / 1e12
    first_text, text_seconds = seconds_of(
      lambda size=batch_size: encoder.encode(texts, batch_size=size), options.repeats
    )
    text_per_second = len(texts) / statistics.median(text_seconds)
    yield {
      "benchmark": "encode_paper",
      "model": name,
      "device": f"{device.platform} {device.device_kind}",
      "cpus": os.cpu_count(),
      "versions": {each: importlib.metadata.version(each) for each in ("jax", "jaxlib", "flax")},
      **{
        key: getattr(options, key)
        for key in ("size", "dtype", "scan_layers", "length", "sentences")
      },
      "batch_size": batch_size,
      "device_seconds": measure.summary(seconds),
      "device_sentences_per_second": round(per_second, 1),
      "tflops_per_second": round(tflops, 3),
      "mfu": round(tflops / peak, 4) if peak else None,
      "text_seconds": measure.summary(text_seconds),
      "text_sentences_per_second": round(text_per_second, 1),
      "first_call_seconds": [round(first_batch, 1), round(first_text, 1)],
      "peak_gb": round(measure.device_bytes(peak=True) / 1e9, 3),
    }


def in_own_process(name: str) -> list[dict[str, Any]]:
  """Prints the lines of a model as they come, and returns them."""
  command = [sys.executable, __file__, *sys.argv[1:], f"--measure={name}"]
  lines = []
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout is not None
    for line in process.stdout:
      print(line, end="", flush=True)
      lines.append(json.loads(line))
  if process.returncode:
    print(f"{name} failed (exit code {process.returncode})", file=sys.stderr)
  return lines


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
  parser.add_argument("--size", default="paper", choices=("paper", "tiny"))
  parser.add_argument("--dtype", default="bfloat16", choices=t5.DTYPES, help="compute dtype")
  parser.add_argument("--scan_layers", action="store_true", help="compile one layer per encoder")
  parser.add_argument("--length", type=int, default=32, help="tokens per sentence of `device`")
  parser.add_argument("--batch_sizes", type=int, nargs="+", default=[128, 1024])
  parser.add_argument("--batches", type=int, default=20, help="per timed call of `device`")
  parser.add_argument("--sentences", type=int, default=20000, help="of the sample corpus")
  parser.add_argument("--repeats", type=int, default=3, help="timed calls")
  parser.add_argument("--peak_tflops", type=float, help="of the device; default: by its name")
  parser.add_argument("--measure", choices=MODELS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if min(options.repeats, options.batches, options.sentences, *options.batch_sizes) < 1:
    parser.error("--repeats, --batches, --sentences and --batch_sizes must be at least 1")
  if options.measure:
    for line in measure_model(options.measure, options):
      print(json.dumps(line), flush=True)
    return
  best = []
  for name in options.models:
    found = [line["mfu"] for line in in_own_process(name) if line["mfu"]]
    best += [max(found)] if found else []
  ratio = round(min(best) / TARGET_MFU, 3) if best else None
  print(json.dumps({"benchmark": "encode_paper", "ratio": ratio}))


if __name__ == "__main__":
  main()
