"""Imports of mT5 as the start of training."""

import json

import full_disks
import jax
import jax.numpy as jnp
import memory_store
import ml_dtypes
import numpy as np
import pytest
import sentencepiece
import tensorstore
import tiny_encoders
import tiny_mt5
from flax import serialization, traverse_util
from safetensors.numpy import save_file

import vmsst
from vmsst import cli, errors
from vmsst.checkpoints import hugging_face, t5x
from vmsst.checkpoints.importers import mt5, weight_tables
from vmsst.files import storage
from vmsst.networks import t5
from vmsst.networks import vmsst as vmsst_networks

SIZES = {
  "vocab_size": 40,
  "emb_dim": 12,
  "num_heads": 3,
  "head_dim": 2,
  "mlp_dim": 10,
  "num_encoder_layers": 2,
  "num_decoder_layers": 2,
  "relpos_buckets": 8,
  "relpos_max_distance": 20,
}
CONFIG = {
  "model_type": "mt5",
  "feed_forward_proj": "gated-gelu",
  "vocab_size": 40,
  "d_model": 12,
  "num_heads": 3,
  "d_kv": 2,
  "d_ff": 10,
  "num_layers": 2,
  "relative_attention_num_buckets": 8,
  "relative_attention_max_distance": 20,
}
NETWORK = vmsst_networks.VmsstNetwork(
  t5.T5Config(
    vocab_size=40,
    emb_dim=12,
    num_heads=3,
    head_dim=2,
    mlp_dim=10,
    num_encoder_layers=2,
    relpos_buckets=8,
    relpos_max_distance=20,
  ),
  latent_dim=4,
  num_languages=2,
)
VOCABULARY = vmsst.gin_dir().parent / "tasks" / "sample" / "vocabulary.model"
SENTENCES = ["Hello, world!", "Wie geht es dir heute?", ""]
# Parameters that mT5 does not have.
FRESH = (
  "mean/",
  "log_variance/",
  "language_mean/",
  "language_log_variance/",
  "encoder_language_embedder/",
  "decoder/language_embedder/",
  "decoder/layers_0/injection/",
  "decoder/layers_1/injection/",
  "logits_latent/",
)


def attention(place, rng):
  """Returns the weights of an attention as in transformers: [outputs, inputs]."""
  shapes = {"q": (6, 12), "k": (6, 12), "v": (6, 12), "o": (12, 6)}
  return {f"{place}.{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}


def feed_forward(place, rng):
  shapes = {"wi_0": (10, 12), "wi_1": (10, 12), "wo": (12, 10)}
  return {f"{place}.{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}


def weights(seed=0):
  """Returns random weights of a small mT5 by their names in transformers, written out by hand."""
  rng = np.random.default_rng(seed)
  found = {"shared.weight": rng.normal(size=(40, 12)), "lm_head.weight": rng.normal(size=(40, 12))}
  for stack, feed_forward_place in (("encoder", 1), ("decoder", 2)):
    for i in range(2):
      layer = f"{stack}.block.{i}.layer"
      found |= attention(f"{layer}.0.SelfAttention", rng)
      if stack == "decoder":
        found |= attention(f"{layer}.1.EncDecAttention", rng)
      found |= feed_forward(f"{layer}.{feed_forward_place}.DenseReluDense", rng)
      for place in range(feed_forward_place + 1):
        found[f"{layer}.{place}.layer_norm.weight"] = rng.normal(size=12)
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found[bias] = rng.normal(size=(8, 3))
    found[f"{stack}.final_layer_norm.weight"] = rng.normal(size=12)
  return {name: array.astype(np.float32) for name, array in found.items()}


def save_hugging_face(folder, tensors, **config):
  """Saves a Hugging Face folder."""
  folder.mkdir(parents=True, exist_ok=True)
  save_file(tensors, folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps(CONFIG | config))
  return folder


def save_shards(folder, tensors, count=2, **changes):
  """Saves a Hugging Face folder with several weight files; `changes` edits its index by tensor."""
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(CONFIG))
  names = sorted(tensors)
  shard_of = {name: f"model-{i % count}.safetensors" for i, name in enumerate(names)}
  for shard in set(shard_of.values()):
    save_file({name: tensors[name] for name in names if shard_of[name] == shard}, folder / shard)
  index = {"metadata": {}, "weight_map": shard_of | changes}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))
  return folder


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
  folder = tmp_path_factory.mktemp("mt5")
  save_hugging_face(folder / "hf", weights())
  return mt5.import_mt5(folder / "hf", folder / "out")


def test_every_weight_is_where_it_belongs(imported):
  stored, found = weights(), tiny_encoders.read_arrays(imported.checkpoint)

  def expect(name, source, transposed=True):
    array = found.pop(name)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, stored[source].T if transposed else stored[source])

  expect("token_embedder/embedding", "shared.weight", transposed=False)
  expect("logits_hidden/kernel", "lm_head.weight")
  # The paper's two encoders start as one.
  stacks = {
    "encoder": ("encoder", "attention", "pre_attention_layer_norm", 1),
    "language_encoder": ("encoder", "attention", "pre_attention_layer_norm", 1),
    "decoder": ("decoder", "self_attention", "pre_self_attention_layer_norm", 2),
  }
  for ours, (theirs, attention_name, attention_norm, last) in stacks.items():
    bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    expect(f"{ours}/relpos_bias/rel_embedding", bias)
    expect(f"{ours}/{theirs}_norm/scale", f"{theirs}.final_layer_norm.weight")
    for i in range(2):
      layer = f"{theirs}.block.{i}.layer"
      for name, letter in {"query": "q", "key": "k", "value": "v", "out": "o"}.items():
        source = f"{layer}.0.SelfAttention.{letter}.weight"
        expect(f"{ours}/layers_{i}/{attention_name}/{name}/kernel", source)
      for name in ("wi_0", "wi_1", "wo"):
        source = f"{layer}.{last}.DenseReluDense.{name}.weight"
        expect(f"{ours}/layers_{i}/mlp/{name}/kernel", source)
      expect(f"{ours}/layers_{i}/{attention_norm}/scale", f"{layer}.0.layer_norm.weight")
      expect(f"{ours}/layers_{i}/pre_mlp_layer_norm/scale", f"{layer}.{last}.layer_norm.weight")
      if ours == "decoder":
        # The sentence injection, which replaces cross-attention, takes its norm.
        norm = f"{ours}/layers_{i}/pre_injection_layer_norm/scale"
        expect(norm, f"{layer}.1.layer_norm.weight")
  assert not found


def test_with_what_starts_fresh_it_is_the_whole_network(imported):
  shapes = jax.eval_shape(NETWORK.init, jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
  wanted = {n: x.shape for n, x in traverse_util.flatten_dict(shapes, sep="/").items()}
  found = {
    name: array.shape for name, array in tiny_encoders.read_arrays(imported.checkpoint).items()
  }
  fresh = {name for name in wanted if name.startswith(FRESH)}
  assert len({name.split("/kernel")[0] for name in fresh}) >= len(FRESH)
  assert found == {name: shape for name, shape in wanted.items() if name not in fresh}


def test_the_report_accounts_for_every_tensor(imported):
  rows = {row.source: row for row in imported.rows}
  assert set(rows) == set(weights())
  left_out = {name for name, row in rows.items() if not row.targets}
  assert left_out == {name for name in weights() if "EncDecAttention" in name}
  assert {rows[name].note for name in left_out} == {"cross-attention"}
  assert rows["encoder.final_layer_norm.weight"].targets == (
    "encoder/encoder_norm/scale",
    "language_encoder/encoder_norm/scale",
  )
  written = sorted(target for row in imported.rows for target in row.targets)
  assert written == sorted(tiny_encoders.read_arrays(imported.checkpoint))
  assert imported.sizes == SIZES
  text = weight_tables.describe(imported).splitlines()
  assert any(line.startswith("lm_head.weight ") and "logits_hidden" in line for line in text)
  assert f"INITIAL_CHECKPOINT_PATH = '{imported.checkpoint}'" in text
  assert "8 tensors (576 numbers) were left out" in text


def test_copies_of_the_token_table_and_an_unused_table_are_left_out(tmp_path):
  extra = {
    "encoder.embed_tokens.weight": weights()["shared.weight"],
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.ones((8, 3)),
  }
  save_hugging_face(tmp_path / "hf", weights() | extra)
  rows = {row.source: row for row in mt5.import_mt5(tmp_path / "hf", tmp_path / "out").rows}
  assert all(not rows[name].targets and rows[name].note for name in extra)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_shards_become_float32(tmp_path, imported, dtype):
  halved = {name: array.astype(dtype) for name, array in weights().items()}
  save_shards(tmp_path / "hf", halved)
  found = tiny_encoders.read_arrays(mt5.import_mt5(tmp_path / "hf", tmp_path / "out").checkpoint)
  for name, array in tiny_encoders.read_arrays(imported.checkpoint).items():
    np.testing.assert_array_equal(found[name], array.astype(dtype).astype(np.float32))


def test_an_encoder_alone_is_imported_as_such(tmp_path, imported):
  encoder = {n: x for n, x in weights().items() if n.startswith(("encoder.", "shared."))}
  alone = mt5.import_mt5(save_hugging_face(tmp_path / "hf", encoder), tmp_path / "out")
  whole, found = (
    tiny_encoders.read_arrays(imported.checkpoint),
    tiny_encoders.read_arrays(alone.checkpoint),
  )
  assert set(found) == {n for n in whole if not n.startswith(("decoder/", "logits_"))}
  for name, array in found.items():
    np.testing.assert_array_equal(array, whole[name])
  assert "only CONTRASTIVE" in weight_tables.describe(alone)


def with_vocabulary(folder, content=None):
  """Writes a small mT5 with a vocabulary; returns the folder."""
  tiny_mt5.save_mt5(folder)
  (folder / "spiece.model").write_bytes(content or VOCABULARY.read_bytes())
  return folder


def test_with_its_vocabulary_the_encoder_can_be_loaded(tmp_path, capsys):
  out = tmp_path / "a" / "out"
  assert cli.main(["import", "mt5", str(with_vocabulary(tmp_path / "hf")), str(out)]) == 0
  assert (out / "vocabulary.model").read_bytes() == VOCABULARY.read_bytes()
  printed = capsys.readouterr().out
  assert f"VOCABULARY_PATH = '{out}/vocabulary.model'" in printed
  assert f"vmsst.load('{out}') opens the encoder" in printed
  encoder = vmsst.load(out)
  assert (encoder.dimension, encoder.max_length) == (16, 512)
  assert np.ptp(encoder.encode(SENTENCES), axis=0).min() > 0
  not_a_vocabulary = with_vocabulary(tmp_path / "other", b"pieces")
  assert cli.main(["import", "mt5", str(not_a_vocabulary), str(tmp_path / "b")]) == 1
  assert not (tmp_path / "b").exists()


def test_a_setting_of_the_tokenizer_that_cannot_be_expressed_is_refused(tmp_path):
  folder = with_vocabulary(tmp_path / "hf")
  (folder / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
  with pytest.raises(errors.InputError, match=r"tokenizer_config\.json: 'truncation_side'"):
    mt5.import_mt5(folder, tmp_path / "out")


def test_its_vectors_are_the_means_of_the_states_in_transformers(tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  folder = with_vocabulary(tmp_path / "hf")
  found_ND = vmsst.load(mt5.import_mt5(folder, tmp_path / "out").checkpoint).encode(SENTENCES)
  theirs = transformers.MT5EncoderModel.from_pretrained(folder).eval()
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(VOCABULARY))
  for text, found_D in zip(SENTENCES, found_ND, strict=True):
    ids_1T = torch.tensor([[*pieces.encode(text), pieces.eos_id()]])
    with torch.no_grad():
      hidden_1TD = theirs(ids_1T).last_hidden_state
    np.testing.assert_allclose(found_D, hidden_1TD[0].mean(0).numpy(), atol=1e-5)


# --------------------------------------------------------------------------------------------
# T5X


def t5x_params():
  """Returns the same mT5 with T5X's names and layouts."""
  stored = weights()
  sources = {row.targets[0]: row.source for row in mt5.rows(SIZES)}
  assert set(sources.values()) == set(stored)
  return {
    name: stored[source] if source == "shared.weight" else np.ascontiguousarray(stored[source].T)
    for name, source in sources.items()
  }


def save_legacy(folder, params, *, remote=False, dtype="float32", **descriptions):
  """Saves a checkpoint as T5X did before Orbax: arrays in Zarr, norms in msgpack."""
  folder.mkdir(parents=True)
  target = {}
  for name, array in params.items():
    if array.ndim == 1:
      target[name] = array
      continue
    place = f"target.{name.replace('/', '.')}"
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder / place}/"}}
    metadata = {"shape": list(array.shape), "compressor": {"id": "gzip"}}
    stored = tensorstore.open(
      {**spec, "dtype": dtype, "metadata": metadata}, create=True, open=True
    ).result()
    stored.write(array.astype(dtype)).result()
    kvstore = {"driver": "file", "path": place}
    described = {"driver": "zarr", "dtype": dtype, "kvstore": kvstore, "metadata": metadata}
    if remote:  # as those written to a bucket are
      described |= {"kvstore": {"driver": "gcs", "bucket": "t5x-dummy-bucket"}, "path": place}
    target[name] = described | descriptions.get(name, {})
  tree = traverse_util.unflatten_dict(target, sep="/")
  optimizer = {"target": tree, "state": {"step": np.int32(1000)}}
  content = {"version": 3, "optimizer": optimizer}
  (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(content))
  return folder


def assert_same_import(found, expected):
  assert set(found) == set(expected)
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("remote", [False, True])
def test_the_layout_of_the_public_checkpoints_is_read(tmp_path, imported, remote):
  save_legacy(tmp_path / "mt5_small" / "checkpoint_1000000", t5x_params(), remote=remote)
  (tmp_path / "mt5_small" / "checkpoint_900000").mkdir()
  found = mt5.import_mt5(tmp_path / "mt5_small", tmp_path / "out")
  assert_same_import(
    tiny_encoders.read_arrays(found.checkpoint), tiny_encoders.read_arrays(imported.checkpoint)
  )
  assert found.sizes == SIZES | {"relpos_max_distance": 128}
  assert {row.note for row in found.rows if not row.targets} == {"cross-attention"}


def test_bfloat16_is_read_from_the_old_layout(tmp_path, imported):
  save_legacy(tmp_path / "checkpoint_1", t5x_params(), dtype="bfloat16")
  found = tiny_encoders.read_arrays(
    mt5.import_mt5(tmp_path / "checkpoint_1", tmp_path / "out").checkpoint
  )
  kernel = tiny_encoders.read_arrays(imported.checkpoint)["logits_hidden/kernel"]
  expected = kernel.astype(ml_dtypes.bfloat16).astype(np.float32)
  np.testing.assert_array_equal(found["logits_hidden/kernel"], expected)


def test_an_orbax_checkpoint_is_read(tmp_path, imported):
  t5x.write_params(t5x.epath.Path(tmp_path / "checkpoint_0"), t5x_params())
  found = mt5.import_mt5(tmp_path, tmp_path / "out")
  assert_same_import(
    tiny_encoders.read_arrays(found.checkpoint), tiny_encoders.read_arrays(imported.checkpoint)
  )


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"kvstore": {"driver": "file", "path": "../../elsewhere"}}, "'../../elsewhere'"),
    (
      {"kvstore": {"driver": "file", "path": "target.encoder"}},
      "names the folder 'target.encoder'",
    ),
    ({"driver": "n5"}, "stored by 'n5'"),
  ],
)
def test_a_description_cannot_point_elsewhere(tmp_path, change, message):
  name = "token_embedder/embedding"
  save_legacy(tmp_path / "checkpoint_1", t5x_params(), **{name: change})
  refused(tmp_path / "checkpoint_1", tmp_path / "out", message)


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"\x81\xa7version\x01", b"\x93\x01\x02\x03"])
def test_a_damaged_index_is_named(tmp_path, content):
  (tmp_path / "checkpoint_1").mkdir()
  (tmp_path / "checkpoint_1" / "checkpoint").write_bytes(content)
  refused(tmp_path / "checkpoint_1", tmp_path / "out", "checkpoint_1/checkpoint")


def test_a_lost_array_and_scanned_layers_are_named(tmp_path):
  folder = save_legacy(tmp_path / "checkpoint_1", t5x_params())
  array = folder / "target.decoder.logits_dense.kernel"
  array.rename(tmp_path / "lost")
  refused(
    folder, tmp_path / "out", "target.decoder.logits_dense.kernel is not a readable Zarr array"
  )
  params = t5x_params()
  scanned = {name.replace("layers_0", "layers"): array for name, array in params.items()}
  save_legacy(tmp_path / "checkpoint_2", scanned)
  refused(tmp_path / "checkpoint_2", tmp_path / "out", "scanned")
  del params["decoder/logits_dense/kernel"]  # tied to the token table
  save_legacy(tmp_path / "checkpoint_3", params)
  refused(tmp_path / "checkpoint_3", tmp_path / "out", "lacks decoder/logits_dense/kernel")


# --------------------------------------------------------------------------------------------
# Invalid sources


def refused(folder, output, message):
  """Asserts that the import raises one clear error and leaves no files."""
  before = sorted(output.parent.iterdir())
  with pytest.raises(errors.InputError) as caught:
    mt5.import_mt5(folder, output)
  assert message in str(caught.value)
  assert sorted(output.parent.iterdir()) == before


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"lm_head.weight": None}, "no lm_head.weight"),
    ({"encoder.block.1.layer.1.layer_norm.weight": None}, "lacks encoder.block.1.layer.1.layer_n"),
    ({"shared.weight": np.ones((41, 12), np.float32)}, "has shape (41, 12), not (40, 12)"),
    ({"lm_head.weight": np.ones((12, 40), np.float32)}, "has shape (12, 40), not (40, 12)"),
    ({"encoder.block.2.layer.1.layer_norm.weight": np.ones(12)}, "holds encoder.block.2.layer.1"),
    ({"shared.weight": np.ones((40, 12), np.int8)}, "shared.weight in "),
    ({"shared.weight": np.full((40, 12), np.nan, np.float32)}, "contains infinite or NaN values"),
    ({"decoder.embed_tokens.weight": np.ones((40, 12), np.float32)}, "differs from shared.weight"),
  ],
)
def test_a_wrong_tensor_is_named(tmp_path, change, message):
  tensors = {n: x for n, x in (weights() | change).items() if x is not None}
  refused(save_hugging_face(tmp_path / "hf", tensors), tmp_path / "out", message)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"model_type": "umt5"}, "'model_type' is 'umt5'"),
    ({"feed_forward_proj": "relu"}, "'feed_forward_proj' is 'relu'"),
    ({"layer_norm_epsilon": 1e-5}, "'layer_norm_epsilon'"),
    ({"d_model": "12"}, "'d_model' is '12'"),
    ({"num_layers": 0}, "'num_layers' is 0"),
    ({"num_layers": True}, "'num_layers' is True"),
    ({"num_decoder_layers": 3}, "lacks decoder.block.2"),
  ],
)
def test_a_config_that_does_not_fit_is_named(tmp_path, change, message):
  refused(save_hugging_face(tmp_path / "hf", weights(), **change), tmp_path / "out", message)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\udc80"])
def test_a_damaged_config_is_named(tmp_path, content):
  save_hugging_face(tmp_path / "hf", weights())
  path = tmp_path / "hf" / "config.json"
  path.write_bytes(content.encode("utf-8", "surrogateescape"))
  refused(tmp_path / "hf", tmp_path / "out", str(path))


def test_pickles_are_not_read(tmp_path):
  folder = save_hugging_face(tmp_path / "hf", weights())
  (folder / "model.safetensors").unlink()
  refused(folder, tmp_path / "out", "has neither model.safetensors nor")
  (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
  refused(folder, tmp_path / "out", "pytorch_model.bin, a pickle, which can run code")
  refused(folder, tmp_path / "out", "weights_only=True")


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
  path = save_hugging_face(tmp_path / "hf", weights()) / "model.safetensors"
  path.write_bytes(path.read_bytes()[:keep])
  refused(tmp_path / "hf", tmp_path / "out", f"{path} is not a valid safetensors file")


@pytest.mark.parametrize(
  ("shard", "message"),
  [
    ("../model-0.safetensors", "'../model-0.safetensors'"),
    ("/etc/passwd", "'/etc/passwd'"),
    ("pytorch_model.bin", "'pytorch_model.bin'"),
    (3, " is 3, "),
    ("model-7.safetensors", "model-7.safetensors does not exist"),
    ("model-1.safetensors", "puts it into model-1.safetensors"),
  ],
)
def test_an_index_cannot_point_elsewhere(tmp_path, shard, message):
  first = min(weights())
  (tmp_path / "model-0.safetensors").touch()
  refused(save_shards(tmp_path / "hf", weights(), **{first: shard}), tmp_path / "out", message)


def test_an_index_and_its_files_have_to_agree(tmp_path):
  folder = save_shards(tmp_path / "hf", weights(), **{"ghost.weight": "model-0.safetensors"})
  with pytest.raises(errors.InputError, match=r"model-0.safetensors lacks ghost.weight"):
    hugging_face.open_tensors(folder)
  (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
  refused(folder, tmp_path / "out", "weight_map")


def test_the_error_for_another_folder_lists_its_content(tmp_path, capsys):
  (tmp_path / "in").mkdir()
  (tmp_path / "in" / "readme.txt").touch()
  refused(tmp_path / "in", tmp_path / "out", "it holds readme.txt")
  refused(tmp_path / "nowhere", tmp_path / "out", "no folder")
  assert cli.main(["import", "mt5", str(tmp_path / "in"), str(tmp_path / "out")]) == 1
  assert capsys.readouterr().err.startswith("vmsst: error: ")


@pytest.mark.parametrize("size", [10, 300, 2000])
def test_an_import_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path, capsys, size):
  source = save_hugging_face(tmp_path / "hf", weights())
  with full_disks.largest_file(size):
    assert cli.main(["import", "mt5", str(source), str(tmp_path / "out")]) == 1
  message = capsys.readouterr().err
  assert message.startswith(f"vmsst: error: {tmp_path / 'out'} cannot be written: checkpoint_0: ")
  assert message.count("\n") == 1
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_changed_byte_of_an_imported_array_is_named(tmp_path):
  source = save_hugging_face(tmp_path / "hf", weights())
  checkpoint = mt5.import_mt5(source, tmp_path / "out").checkpoint
  largest = max((checkpoint / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
  with pytest.raises(errors.InputError, match=rf"is damaged: state/.*{largest.name} has changed"):
    tiny_encoders.read_arrays(checkpoint)


FILES = {"ems": "EMS_model.pt", "vmsst": "pytorch_model.bin"}
FOLDERS = {"mt5": "a T5X checkpoint", "bert": "tokenizer.json"}


@pytest.mark.parametrize("kind", [*FILES, *FOLDERS])
def test_another_file_than_weights_is_named_without_advice_of_torch(tmp_path, capsys, kind):
  path = tmp_path / "README.md"
  path.write_text("# Read me\n\nThis is not a model.\n")
  options = ["--vocabulary", str(path)] if kind in FILES else []
  assert cli.main(["import", kind, str(path), str(tmp_path / "out"), *options]) == 1
  message = capsys.readouterr().err
  problem = "is not a file of torch or safetensors" if kind in FILES else "is a file"
  assert message.startswith(f"vmsst: error: {path} {problem}; give ")
  assert {**FILES, **FOLDERS}[kind] in message
  assert message.count("\n") == 1
  assert "weights_only" not in message


def test_an_existing_folder_is_not_written_into(tmp_path):
  save_hugging_face(tmp_path / "hf", weights())
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "mine").touch()
  refused(tmp_path / "hf", tmp_path / "out", "exists already")
  (tmp_path / "out" / "mine").unlink()
  mt5.import_mt5(tmp_path / "hf", tmp_path / "out")  # an empty one is filled


@pytest.mark.slow
def test_an_import_from_and_into_a_store_is_that_on_this_machine(
  tmp_path, imported, capsys, monkeypatch
):
  store = memory_store.installed(monkeypatch)
  url, source = "gs://bucket/mt5", "gs://bucket/hf"
  store.put(str(save_hugging_face(tmp_path / "hf", weights())), source, recursive=True)
  assert cli.main(["import", "mt5", source, url]) == 0
  assert f"INITIAL_CHECKPOINT_PATH = '{url}/checkpoint_0'" in capsys.readouterr().out
  storage.download(url, tmp_path / "copy")
  found, expected = (
    tiny_encoders.read_arrays(path)
    for path in (tmp_path / "copy" / "checkpoint_0", imported.checkpoint)
  )
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array)
  assert str(t5x.find_checkpoint(url)) == f"{url}/checkpoint_0"
  store.pipe_file(f"{url}/{storage.UNFINISHED}", b"")
  for path in (url, f"{url}/checkpoint_0"):
    for read in (t5x.find_checkpoint, vmsst.load):
      with pytest.raises(errors.InputError, match=f"{url} is not finished"):
        read(path)


# --------------------------------------------------------------------------------------------
# transformers


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.filterwarnings("ignore")  # those of another library
def test_imported_stacks_compute_what_transformers_does(tmp_path, padded):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
  torch.manual_seed(0)
  reference = transformers.MT5ForConditionalGeneration(transformers.MT5Config(**CONFIG)).eval()
  reference.lm_head.weight = torch.nn.Parameter(torch.randn(40, 12))
  with torch.no_grad():
    for weight in reference.parameters():
      weight += 0.3 * torch.randn_like(weight)
    # The decoder is compared without cross-attention, which the import leaves out.
    for block in reference.decoder.block:
      block.layer[1].EncDecAttention.o.weight.zero_()
  encoder = transformers.MT5EncoderModel(reference.config).eval()
  encoder.load_state_dict(
    {n: x for n, x in reference.state_dict().items() if n.startswith(("shared.", "encoder."))}
  )
  encoder.save_pretrained(tmp_path / "encoder")
  reference.save_pretrained(tmp_path / "whole")

  rng = np.random.default_rng(0)
  tokens_BT = rng.integers(2, 40, size=(3, 25))
  mask_BT = np.ones(tokens_BT.shape, bool)
  if padded:
    mask_BT[1, 7:] = mask_BT[2, 1:] = False
  torch_tokens = torch.tensor(tokens_BT)
  torch_mask = torch.tensor(mask_BT.astype(np.int64))
  with torch.no_grad():
    expected_BTD = encoder(torch_tokens, attention_mask=torch_mask).last_hidden_state.numpy()
    output = reference(
      encoder_outputs=(torch.zeros(3, 25, 12),),
      decoder_input_ids=torch_tokens,
      output_hidden_states=True,
    )
  for name in ("encoder", "whole"):
    imported = mt5.import_mt5(tmp_path / name, tmp_path / f"{name}_{padded}")
    params = traverse_util.unflatten_dict(tiny_encoders.read_arrays(imported.checkpoint), sep="/")
    embedded_BTD = params["token_embedder"]["embedding"][tokens_BT]
    for ours in ("encoder", "language_encoder"):
      found_BTD = t5.T5Encoder(NETWORK.config).apply(
        {"params": params[ours]}, embedded_BTD, mask_BT
      )
      np.testing.assert_allclose(found_BTD[mask_BT], expected_BTD[mask_BT], atol=1e-5, rtol=1e-5)

  # The latent decoder starts with a language's vector, mT5 with its first token.
  injection = {"hidden": {"kernel": np.zeros((12, 12))}, "sentence": {"kernel": np.zeros((4, 12))}}
  for i in range(2):
    params["decoder"][f"layers_{i}"]["injection"] = injection
  hidden = []
  for row_T, row_TD in zip(tokens_BT, embedded_BTD, strict=True):
    start = {"embedding": params["token_embedder"]["embedding"][row_T[:1]]}
    stack = vmsst_networks.decoder.LatentDecoder(NETWORK.config, 2, 1)
    shifted_1TD = np.concatenate([row_TD[1:], row_TD[:1]])[None]
    variables = {"params": params["decoder"] | {"language_embedder": start}}
    hidden.append(stack.apply(variables, shifted_1TD, np.zeros(1, int), np.zeros((1, 4)))[0])
  hidden_BTD = np.stack(hidden)
  expected_BTD = output.decoder_hidden_states[-1].numpy()
  np.testing.assert_allclose(hidden_BTD, expected_BTD, atol=1e-5, rtol=1e-5)
  logits_BTV = hidden_BTD @ params["logits_hidden"]["kernel"]
  np.testing.assert_allclose(logits_BTV, output.logits.numpy(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("numbers", [1, 7, 40, 1000])
def test_tensors_are_read_whole_in_blocks_of_any_size(tmp_path, monkeypatch, numbers):
  monkeypatch.setattr(hugging_face, "_BLOCK_NUMBERS", numbers)
  rng = np.random.default_rng(0)
  shapes = {"a": (11, 4), "b": (5,), "c": (), "d": (0, 3), "e": (2, 3, 5)}
  expected = {name: rng.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}
  save_file(expected, tmp_path / "model.safetensors")
  for name, tensor in hugging_face.open_file(tmp_path / "model.safetensors").items():
    np.testing.assert_array_equal(tensor.read(), expected[name].astype(np.float32))
