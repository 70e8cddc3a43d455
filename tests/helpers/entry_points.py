"""All entry points that read or write files: readers of models and vectors, and subcommands.

Readers have small valid files; the subcommands of `vmsst` that write an output have small inputs.
"""

import functools
import io
import json
import pathlib
import pickle
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import fake_encoders
import killed_commands
import released_folders
import safetensors.numpy
import tiny_encoders
import tiny_tokenizers
import trials
from trials import Reader

import vmsst
from vmsst.cli import vector_jobs
from vmsst.data import vocabularies
from vmsst.encoder import encoding, loading
from vmsst.formats import ems, encoder_json, mt5, tokenizers
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks
from vmsst.search import vector_store

_SIZES = {
  "vocab_size": 40, "emb_dim": 12, "num_heads": 3, "head_dim": 2, "mlp_dim": 10,
  "num_encoder_layers": 1, "num_decoder_layers": 1, "relpos_buckets": 8,
}  # fmt: skip
_MT5 = json.dumps(released_folders.mt5_config(_SIZES)).encode()
Files = dict[str, bytes]
Write = Callable[[pathlib.Path, pathlib.Path], Any]


class Touch:
  """An object whose pickle writes a file when loaded."""

  def __reduce__(self) -> Any:
    return pathlib.Path.touch, (pathlib.Path("ran"),)


def made(write: Write, files: Mapping[str, bytes] = {}) -> Files:
  """Returns the files, below `m`, that `write` makes of those in another folder `m`."""
  with tempfile.TemporaryDirectory() as name:
    folder = trials.lay_out(files, pathlib.Path(name, "in"))
    (folder / "m").mkdir(parents=True, exist_ok=True)
    write(folder / "m", pathlib.Path(name, "out"))
    found = killed_commands.contents(pathlib.Path(name, "out"))
    return {f"m/{path}": content for path, content in found.items()}


@functools.cache
def sentencepiece_model() -> bytes:
  """Returns a small SentencePiece model."""
  return tiny_tokenizers.sentencepiece_model(
    ["hello world , how are you today ?", "wie geht es dir , welt ?"]
  )


def mt5_files() -> Files:
  """Returns a Hugging Face folder `m` of mT5, without its vocabulary."""
  weights = safetensors.numpy.save(released_folders.weights(mt5.rows(_SIZES)))
  return {"m/config.json": _MT5, "m/model.safetensors": weights}


def bert_files() -> Files:
  """Returns a sentence-transformers folder `m` of a BERT."""
  changes = {
    "sentence_bert_config.json": {"max_seq_length": 8, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"q": "query: "}, "default_prompt_name": "q"},
  }
  return made(lambda _, folder: released_folders.write(folder, "bert", changes))


def ems_files() -> Files:
  """Returns a state dict `x.safetensors` of EMS and its vocabulary."""
  import sentencepiece

  model = sentencepiece_model()
  pieces = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
  sizes = {
    "vocab_size": pieces, "emb_dim": 16, "num_heads": 2, "mlp_dim": 24, "num_layers": 1,
    "max_positions": 12, "language_dim": None, "share_embedding": True, "projection_dim": 5,
  }  # fmt: skip
  weights = released_folders.weights(ems.rows(sizes))
  table = weights["model.bert.embedding.word_embedding.embedding.weight"]
  weights["model.target_embedding.weight"] = table  # shared
  return {"x.safetensors": safetensors.numpy.save(weights), "x.model": model}


def _pickled(state_dict: bytes) -> bytes:
  """Returns the content of a safetensors file as torch saves it."""
  import torch

  stream = io.BytesIO()
  tensors = {k: torch.from_numpy(x) for k, x in safetensors.numpy.load(state_dict).items()}
  torch.save({"state_dict": tensors, "epoch": 3}, stream)
  return stream.getvalue()


def run_files() -> Files:
  """Returns a training run `m`, with code that a stranger added."""
  with tempfile.TemporaryDirectory() as name:
    vocabulary = pathlib.Path(name, "x.model")
    vocabulary.write_bytes(sentencepiece_model())
    network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
    model = tiny_encoders.model_of(network, vocabularies.SentencePieceVocabulary(str(vocabulary)))
    run = made(lambda _, out: tiny_encoders.save_run(out, model, languages=["de", "en"]))
  code = b"import os\nos.system('touch ran')\n"
  pickled = pickle.dumps(Touch())
  return {**run, "m/config.gin": code, "m/model.py": code, "m/checkpoint_0/state.pkl": pickled}


def _load(folder: pathlib.Path) -> None:
  assert vmsst.load(folder / "m").encode(["hello world"]).shape == (1, 6)


def _writes(write: Callable[..., Any], name: str = "m", **files: str) -> Any:
  """Returns what imports or exports a file or folder to `out/made`."""

  def read(folder: pathlib.Path) -> None:
    given = {key: folder / value for key, value in files.items()}
    write(folder / name, folder / "out" / "made", **given)
    assert [path.name for path in (folder / "out").iterdir()] == ["made"]

  return read


def _uses(kind: Callable[[str], Any], name: str) -> Any:
  def read(folder: pathlib.Path) -> None:
    vocabulary = kind(str(folder / name))
    vocabulary.encode(["Hello, world?", "", "wie geht’s"], 8)
    vocabulary.decode(range(1, min(vocabulary.size, 50)))

  return read


def _vectors(folder: pathlib.Path) -> None:
  opened = vector_store.open_vectors(folder)
  opened[:].sum()


def all_readers() -> list[Reader]:
  """Returns readers of vocabularies, vectors, checkpoints and exports."""
  model = {"m/spiece.model": sentencepiece_model()}
  ems_one, run = ems_files(), run_files()
  with tempfile.TemporaryDirectory() as name:
    folder = trials.lay_out({"text": b"a\nb\nc\nd\ne\nf\n"}, pathlib.Path(name))
    encoder = fake_encoders.FakeEncoder(fake_encoders.random_vector)
    source = encoding.EncoderSource(encoder, "x")
    vector_jobs.embed(source, [str(folder / "text")], folder / "out")
    vectors = killed_commands.contents(folder / "out")
  return [
    Reader("SentencePiece model", {"x.model": sentencepiece_model()},
           _uses(vocabularies.SentencePieceVocabulary, "x.model")),
    Reader("tokenizer.json", {"x.json": bert_files()["m/tokenizer.json"]},
           _uses(tokenizers.HuggingFaceVocabulary, "x.json")),
    Reader("vectors", vectors, _vectors),
    Reader("vmsst.load of a run", run, _load),
    Reader("vmsst.load of a safetensors export",
           made(functools.partial(released_folders.export, form=encoder_json), run), _load),
    Reader("vmsst.load of a sentence-transformers export",
           made(released_folders.export, run), _load),
    Reader("import mt5", {**mt5_files(), **model}, _writes(released_folders.import_encoder)),
    Reader("import encoder", bert_files(), _writes(released_folders.import_encoder)),
    Reader("import ems, torch",
           {"x.pt": _pickled(ems_one["x.safetensors"]), "x.model": ems_one["x.model"]},
           _writes(released_folders.import_ems, "x.pt", vocabulary="x.model")),
  ]  # fmt: skip


# Arguments of subcommands; OUT stands for the output.
COMMANDS = {
  "embed": "embed encoder a.txt OUT",
  "score": "score encoder a.txt b.txt --output OUT",
  "score by likelihood": "score run a.txt b.txt --output OUT --by likelihood --languages en de",
  "mine": "mine a.txt b.txt OUT --encoder encoder",
  "search": "search b.txt corpus vectors --output OUT --encoder encoder",
  "index": "index vectors OUT --factory IVF2,SQ8",
  "translate": "translate run --to de --input a.txt --output OUT",
  "vocab train": "vocab train --input a.txt --output OUT --size 21",
  **{
    f"export {kind}": f"export {kind} run OUT"
    for kind in ("safetensors", "sentence-transformers", "onnx")
  },
  "data embed": "data embed run OUT t/x.de-en.tsv t/y.fr-en.tsv",
  "data mine-negatives": "data mine-negatives run t/x.de-en.tsv OUT --corpus a.txt",
  "import encoder": "import encoder hub/encoder/m OUT",
  "import ems": "import ems x.safetensors OUT --vocabulary x.model",
  "eval": "eval encoder --data data --out OUT --suite tatoeba",
  "report": "report results --out OUT",
}
FOLDERS = ("embed", "index", "data embed", "eval", "report")
"""Subcommands whose output is a folder that they own while they fill it."""


def write_inputs(folder, encoder=None):
  """Writes all inputs but `encoder`, which computes the vectors: by default that of `run`."""
  network = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
  own = sentence_encoder.SentenceEncoder(network.config, network.latent_dim)
  tiny_encoders.save_run(folder / "run", tiny_encoders.model_of(own, network=network))
  sentences = [f"{a} {b}" for a in ("old", "new", "big") for b in ("house", "river", "road")]
  lines = "".join(f"{x}\n" for x in sentences).encode()
  other = "".join(f"{x[::-1]}\n" for x in sentences).encode()
  pairs = "".join(f"{x[::-1]}\t{x}\n" for x in sentences).encode()
  sides = {f"data/tatoeba/tatoeba.deu-eng.{k}": x for k, x in (("deu", other), ("eng", lines))}
  texts = {"a.txt": lines, "b.txt": other, "corpus": lines}
  texts |= dict.fromkeys(("t/x.de-en.tsv", "t/y.fr-en.tsv"), pairs)
  trials.lay_out({**texts, **sides, **ems_files()}, folder)
  trials.lay_out(bert_files(), folder / "hub" / "encoder")
  encoder = encoder or loading.load(folder / "run")
  source = encoding.EncoderSource(encoder, "encoder")
  vector_jobs.embed(source, [str(folder / "corpus")], folder / "vectors")
  chosen = vmsst.get_benchmarks(["tatoeba"])
  results = vmsst.evaluate(encoder, chosen, folder / "data", name="x")
  trials.lay_out({"results/results.json": json.dumps(results).encode()}, folder)
