"""Compares encoding with sentence-transformers, on the same encoders.

  python benchmarks/encode.py --data=DATA --encoders all-MiniLM-L6-v2 multilingual-e5-small
  python benchmarks/encode.py --data=DATA --encoders multilingual-e5-small --sentences=20000 \
    --peer_python=peer/bin/python

An encoder is a folder of sentence-transformers; without --encoders, it is a BERT of random weights
with 2 layers of width 256. It encodes sentences of DATA/tatoeba in many languages, in mixed order.

Ours is `vmsst.load(folder, backend=...).encode`, as it is, with every backend that is installed;
"auto" is the default. Peers are `SentenceTransformer(folder, backend=...).encode` with every
backend, in float32, each at its fastest of --batch_sizes. Its ONNX and OpenVINO backends need
`pip install 'sentence-transformers[onnx,openvino]'`, which may require versions of its own:
--peer_python is the interpreter of an environment with them. A backend that cannot be loaded is
left out, with the reason.

Every measurement runs in its own process, and the variants take turns. Times are from strings to
float32 vectors, tokenization included:

* `start`: seconds from the start of Python's work to the first vector: import, load, one sentence;
* `one`: seconds of one sentence, the median of 50;
* `rates`: sentences per second, by batch size ("default": as it is).

Prints one JSON line per variant, and a last one. For each encoder, it has the ratio of the best
rates (ours, with the default backend, over the fastest peer) and of the times of one sentence and
of the start (the peer's over ours), so that above 1 ours is faster; `jax_over_torch` is that of the
rates of these two; `largest_difference` is that of any two vectors.
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

OURS = tuple(("vmsst", backend) for backend in ("auto", "jax", "onnx", "openvino"))
PEERS = tuple(("sentence_transformers", backend) for backend in ("torch", "onnx", "openvino"))
_ONE = 50  # sentences whose times are measured one by one


def read_sentences(data: pathlib.Path, count: int) -> list[str]:
  """Returns sentences of all languages in `tatoeba/`, in turns."""
  by_language = []
  for path in sorted((data / "tatoeba").glob("*.gz")):
    if not path.name.endswith(".eng.gz"):
      with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        by_language.append([line.rstrip("\n") for line in stream])
  longest = max(map(len, by_language))
  rows = (lines[i] for i in range(longest) for lines in by_language if i < len(lines))
  return [row for row, _ in zip(rows, range(count), strict=False)]


def save_random(folder: pathlib.Path, sentences: list[str]) -> None:
  """Writes an encoder of random weights."""
  import sentence_transformers as st
  import tokenizers
  import transformers
  from sentence_transformers import models

  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  made = tokenizers.BertWordPieceTokenizer()
  made.train_from_iterator(sentences, vocab_size=8000, special_tokens=words, show_progress=False)
  made.save_model(str(folder))
  tokenizer = transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"))
  tokenizer.save_pretrained(folder / "bert")
  config = transformers.BertConfig(
    vocab_size=8000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=1024,
  )  # fmt: skip
  transformers.BertModel(config).save_pretrained(folder / "bert")
  module = models.Transformer(str(folder / "bert"))
  st.SentenceTransformer(modules=[module, models.Pooling(256)]).save(str(folder / "random"))


def given_encoders(options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
  """Returns the folders of --encoders, or that of one of random weights, which it writes."""
  if options.encoders:
    return options.encoders
  save_random(folder, read_sentences(options.data, 20_000))
  return [str(folder / "random")]


def load(folder: str, library: str, backend: str) -> Any:
  """Returns an encoder."""
  if library == "vmsst":
    import vmsst

    return vmsst.load(folder, backend=backend)  # type: ignore[arg-type]
  import sentence_transformers as st

  arguments: dict[str, Any] = {} if backend == "torch" else {"export": True}
  if backend == "openvino":  # by default, bfloat16 on processors that have it
    arguments["ov_config"] = {"INFERENCE_PRECISION_HINT": "f32"}
  return st.SentenceTransformer(folder, device="cpu", backend=backend, model_kwargs=arguments)


def measure_variant(options: argparse.Namespace) -> dict[str, Any]:
  """Returns the times of a variant; writes its vectors."""
  import numpy as np

  library, backend = options.variant
  sentences = read_sentences(options.data, options.sentences)
  start = time.perf_counter()
  encoder = load(options.encoders[0], library, backend)
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
  for _ in range(1 + options.repeats):  # the first call compiles
    for size in [{}] if library == "vmsst" else sizes:
      start = time.perf_counter()
      vectors = encoder.encode(sentences, **size)
      name = str(size.get("batch_size", "default"))
      seconds.setdefault(name, []).append(time.perf_counter() - start)
  np.save(options.vectors, vectors)
  rates = {name: len(sentences) / min(values[1:]) for name, values in seconds.items()}
  return {**times, "rates": rates, "backend": getattr(encoder, "backend", backend)}


def run(
  variant: tuple[str, str], encoder: str, vectors: str, options: argparse.Namespace
) -> dict[str, Any] | str:
  """Returns the result of `measure_variant` in its own process, or why it failed."""
  python = options.peer_python if variant in PEERS else sys.executable
  arguments = [f"--data={options.data}", f"--encoders={encoder}", f"--vectors={vectors}",
               f"--sentences={options.sentences}", f"--repeats={options.repeats}",
               "--batch_sizes", *map(str, options.batch_sizes), "--variant", *variant]  # fmt: skip
  environment = {**os.environ, "USE_TF": "0", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
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
    **{key: round(min(each[key] for each in rounds), 4) for key in ("start", "one")},
    "rates": {name: round(max(each["rates"][name] for each in rounds), 1) for name in names},
  }


def compare(encoder: str, folder: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
  """Measures all variants of an encoder, prints them, and returns their ratios."""
  import measure
  import numpy as np

  name, runs = pathlib.Path(encoder).name, {}
  for variant in (*OURS, *PEERS):
    found = run(variant, encoder, str(folder / f"{'-'.join(variant)}.npy"), options)
    if isinstance(found, str):
      print(json.dumps({"encoder": name, "variant": variant, "left_out": found}), flush=True)
    else:
      runs[variant] = [found]
  for _ in range(options.rounds - 1):
    for variant, own in runs.items():
      again = run(variant, encoder, str(folder / f"{'-'.join(variant)}.npy"), options)
      own += [again] if isinstance(again, dict) else []
  lines = {variant: merged(own) for variant, own in runs.items()}
  for variant, line in lines.items():
    print(json.dumps({"encoder": name, "variant": variant, **line}), flush=True)
  reference, *others = (np.load(folder / f"{'-'.join(variant)}.npy") for variant in lines)
  rate = {variant: max(line["rates"].values()) for variant, line in lines.items()}
  peers = [variant for variant in lines if variant in PEERS]
  if not peers:
    raise SystemExit("no peer can run here; install sentence-transformers")
  ours, best = lines[OURS[0]], max(peers, key=lambda variant: rate[variant])
  return {
    "default": ours["backend"],
    "fastest_peer": best[1],
    "rate": round(rate[OURS[0]] / rate[best], 3),
    "jax_over_torch": round(rate["vmsst", "jax"] / rate["sentence_transformers", "torch"], 3),
    **{key: round(min(lines[x][key] for x in peers) / ours[key], 3) for key in ("one", "start")},
    "largest_difference": float(max(np.abs(x - reference).max() for x in others)),
    "gflops": measure.numpy_gflops(),
  }


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with tatoeba/")
  parser.add_argument("--encoders", nargs="+", help="folders of sentence-transformers")
  parser.add_argument("--sentences", type=int, default=2000)
  parser.add_argument("--batch_sizes", type=int, nargs="+", default=[32, 256], help="of peers")
  parser.add_argument("--repeats", type=int, default=2, help="timed calls per process")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
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
