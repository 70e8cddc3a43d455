"""Compares encoding speed with sentence-transformers and transformers on the same weights.

  python benchmarks/encode.py --data=DATA
  python benchmarks/encode.py --data=DATA --models mt5 --sentences=2000 --rounds=1
  python benchmarks/encode.py --data=DATA --sentences=1000 --rounds=1 --peer_batch_sizes=32 \
    --models bert_12x384 bert_12x768 labse bert_24x1024 mt5_24x1024

It requires torch, transformers and sentence-transformers. Backends need their packages: onnx,
onnxruntime, openvino, and for sentence-transformers also optimum-onnx and optimum-intel, which
require older versions of it. A backend that cannot encode a sentence, or gives other vectors, is
left out, with the reason.

DATA contains the folder `tatoeba/` of LASER. The benchmark encodes 5,000 sentences, 1,000 each of
deu, fra, rus, cmn and ara, in mixed order. Each model has the shape of `SHAPES` and the same random
weights and tokenizer in all libraries:

* `bert`: by default 2 layers of width 256; others have the shapes of released BERT and XLM-R
  encoders;
* `mt5`: by default the encoder of mt5-small.

Ours are `vmsst.load(...).encode` with each of its backends. Peers are sentence-transformers with
each of its backends, at the fastest batch size of --peer_batch_sizes for 1,000 sentences, and for
mT5 also MT5EncoderModel of transformers, on batches sorted by length and padded to the longest.
Peers that quantize to int8 have lines of their own, with the mean and the lowest cosine of their
vectors with those in float32.

The tokenizer has 16,000 tokens; a released one with 250,000 gives fewer tokens per sentence.

The time is that from strings to float32 vectors, tokenization included. The first call, which
compiles, is reported as `first_call_seconds`. Each measurement runs in its own process, and the
variants take turns. With --device=gpu, JAX and PyTorch run on the first GPU; other backends run on
CPUs, in float32.

Prints one JSON line per variant and a last one: `ratio` is the smallest of the models' ratios of
median sentences per second, our fastest backend over the fastest peer in float32, above 1 if ours
is faster; `memory_ratio` compares the peak memory of these two, loading included. On a shared
machine, `ratio_of_cpu_seconds` is more reliable. `largest_difference` is that of any two vectors,
`matmul_gflops` the host's rate of float32 products of 2048 x 2048.
"""

import argparse
import dataclasses
import gzip
import importlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

LANGUAGES = ("deu", "fra", "rus", "cmn", "ara")


def bert(layers: int, width: int, heads: int, tokens: int) -> dict[str, int]:
  """Returns the configuration of a BERT with feed-forward layers of four times its width."""
  return {
    "vocab_size": tokens,
    "hidden_size": width,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "intermediate_size": 4 * width,
  }


def mt5(layers: int, width: int, heads: int, feed_forward: int) -> dict[str, Any]:
  """Returns the configuration of an mT5."""
  return {
    "vocab_size": 250_112,
    "d_model": width,
    "d_kv": 64,
    "num_heads": heads,
    "num_layers": layers,
    "d_ff": feed_forward,
    "feed_forward_proj": "gated-gelu",
  }


TOKENS = 16_000
SHAPES = {
  "bert": bert(2, 256, 4, TOKENS),
  "bert_12x384": bert(12, 384, 12, 250_037),
  "bert_12x768": bert(12, 768, 12, 250_002),
  "labse": bert(12, 768, 12, 501_153),
  "bert_24x1024": bert(24, 1024, 16, 250_002),
  "mt5": mt5(8, 512, 6, 1024),
  "mt5_24x1024": mt5(24, 1024, 16, 2816),
}
_MAX_LENGTH = 512
TORCH = {"cpu": "cpu", "gpu": "cuda"}  # names of devices
ENVIRONMENTS = {
  "cpu": {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
  "gpu": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # leaves memory for PyTorch
}
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
# Versions of transformers that support it fail on its Keras 3.
_WITHOUT_TENSORFLOW = {"USE_TF": "0"}

Encode = Callable[[list[str]], np.ndarray]


def read_sentences(data: pathlib.Path, side: str = "") -> list[str]:
  """Returns 1,000 sentences of each language, or their translations, in mixed order."""
  sentences = []
  for code in LANGUAGES:
    path = data / "tatoeba" / f"tatoeba.{code}-eng.{side or code}.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
      sentences += [line.rstrip("\n") for line in stream]
  order_N = np.random.default_rng(0).permutation(len(sentences))
  return [sentences[i] for i in order_N]


# --------------------------------------------------------------------------------------------
# The models on disk


def is_mt5(name: str) -> bool:
  return "d_model" in SHAPES[name]


def make_models(names: list[str], data: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes models with random weights in the formats of transformers and of this library."""
  import torch
  import transformers
  from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

  from vmsst.checkpoints.importers import encoders as importer

  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  tokenizer = Tokenizer(models.Unigram())
  tokenizer.normalizer = normalizers.NFKC()
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
  trainer = trainers.UnigramTrainer(
    vocab_size=TOKENS, special_tokens=special, unk_token="[UNK]", show_progress=False
  )
  tokenizer.train_from_iterator(read_sentences(data) + read_sentences(data, "eng"), trainer)
  ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
  tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=ids
  )
  fast = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    model_max_length=_MAX_LENGTH,
    model_input_names=["input_ids", "attention_mask"],  # mT5 has no `token_type_ids`
    **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
  )
  torch.manual_seed(0)
  for name in names:
    if is_mt5(name):
      model = transformers.MT5EncoderModel(transformers.MT5Config(**SHAPES[name]))
    else:
      model = transformers.BertModel(transformers.BertConfig(**SHAPES[name]))
    model.save_pretrained(folder / name)
    fast.save_pretrained(folder / name)
    if is_mt5(name):
      save_mt5(folder / name, folder / f"{name}.vmsst")
    else:
      importer.import_encoder(folder / name, folder / f"{name}.vmsst")


def save_mt5(folder: pathlib.Path, target: pathlib.Path) -> None:
  """Writes an MT5EncoderModel as an encoder of this library."""
  from vmsst.checkpoints import encoder_json, hugging_face, tensors
  from vmsst.checkpoints.importers import mt5, weight_tables
  from vmsst.data import hugging_face_vocabulary

  sizes = mt5.read_config(folder) | {"num_decoder_layers": 0}
  stored = hugging_face.open_tensors(folder)
  rows, _ = mt5.match(stored, sizes, folder)
  vocabulary = hugging_face_vocabulary.HuggingFaceVocabulary(str(folder / "tokenizer.json"))
  assets = mt5.encoder_assets(sizes, vocabulary, sizes["emb_dim"], head=False)
  encoder_json.save_assets(dataclasses.replace(assets, max_length=_MAX_LENGTH), target)
  tensors.write_file(target / "model.safetensors", weight_tables.to_parameters(rows, stored))


# --------------------------------------------------------------------------------------------
# The variants: functions of sentences


def ours(name: str, folder: pathlib.Path, backend: str, options: argparse.Namespace) -> Encode:
  import vmsst

  dtype = {"dtype": options.dtype} if backend == "jax" else {}
  return vmsst.load(folder / f"{name}.vmsst", backend=backend, **dtype).encode


def save_sentence_transformers(name: str, folder: pathlib.Path, backend: str) -> None:
  """Writes a model for a backend of sentence-transformers."""
  import sentence_transformers as st
  from sentence_transformers import models

  kind = backend.removesuffix("_int8")
  export = {} if kind == "torch" else {"export": True}
  transformer = models.Transformer(
    str(folder / name), max_seq_length=_MAX_LENGTH, model_args=export, backend=kind
  )
  pooling = models.Pooling(SHAPES[name]["d_model" if is_mt5(name) else "hidden_size"])
  model = st.SentenceTransformer(modules=[transformer, pooling], device="cpu", backend=kind)
  target = str(folder / f"{name}.{backend}")
  model.save_pretrained(target)
  if kind != backend:
    st.export_dynamic_quantized_onnx_model(model, _QUANTIZED, target)


def sentence_transformers(
  name: str, folder: pathlib.Path, backend: str, options: argparse.Namespace
) -> Encode:
  import sentence_transformers as st
  import torch

  kind = backend.removesuffix("_int8")
  arguments: dict[str, Any] = {}
  if kind != backend:
    arguments["file_name"] = f"onnx/model_qint8_{_QUANTIZED}.onnx"
  if kind == "openvino":  # by default, bfloat16 on processors that have it
    arguments["ov_config"] = {"INFERENCE_PRECISION_HINT": "f32"}
  model = st.SentenceTransformer(
    str(folder / f"{name}.{backend}"),
    device=TORCH[options.device],
    backend=kind,
    model_kwargs=arguments,
  )
  if kind == "torch":
    model.to(getattr(torch, options.dtype))
  return lambda sentences: model.encode(sentences, batch_size=options.batch_size)


def transformers_mt5(
  name: str, folder: pathlib.Path, backend: str, options: argparse.Namespace
) -> Encode:
  del backend
  import torch
  import transformers

  batch_size, device = options.batch_size, TORCH[options.device]
  model = transformers.MT5EncoderModel.from_pretrained(folder / name).eval()
  model.to(device, getattr(torch, options.dtype))
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder / name)
  width = SHAPES[name]["d_model"]

  @torch.inference_mode()
  def encode(sentences: list[str]) -> np.ndarray:
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    vectors_ND = np.empty((len(sentences), width), np.float32)
    for start in range(0, len(order), batch_size):
      index_B = order[start : start + batch_size]
      batch = tokenizer(
        [sentences[i] for i in index_B],
        padding=True,
        truncation=True,
        max_length=_MAX_LENGTH,
        return_tensors="pt",
      ).to(device)
      hidden_BTD = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)[0]
      mask_BT1 = batch.attention_mask[:, :, None].float()
      vectors_ND[index_B] = ((hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)).cpu()
    return vectors_ND

  return encode


MAKERS: dict[str, Callable[[str, pathlib.Path, str, argparse.Namespace], Encode]] = {
  "vmsst": ours,
  "sentence_transformers": sentence_transformers,
  "transformers": transformers_mt5,
}
_OURS = tuple(("vmsst", backend) for backend in ("jax", "onnx", "openvino"))
_PEERS = tuple(("sentence_transformers", backend) for backend in ("torch", "onnx", "openvino"))
_PEER_OF_MT5 = ("transformers", "torch")
_INT8 = ("sentence_transformers", "onnx_int8")
_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}
# Instructions of 8-bit products, in the name of sentence-transformers' files.
_QUANTIZED = "avx512_vnni"

Variant = tuple[str, str, str]  # model, library and backend


def check_vectors(
  vectors_ND: np.ndarray, expected_ND: np.ndarray, library: str, backend: str, dtype: str
) -> float:
  """Returns the largest difference from the expected vectors, 0 in int8.

  Raises:
    ValueError: it is too large.
  """
  if (library, backend) == _INT8:
    return 0.0
  difference = float(np.abs(vectors_ND - expected_ND).max())
  if difference > TOLERANCES[dtype]:
    raise ValueError(f"{library}/{backend}: vectors differ by {difference:.3g} from ours")
  return difference


def prepared_variants(
  name: str, folder: pathlib.Path, options: argparse.Namespace
) -> list[Variant]:
  """Returns the variants that encode a sentence of this model here; prints why others do not."""
  found = []
  sentences = ["A sentence."]
  expected_ND = ours(name, folder, "jax", options)(sentences)
  for library, backend in (*_OURS, *_PEERS, _INT8, *[_PEER_OF_MT5] * is_mt5(name)):
    everywhere = backend in ("jax", "torch")
    if not everywhere and (options.device, options.dtype) != ("cpu", "float32"):
      continue
    try:
      for package in _PACKAGES.get(backend.removesuffix("_int8"), ()):
        importlib.import_module(package)
      if library == "sentence_transformers":
        save_sentence_transformers(name, folder, backend)
        trial = argparse.Namespace(**vars(options) | {"batch_size": 1})
        vectors_ND = sentence_transformers(name, folder, backend, trial)(sentences)
        check_vectors(vectors_ND, expected_ND, library, backend, options.dtype)
    except Exception as error:  # each package has its own
      reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
      line = {"model": name, "library": library, "backend": backend, "left_out": reason}
      print(json.dumps({"benchmark": "encode", **line}), flush=True)
      continue
    found.append((name, library, backend))
  return found


# --------------------------------------------------------------------------------------------
# One measurement


def measure_variant(options: argparse.Namespace) -> dict[str, Any]:
  """Returns the times of a variant, with the first call separate, and its memory."""
  folder, sentences = pathlib.Path(options.folder), read_sentences(options.data)
  sentences = sentences[: options.sentences]
  model, library, backend = options.measure.split("/")
  encode = MAKERS[library](model, folder, backend, options)
  load_peak, loaded = measure.resident_bytes(peak=True), measure.resident_bytes()
  measure.reset_peak()
  vectors = []

  def run() -> None:
    vectors[:] = [encode(sentences)]

  first = measure.timed(run, 1, warm_up=0)
  times = measure.timed(run, options.repeats, warm_up=0)
  np.save(options.vectors, vectors[0])
  return {
    **times,
    "first": first["seconds"],
    "load_peak": load_peak,
    "loaded": loaded,
    "peak": measure.resident_bytes(peak=True),
    "matmul_gflops": measure.matmul_gflops(2048),
    "device": measure.jax_device(),
  }


def run(
  variant: Variant,
  batch_size: int | None,
  path: pathlib.Path,
  options: argparse.Namespace,
  **others: int,
) -> dict[str, Any]:
  """Returns the result of `measure_variant` in its own process, with other values of options."""
  own = [f"--measure={'/'.join(variant)}", f"--folder={path}"]
  own += [f"--{name}={value}" for name, value in others.items()]
  own += [f"--vectors={path / '-'.join(variant)}.npy"]
  own += [] if batch_size is None else [f"--batch_size={batch_size}"]
  environment = ENVIRONMENTS[options.device] | _WITHOUT_TENSORFLOW
  return measure.in_own_process(__file__, [*sys.argv[1:], *own], "/".join(variant), environment)


# --------------------------------------------------------------------------------------------
# All of them


def best_batch_size(
  variant: Variant, folder: pathlib.Path, options: argparse.Namespace, sentences: int
) -> int | None:
  """Returns the fastest batch size of a peer; None for ours."""
  if variant[1] == "vmsst":
    return None
  sizes = options.peer_batch_sizes
  if len(sizes) == 1:
    return sizes[0]
  return min(
    sizes,
    key=lambda size: min(
      run(variant, size, folder, options, repeats=1, sentences=sentences)["seconds"]
    ),
  )


def report(
  variant: Variant, runs: list[dict], batch_size: int | None, count: int
) -> dict[str, Any]:
  """Returns the line of a variant."""
  seconds = measure.all_of(runs, "seconds")
  return {
    "benchmark": "encode",
    "model": variant[0],
    "library": variant[1],
    "backend": variant[2],
    "device": runs[0]["device"],
    **measure.machine("jax", "torch", "transformers", "sentence-transformers"),
    "sentences": count,
    "batch_size": batch_size,
    "runs": len(seconds),
    "sentences_per_second": round(count / statistics.median(seconds), 1),
    "seconds": measure.summary(seconds),
    "cpu_seconds": measure.summary(measure.all_of(runs, "cpu_seconds")),
    "first_call_seconds": measure.summary(measure.all_of(runs, "first")),
    "load_peak_gb": round(max(each["load_peak"] for each in runs) / 1e9, 3),
    "loaded_gb": round(max(each["loaded"] for each in runs) / 1e9, 3),
    "peak_gb": round(max(each["peak"] for each in runs) / 1e9, 3),
    "matmul_gflops": round(statistics.median(each["matmul_gflops"] for each in runs), 1),
  }


def ratios(ours: dict, peer: dict) -> dict[str, float]:
  return {
    "ratio": peer["seconds"]["median"] / ours["seconds"]["median"],
    "ratio_of_minima": peer["seconds"]["min"] / ours["seconds"]["min"],
    "ratio_of_cpu_seconds": peer["cpu_seconds"]["median"] / ours["cpu_seconds"]["median"],
    "ratio_with_first_call": (
      (peer["first_call_seconds"]["median"]) / ours["first_call_seconds"]["median"]
    ),
    "memory_ratio": max(peer["load_peak_gb"], peer["peak_gb"])
    / max(ours["load_peak_gb"], ours["peak_gb"]),
  }


def fastest(lines: dict[Variant, dict], own: bool) -> dict[str, Any]:
  """Returns the line of our fastest backend, or of the fastest peer in float32."""
  chosen = [
    line
    for variant, line in lines.items()
    if (variant[1] == "vmsst") == own and variant[1:] != _INT8
  ]
  return min(chosen, key=lambda line: line["seconds"]["median"])


def compared(
  lines: dict[Variant, dict], vectors: dict[Variant, np.ndarray], dtype: str
) -> dict[str, Any]:
  """Returns the ratios of a model, and the largest difference of vectors but those in int8.

  Adds the cosines of vectors that were computed in int8 to their lines.

  Raises:
    ValueError: vectors differ too much.
  """
  reference_ND = next(vectors[variant] for variant in lines if variant[1] == "vmsst")
  largest = 0.0
  for variant, found_ND in vectors.items():
    if variant[1:] == _INT8:
      pairs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (reference_ND, found_ND))
      cosine_N = np.einsum("nd,nd->n", *pairs)
      both = {"mean": float(cosine_N.mean()), "min": float(cosine_N.min())}
      lines[variant]["cosine_with_float32"] = {name: round(x, 5) for name, x in both.items()}
      continue
    largest = max(largest, check_vectors(found_ND, reference_ND, *variant[1:], dtype))
  own, peer = (fastest(lines, is_own) for is_own in (True, False))
  names = {"ours": own["backend"], "peer": f"{peer['library']}/{peer['backend']}"}
  return {**names, **ratios(own, peer), "largest_difference": largest}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with tatoeba/")
  parser.add_argument("--models", nargs="+", default=["bert", "mt5"], choices=list(SHAPES))
  parser.add_argument("--sentences", type=int, default=5000, help="number of sentences")
  parser.add_argument("--repeats", type=int, default=3, help="timed calls per process")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
  parser.add_argument("--peer_batch_sizes", type=int, nargs="+", default=[32, 128])
  parser.add_argument("--device", default="cpu", choices=TORCH, help="default: cpu")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--measure", help=argparse.SUPPRESS)
  parser.add_argument("--folder", help=argparse.SUPPRESS)
  parser.add_argument("--vectors", help=argparse.SUPPRESS)
  parser.add_argument("--batch_size", type=int, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if min(options.repeats, options.rounds) < 1:
    parser.error("--repeats and --rounds must be at least 1")
  if options.measure:
    print(json.dumps(measure_variant(options)))
    return

  os.environ.update(_WITHOUT_TENSORFLOW)
  count = min(options.sentences, len(read_sentences(options.data)))
  results: dict[str, dict[str, Any]] = {}
  rates = []
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    make_models(options.models, options.data, folder)
    for model in options.models:
      variants = prepared_variants(model, folder, options)
      if all(variant[1] == "vmsst" for variant in variants):
        raise SystemExit(f"{model}: no peer can run here; install sentence-transformers")
      sizes = {each: best_batch_size(each, folder, options, min(count, 1000)) for each in variants}
      runs: dict[Variant, list[dict]] = {variant: [] for variant in variants}
      for _ in range(options.rounds):
        for variant in variants:
          runs[variant].append(run(variant, sizes[variant], folder, options, sentences=count))
      lines = {each: report(each, runs[each], sizes[each], count) for each in variants}
      vectors = {each: np.load(folder / f"{'-'.join(each)}.npy") for each in variants}
      results[model] = compared(lines, vectors, options.dtype)
      rates += [line["matmul_gflops"] for line in lines.values()]
      for line in lines.values():
        print(json.dumps(line), flush=True)
  first = next(iter(results.values()))
  numbers = [name for name, value in first.items() if not isinstance(value, str)]
  total = {name: min(result[name] for result in results.values()) for name in numbers}
  total["largest_difference"] = max(result["largest_difference"] for result in results.values())
  by_model = {
    model: {
      name: value if isinstance(value, str) else float(f"{value:.3g}")
      for name, value in result.items()
    }
    for model, result in results.items()
  }
  rounded = {name: float(f"{value:.4g}") for name, value in total.items()}
  rate = statistics.median(rates)
  print(json.dumps({"benchmark": "encode", **rounded, "matmul_gflops": rate, "by_model": by_model}))


if __name__ == "__main__":
  main()
