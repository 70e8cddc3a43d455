"""Compares encoding speed with sentence-transformers, on the same encoders.

  python benchmarks/encode.py --data=DATA --encoders all-MiniLM-L6-v2 multilingual-e5-small
  python benchmarks/encode.py --data=DATA --encoders multilingual-e5-small --sentences=20000 \
    --peer_python=peer/bin/python

The encoders are sentence-transformers folders. If you omit --encoders, the encoder is a BERT with
random weights (--layers, --width). Each encoder encodes sentences from DATA/tatoeba, with many
languages in mixed order.

Our variants call `vmsst.load(folder, backend=...).encode` with its default batch size, on all
installed backends. The variant "auto" uses the default backend. The peers call
`SentenceTransformer(folder, backend=...).encode` in float32 on all of its backends, with the
fastest batch size in --batch_sizes. Their ONNX and OpenVINO backends need `pip install
'sentence-transformers[onnx,openvino]'`. If these packages conflict with your installed versions,
install them in a separate environment and pass its interpreter as --peer_python. A backend that
cannot be loaded is skipped, and its output line shows the reason.

Each measurement runs in its own process, and the variants take turns. Times are from strings to
float32 vectors, tokenization included:

* `start`: seconds until the first vector, which includes the import, loading and encoding one
  sentence;
* `one`: seconds for one sentence, the median of 50;
* `first`: seconds of the first call with all sentences, compilation included;
* `rates`: sentences per second, by batch size.

Prints one JSON line per variant after its first run, and a last line with the best values of all
rounds. The ratios in the last line are above 1 if ours is faster. `rate` compares our default
backend with the fastest peer; `one` and `start` compare the times with these names.
`jax_over_torch` compares the rates of JAX and PyTorch. `differences` are the largest differences
from the vectors of PyTorch in float32.

With --device=cuda, the variants are JAX and PyTorch on the GPU, in float32 and bfloat16.
"""

import argparse
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

VARIANTS = {
  "cpu": {
    "vmsst": ("auto", "jax", "onnx"),
    "sentence_transformers": ("torch", "onnx", "openvino"),
  },
  "cuda": {
    "vmsst": ("jax", "jax-bfloat16"),
    "sentence_transformers": ("torch", "torch-bfloat16"),
  },
}
_ONE = 50  # sentences to encode one by one


def read_sentences(data: pathlib.Path, count: int) -> list[str]:
  """Returns sentences from `tatoeba/`, alternating the languages."""
  by_language = []
  for path in sorted((data / "tatoeba").glob("*.gz")):
    if not path.name.endswith(".eng.gz"):
      with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        by_language.append([line.rstrip("\n") for line in stream])
  longest = max(map(len, by_language))
  rows = (lines[i] for i in range(longest) for lines in by_language if i < len(lines))
  return [row for row, _ in zip(rows, range(count), strict=False)]


def save_random(folder: pathlib.Path, sentences: list[str], layers: int, width: int) -> None:
  """Writes an encoder with random weights."""
  import sentence_transformers as st
  import tokenizers
  import transformers
  from sentence_transformers import models

  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  word_pieces = tokenizers.BertWordPieceTokenizer()
  word_pieces.train_from_iterator(
    sentences, vocab_size=8000, special_tokens=words, show_progress=False
  )
  word_pieces.save_model(str(folder))
  tokenizer = transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"))
  tokenizer.save_pretrained(folder / "bert")
  config = transformers.BertConfig(
    vocab_size=8000, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
    intermediate_size=4 * width,
  )  # fmt: skip
  transformers.BertModel(config).save_pretrained(folder / "bert")
  module = models.Transformer(str(folder / "bert"))
  st.SentenceTransformer(modules=[module, models.Pooling(width)]).save(str(folder / "random"))


def given_encoders(options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
  """Returns the folders in --encoders, or writes an encoder with random weights."""
  if options.encoders:
    return options.encoders
  save_random(folder, read_sentences(options.data, 20_000), options.layers, options.width)
  return [str(folder / "random")]


def load(folder: str, library: str, variant: str, device: str) -> Any:
  """Returns an encoder."""
  backend, _, dtype = variant.partition("-")
  if library == "vmsst":
    import vmsst

    return vmsst.load(folder, backend=backend, dtype=dtype or None)  # type: ignore[arg-type]
  import sentence_transformers as st

  arguments = {"dtype": dtype or "float32"} if backend == "torch" else {"export": True}
  if backend == "openvino":  # OpenVINO's default is bfloat16 on some processors.
    arguments["ov_config"] = {"INFERENCE_PRECISION_HINT": "f32"}
  return st.SentenceTransformer(folder, device=device, backend=backend, model_kwargs=arguments)


def measure_variant(options: argparse.Namespace) -> dict[str, Any]:
  """Returns the times of a variant, and writes its vectors to a file."""
  import numpy as np

  library, backend = options.variant
  sentences = read_sentences(options.data, options.sentences)
  start = time.perf_counter()
  encoder = load(options.encoders[0], library, backend, options.device)
  encoder.encode("The first sentence.")
  times: dict[str, Any] = {"start": time.perf_counter() - start}
  singles = []
  for sentence in sentences[:_ONE]:
    start = time.perf_counter()
    encoder.encode(sentence)
    singles.append(time.perf_counter() - start)
  times["one"] = float(np.median(singles))
  sizes = [{"batch_size": size} for size in options.batch_sizes]
  seconds: dict[str, list[float]] = {}
  for _ in range(1 + options.repeats):  # The first call compiles.
    for size in [{}] if library == "vmsst" else sizes:
      start = time.perf_counter()
      vectors = encoder.encode(sentences, **size)
      name = str(size.get("batch_size", "default"))
      seconds.setdefault(name, []).append(time.perf_counter() - start)
  np.save(options.vectors, vectors)
  times["first"] = max(values[0] for values in seconds.values())
  rates = {name: len(sentences) / min(values[1:]) for name, values in seconds.items()}
  return {**times, "rates": rates, "backend": getattr(encoder, "backend", backend)}


def run(
  variant: tuple[str, str], encoder: str, vectors: str, options: argparse.Namespace
) -> dict[str, Any] | str:
  """Returns the result of `measure_variant` in its own process, or why it failed."""
  python = options.peer_python if variant[0] != "vmsst" else sys.executable
  arguments = [f"--data={options.data}", f"--encoders={encoder}", f"--vectors={vectors}",
               f"--sentences={options.sentences}", f"--repeats={options.repeats}",
               f"--device={options.device}",
               "--batch_sizes", *map(str, options.batch_sizes), "--variant", *variant]  # fmt: skip
  environment = {**os.environ, "USE_TF": "0"}
  if options.device == "cpu":
    environment |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [python, __file__, *arguments], capture_output=True, text=True, check=False, env=environment
  )
  if done.returncode:
    return (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
  return json.loads(done.stdout.splitlines()[-1])


def merged(rounds: list[dict[str, Any]]) -> dict[str, Any]:
  """Returns the best times of all rounds."""
  names = rounds[0]["rates"]
  return {
    "backend": rounds[0]["backend"],
    **{key: round(min(result[key] for result in rounds), 4) for key in ("start", "one")},
    "rates": {name: round(max(result["rates"][name] for result in rounds), 1) for name in names},
  }


def compare(encoder: str, folder: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
  """Measures all variants of an encoder, prints them, and returns their ratios."""
  import measure
  import numpy as np

  name, runs = pathlib.Path(encoder).name, {}
  variants = [(key, backend) for key, xs in VARIANTS[options.device].items() for backend in xs]
  for variant in variants:
    result = run(variant, encoder, str(folder / f"{'-'.join(variant)}.npy"), options)
    if isinstance(result, str):
      print(json.dumps({"encoder": name, "variant": variant, "left_out": result}), flush=True)
    else:
      runs[variant] = [result]
      print(json.dumps({"encoder": name, "variant": variant, **result}), flush=True)
  for _ in range(options.rounds - 1):
    for variant, results in runs.items():
      repeated = run(variant, encoder, str(folder / f"{'-'.join(variant)}.npy"), options)
      results += [repeated] if isinstance(repeated, dict) else []
  lines = {variant: merged(results) for variant, results in runs.items()}
  default, torch = variants[0], ("sentence_transformers", "torch")
  if not {default, torch} <= {*lines}:
    raise SystemExit("vmsst or sentence-transformers cannot run here")
  vectors = {
    variant_name: np.load(folder / f"{'-'.join(variant_name)}.npy").astype("f4")
    for variant_name in lines
  }
  rate = {variant: max(line["rates"].values()) for variant, line in lines.items()}
  peers = [variant for variant in lines if variant[0] != "vmsst"]
  default_line, best = lines[default], max(peers, key=lambda variant: rate[variant])
  return {
    "default": default_line["backend"],
    "fastest_peer": best[1],
    "rate": round(rate[default] / rate[best], 3),
    "jax_over_torch": round(rate["vmsst", "jax"] / rate[torch], 3),
    **{
      key: round(min(lines[x][key] for x in peers) / default_line[key], 3)
      for key in ("one", "start")
    },
    "differences": {"-".join(x): float(np.abs(vectors[x] - vectors[torch]).max()) for x in lines},
    "gflops": measure.numpy_gflops(),
  }


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with tatoeba/")
  parser.add_argument("--encoders", nargs="+", help="sentence-transformers folders")
  parser.add_argument("--sentences", type=int, default=2000)
  parser.add_argument(
    "--batch_sizes", type=int, nargs="+", default=[32, 256], help="batch sizes of peers"
  )
  parser.add_argument("--repeats", type=int, default=2, help="timed calls per process")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
  parser.add_argument("--layers", type=int, default=2, help="for the encoder with random weights")
  parser.add_argument("--width", type=int, default=256, help="for the encoder with random weights")
  parser.add_argument("--device", choices=VARIANTS, default="cpu")
  parser.add_argument("--peer_python", default=sys.executable, help="interpreter of the peers")
  parser.add_argument("--variant", nargs=2, help=argparse.SUPPRESS)
  parser.add_argument("--vectors", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.variant:
    print(json.dumps(measure_variant(options)))
    return
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    encoders = given_encoders(options, folder)
    ratios = {pathlib.Path(x).name: compare(x, folder, options) for x in encoders}
  print(json.dumps({"benchmark": "encode", "sentences": options.sentences, "encoders": ratios}))


if __name__ == "__main__":
  main()
