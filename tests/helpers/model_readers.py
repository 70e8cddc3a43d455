"""Readers of models with small valid files: vocabularies, tokenizers, parameters, vectors."""

import functools
import io
import json
import pathlib
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import safetensors.numpy
from flax import traverse_util
from trials import Reader

import vmsst
from vmsst.bitext import readers
from vmsst.checkpoints import encoder_json, t5x
from vmsst.checkpoints.importers import (
  bert,
  ems,
  mt5,
  vmsst_release,
  weight_tables,
)
from vmsst.files import atomic_files, work_folders
from vmsst.networks import sentence_encoder, t5
from vmsst.text import hugging_face_vocabulary, vocabularies
from vmsst.vectors import bitext_vectors, shard_files, vector_store

_SENTENCES = ["hello world , how are you today ?", "wie geht es dir , welt ?"] * 9
_SIZES = {
  "vocab_size": 40, "emb_dim": 12, "num_heads": 3, "head_dim": 2, "mlp_dim": 10,
  "num_encoder_layers": 1, "num_decoder_layers": 1, "relpos_buckets": 8,
}  # fmt: skip
_MT5 = {
  "model_type": "mt5", "feed_forward_proj": "gated-gelu", "vocab_size": 40, "d_model": 12,
  "num_heads": 3, "d_kv": 2, "d_ff": 10, "num_layers": 1, "num_decoder_layers": 1,
  "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
  "layer_norm_epsilon": 1e-6,
}  # fmt: skip
_BERT = {
  "model_type": "bert", "vocab_size": 60, "hidden_size": 12, "num_attention_heads": 3,
  "num_hidden_layers": 1, "intermediate_size": 10, "hidden_act": "gelu",
  "max_position_embeddings": 9, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
_NETWORK = sentence_encoder.SentenceEncoder(
  t5.T5Config(vocab_size=259, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1),
  latent_dim=6,
)


def _json(record: Any) -> bytes:
  return json.dumps(record).encode()


def _arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
  random = np.random.default_rng(0)
  return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _below(folder: pathlib.Path) -> dict[str, bytes]:
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


def sentencepiece_model(**options: Any) -> bytes:
  """Returns a small SentencePiece model."""
  import sentencepiece

  stream = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(_SENTENCES), model_writer=stream, vocab_size=40, minloglevel=2,
    hard_vocab_limit=False, **options,
  )  # fmt: skip
  return stream.getvalue()


def _pieces(model: bytes) -> int:
  import sentencepiece

  return sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()


def _tokenizer() -> bytes:
  import tokenizers

  made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
  made.normalizer = tokenizers.normalizers.BertNormalizer()
  made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  made.decoder = tokenizers.decoders.WordPiece()
  marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
  trainer = tokenizers.trainers.WordPieceTrainer(
    vocab_size=60, special_tokens=marks, show_progress=False
  )
  made.train_from_iterator(_SENTENCES, trainer)
  made.post_processor = tokenizers.processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
  )
  return str(made.to_str()).encode()


def _use(vocabulary: Any) -> None:
  vocabulary.encode(["Hello, world?", "", "wie geht’s"], 8)
  vocabulary.decode(range(1, min(vocabulary.size, 50)))


def _use_sentencepiece(folder: pathlib.Path) -> None:
  # A model is kept by its path, which is another one in every case.
  _use(vocabularies.SentencePieceVocabulary(str(folder / "x.model")))


def _use_tokenizer(folder: pathlib.Path) -> None:
  _use(hugging_face_vocabulary.HuggingFaceVocabulary(str(folder / "tokenizer.json")))


def _imports(run: Callable[..., Any], name: str, **files: str) -> Callable[[pathlib.Path], None]:
  """What imports `name` of a folder into `out`, and leaves nothing."""

  def read(folder: pathlib.Path) -> None:
    given = {key: folder / value for key, value in files.items()}
    run(folder / name, folder / "out" / "made", **given)
    assert (folder / "out" / "made" / "checkpoint_0").is_dir()
    shutil.rmtree(folder / "out")

  return read


def _arrays_of(rows: Iterable[weight_tables.Row]) -> dict[str, np.ndarray]:
  return _arrays({row.source: row.shape for row in rows})


def _encoder(folder: pathlib.Path, vocabulary: Any, network: Any = _NETWORK) -> None:
  model = type("Model", (), {
    "network": network, "sentence_encoder": network, "vocabulary": vocabulary, "max_length": 20
  })  # fmt: skip
  encoder_json.save_encoder_assets(model, folder, ["de", "en"])


def _params() -> dict[str, np.ndarray]:
  import jax
  import jax.numpy as jnp

  wanted = jax.eval_shape(_NETWORK.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
  flat = traverse_util.flatten_dict(wanted, sep="/")
  return _arrays({name: tuple(leaf.shape) for name, leaf in flat.items()})


def _load(name: str, folder: pathlib.Path) -> None:
  encoder = vmsst.load(folder / name)
  assert encoder.dimension == 6


@functools.cache
def run_files() -> dict[str, bytes]:
  """Returns a training run, with code that a stranger added."""
  folder = pathlib.Path(tempfile.mkdtemp())
  _encoder(folder, vocabularies.ByteVocabulary())
  t5x.write_params(t5x.epath.Path(folder / "checkpoint_0"), _params())
  files = _below(folder)
  shutil.rmtree(folder)
  # What a stranger may put into the folder of a run; nothing reads it.
  code = b"import os\nos.system('touch ran')\n"
  return {**files, "config.gin": code, "model.py": code, "checkpoint_0/state.pkl": _pickle()}


class _Touch:
  def __reduce__(self) -> Any:
    return pathlib.Path.touch, (pathlib.Path("ran"),)


def _pickle() -> bytes:
  return pickle.dumps(_Touch())


def export_files(spm: bytes) -> dict[str, bytes]:
  """Returns a safetensors export of a T5 encoder with a SentencePiece model."""
  folder = pathlib.Path(tempfile.mkdtemp())
  (folder / "x.model").write_bytes(spm)
  _encoder(folder, vocabularies.SentencePieceVocabulary(str(folder / "x.model")))
  (folder / "x.model").unlink()
  safetensors.numpy.save_file(_params(), folder / "model.safetensors")
  files = _below(folder)
  shutil.rmtree(folder)
  return files


def _vectors() -> dict[str, bytes]:
  folder = pathlib.Path(tempfile.mkdtemp())
  writer = vector_store.Writer(folder, 3, shard_rows=4, settings={"x": 1})
  writer.append(np.arange(18, dtype=np.float32).reshape(6, 3))
  writer.finish()
  files = _below(folder)
  shutil.rmtree(folder)
  return files


def _read_vectors(folder: pathlib.Path) -> None:
  opened = vector_store.open_vectors(folder)
  for shard in opened.shards():
    shard.sum()
  opened[0 : min(len(opened), 6)].sum()


def _resume_vectors(folder: pathlib.Path) -> None:
  # Its own output, if there was no result, and its work folder, if there was one.
  with mock.patch.object(atomic_files, "write_json"), mock.patch.object(work_folders, "clear"):
    vector_store.start(folder, shard_files.Kind(3), [4, 2], {"x": 1})


def _npy(array: np.ndarray) -> bytes:
  stream = io.BytesIO()
  np.save(stream, array)
  return stream.getvalue()


def _teacher(folder: pathlib.Path) -> None:
  bitext = readers.find_bitext(str(folder / "data" / "x.de-en.tsv"))[0]
  array = bitext_vectors.open_vectors(str(folder / "teacher"), bitext)
  array[:10].sum()
  bitext_vectors.check_count(str(folder / "teacher"), bitext, 2)


@functools.cache
def small() -> list[Reader]:
  """Those that take milliseconds."""
  spm, tokenizer = sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1), _tokenizer()
  npy = "teacher/data/x.de-en.tsv.npy"
  taught = {"data/x.de-en.tsv": b"a\tb\nc\td\n", npy: _npy(np.zeros((2, 2, 3), "<f4"))}
  return [
    Reader("SentencePiece model", {"x.model": spm}, _use_sentencepiece),
    Reader(
      "tokenizer.json", {"tokenizer.json": tokenizer}, _use_tokenizer, json=("tokenizer.json",)
    ),
    Reader("vectors", _vectors(), _read_vectors, json=("vectors.json",)),
    Reader("vectors to resume", _vectors(), _resume_vectors, json=("vectors.json",)),
    Reader("vectors of a teacher, npy", taught, _teacher, hostile=(npy,)),
    Reader(
      "vmsst.load of an export",
      export_files(spm),
      functools.partial(_load, "."),
      json=("encoder.json",),
    ),
  ]


@functools.cache
def mt5_files() -> dict[str, bytes]:
  """Returns a Hugging Face folder `m` of mT5, without its vocabulary."""
  weights = safetensors.numpy.save(_arrays_of(mt5.rows(_SIZES)))
  return {"m/config.json": _json(_MT5), "m/model.safetensors": weights}


def bert_files() -> dict[str, bytes]:
  """Returns a sentence-transformers folder `m` of a BERT."""
  bert_sizes = {
    "vocab_size": 60, "emb_dim": 12, "mlp_dim": 10, "num_layers": 1, "max_positions": 9,
    "num_token_types": 2,
  }  # fmt: skip
  bert_weights = _arrays_of(bert.rows(bert_sizes, pooler=True))
  return {
    "m/config.json": _json(_BERT),
    "m/model.safetensors": safetensors.numpy.save(bert_weights),
    "m/tokenizer.json": _tokenizer(),
    "m/modules.json": _json(
      [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
          "idx": 1,
          "name": "1",
          "path": "1_Pooling",
          "type": "sentence_transformers.models.Pooling",
        },
      ]
    ),
    "m/1_Pooling/config.json": _json(
      {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
    ),
    "m/sentence_bert_config.json": _json({"max_seq_length": 8, "do_lower_case": False}),
    "m/config_sentence_transformers.json": _json(
      {"prompts": {"q": "query: "}, "default_prompt_name": "q"}
    ),
  }


def ems_files() -> dict[str, bytes]:
  """Returns a state dict `x.safetensors` of EMS and its vocabulary."""
  spm = sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  sizes = {
    "vocab_size": _pieces(spm),
    "emb_dim": 16,
    "mlp_dim": 24,
    "num_layers": 1,
    "max_positions": 12,
  }
  heads = {"language_dim": None, "share_embedding": True, "projection_dim": 5}
  weights = _arrays_of(ems.rows(sizes | heads))
  table = weights["model.bert.embedding.word_embedding.embedding.weight"]
  weights["model.target_embedding.weight"] = table  # shared
  return {"x.safetensors": safetensors.numpy.save(weights), "x.model": spm}


def vmsst_files() -> dict[str, bytes]:
  """Returns a Hugging Face folder `m` of the released VMSST."""
  released = {
    f"mt5_encoder.{name}": array
    for name, array in _arrays_of(mt5.rows(_SIZES)).items()
    if name.startswith(("enc", "sh"))
  }
  released["projection.weight"] = np.ones((5, 12), np.float32)
  return {
    "m/config.json": _json(_MT5),
    "m/model.safetensors": safetensors.numpy.save(released),
    "m/spiece.model": sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
  }


def _pickled(state_dict: Mapping[str, np.ndarray], **others: Any) -> bytes:
  import torch

  stream = io.BytesIO()
  tensors = {name: torch.from_numpy(array) for name, array in state_dict.items()}
  torch.save({"state_dict": tensors, **others} if others else tensors, stream)
  return stream.getvalue()


def large() -> list[Reader]:
  """Those that take a tenth of a second: they read or write whole checkpoints."""
  spm = sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  weights = _arrays_of(mt5.rows(_SIZES))
  halves = {name: f"{'ab'[place % 2]}.safetensors" for place, name in enumerate(weights)}
  shards = {
    file: safetensors.numpy.save({name: weights[name] for name in weights if halves[name] == file})
    for file in ("a.safetensors", "b.safetensors")
  }
  one = mt5_files()
  sentence_transformers = bert_files()
  ems_one, vmsst_one = ems_files(), vmsst_files()
  ems_weights = safetensors.numpy.load(ems_one["x.safetensors"])
  vmsst_weights = safetensors.numpy.load(vmsst_one.pop("m/model.safetensors"))
  run = run_files()
  return [
    Reader("import mt5", {**one, "m/spiece.model": spm}, _imports(mt5.import_mt5, "m"),
           hostile=tuple(one), json=("m/config.json",), writes=True),
    Reader("import mt5, shards", {
             "m/config.json": _json(_MT5),
             "m/model.safetensors.index.json": _json({"weight_map": halves}),
             **{f"m/{name}": content for name, content in shards.items()}},
           _imports(mt5.import_mt5, "m"), json=("m/model.safetensors.index.json",), writes=True),
    Reader("import bert", sentence_transformers, _imports(bert.import_bert, "m"), writes=True,
           json=tuple(name for name in sentence_transformers if name.endswith("json"))),
    Reader("import ems, torch", {"x.pt": _pickled(ems_weights, epoch=3), "x.model": spm},
           _imports(ems.import_ems, "x.pt", vocabulary="x.model"), writes=True),
    Reader("import ems, safetensors", ems_one,
           _imports(ems.import_ems, "x.safetensors", vocabulary="x.model"), writes=True),
    Reader("import vmsst",
           {**vmsst_one, "m/pytorch_model.bin": _pickled(vmsst_weights)},
           _imports(vmsst_release.import_vmsst, "m"), json=("m/config.json",), writes=True),
    Reader("vmsst.load of a run", run, functools.partial(_load, "."),
           hostile=tuple(name for name in run if not name.endswith((".gin", ".py", ".pkl"))),
           json=tuple(name for name in run if name.endswith(("encoder.json", "_METADATA")))),
  ]  # fmt: skip
