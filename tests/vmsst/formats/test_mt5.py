"""Tests imports of mT5 as the start of training, and of the released VMSST."""

import pathlib

import commands
import jax
import jax.numpy as jnp
import memory_store
import ml_dtypes
import numpy as np
import pytest
import released_folders
import sentencepiece
import tiny_encoders
import tiny_models
from flax import traverse_util

import vmsst
from vmsst import errors, storage
from vmsst.data import sample
from vmsst.encoder import loading
from vmsst.formats import mt5
from vmsst.networks import t5
from vmsst.networks import vmsst as vmsst_networks

VOCAB_SIZE = 3600  # enough for the vocabulary of the sample corpus
SIZES = {
  "vocab_size": VOCAB_SIZE, "emb_dim": 12, "num_heads": 3, "head_dim": 2, "mlp_dim": 10,
  "num_encoder_layers": 2, "num_decoder_layers": 2, "relpos_buckets": 8, "relpos_max_distance": 20,
}  # fmt: skip
CONFIG = released_folders.mt5_config(SIZES)
NETWORK = vmsst_networks.VmsstNetwork(
  t5.T5Config(**{key: x for key, x in SIZES.items() if key != "num_decoder_layers"}),
  latent_dim=4,
  num_languages=2,
)
VOCABULARY = pathlib.Path(sample.vocabulary_path())
SENTENCES = ["Hello, world!", "Wie geht es dir heute?", "", "the weather " * 400]
# Parameters that mT5 does not have.
FRESH = (
  "mean/", "log_variance/", "language_mean/", "language_log_variance/",
  "encoder_language_embedder/", "decoder/language_embedder/", "decoder/layers_0/injection/",
  "decoder/layers_1/injection/", "logits_latent/",
)  # fmt: skip
WEIGHTS = released_folders.weights(mt5.rows(SIZES))
ENCODER = {name: x for name, x in WEIGHTS.items() if name.startswith(("encoder.", "shared."))}
PROJECTION = np.random.default_rng(1).normal(size=(5, 12)).astype(np.float32)
RELEASE = {f"mt5_encoder.{name}": x for name, x in ENCODER.items()} | {
  "projection.weight": PROJECTION
}


def save_hugging_face(folder, tensors, *, vocabulary=None, **config):
  released_folders.save_weights(folder, CONFIG | config, tensors)
  if vocabulary is not None:
    (folder / "spiece.model").write_bytes(vocabulary)
  return folder


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
  folder = tmp_path_factory.mktemp("mt5")
  save_hugging_face(folder / "hf", WEIGHTS)
  return released_folders.import_encoder(folder / "hf", folder / "out")


def test_with_what_starts_fresh_it_is_the_whole_network(imported):
  shapes = jax.eval_shape(NETWORK.init, jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
  wanted = {n: x.shape for n, x in traverse_util.flatten_dict(shapes, sep="/").items()}
  arrays = tiny_encoders.read_arrays(imported.checkpoint)
  fresh = {name for name in wanted if name.startswith(FRESH)}
  assert len({name.split("/kernel")[0] for name in fresh}) >= len(FRESH)
  shapes = {name: array.shape for name, array in arrays.items()}
  assert shapes == {name: shape for name, shape in wanted.items() if name not in fresh}
  assert imported.converted.sizes == SIZES
  left_out = {name: "cross-attention" for name in WEIGHTS if "EncDecAttention" in name}
  assert imported.converted.left_out == left_out
  # The sentence injection replaces cross-attention and takes its norm.
  for i in range(2):
    found_D = arrays[f"decoder/layers_{i}/pre_injection_layer_norm/scale"]
    expected_D = WEIGHTS[f"decoder.block.{i}.layer.1.layer_norm.weight"]
    np.testing.assert_array_equal(found_D, expected_D)


def test_an_encoder_alone_is_imported_as_such_also_in_half_precision(tmp_path, imported):
  whole = tiny_encoders.read_arrays(imported.checkpoint)
  for dtype in (np.float16, ml_dtypes.bfloat16):
    # Some files contain only a copy of the token table.
    names = {"shared.weight": "encoder.embed_tokens.weight"} if dtype == np.float16 else {}
    encoder = {names.get(name, name): x.astype(dtype) for name, x in ENCODER.items()}
    place = tmp_path / np.dtype(dtype).name
    alone = released_folders.import_encoder(save_hugging_face(place / "hf", encoder), place / "out")
    found = tiny_encoders.read_arrays(alone.checkpoint)
    assert set(found) == {n for n in whole if not n.startswith(("decoder/", "logits_"))}
    for name, array in found.items():
      np.testing.assert_array_equal(array, whole[name].astype(dtype).astype(np.float32))
    assert "only CONTRASTIVE" in alone.converted.notes[0]


@pytest.mark.parametrize(
  ("tensors", "config", "message"),
  [
    ({"lm_head.weight": None}, {}, "lacks lm_head.weight"),
    (
      {"encoder.block.2.layer.1.layer_norm.weight": np.ones(12)},
      {},
      r"has the unexpected tensors encoder\.block\.2\.layer",
    ),
    ({}, {"model_type": "umt5"}, "'model_type' is 'umt5'"),
    ({}, {"num_layers": 1 << 30}, r"1000 - at `\$.num_layers`"),
  ],
)
def test_a_tensor_or_setting_that_does_not_fit_is_named(tmp_path, tensors, config, message):
  weights = {name: x for name, x in (WEIGHTS | tensors).items() if x is not None}
  config = {"relative_attention_max_distance": 128, **config}
  with pytest.raises(errors.InputError, match=message):
    loading.convert(save_hugging_face(tmp_path / "hf", weights, **config))


@pytest.mark.filterwarnings("ignore")  # transformers warns.
def test_imported_stacks_compute_what_transformers_does(tmp_path, torch, theirs):
  torch.manual_seed(0)
  reference = theirs.MT5ForConditionalGeneration(theirs.MT5Config(**CONFIG)).eval()
  reference.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB_SIZE, 12))
  with torch.no_grad():
    for weight in reference.parameters():
      weight += 0.3 * torch.randn_like(weight)
    # The import skips cross-attention, so switch it off in the reference.
    for block in reference.decoder.block:
      block.layer[1].EncDecAttention.o.weight.zero_()
  encoder = theirs.MT5EncoderModel(reference.config).eval()
  encoder.load_state_dict(
    {n: x for n, x in reference.state_dict().items() if n.startswith(("shared.", "encoder."))}
  )
  encoder.save_pretrained(tmp_path / "encoder")
  reference.save_pretrained(tmp_path / "whole")

  rng = np.random.default_rng(0)
  tokens_BT = rng.integers(2, 40, size=(3, 25))
  mask_BT = np.arange(25) < np.array([[25], [7], [1]])
  ids, mask, states = torch.tensor(tokens_BT), torch.tensor(mask_BT * 1), torch.zeros(3, 25, 12)
  with torch.no_grad():
    expected_BTD = encoder(ids, attention_mask=mask).last_hidden_state.numpy()
    options = {"decoder_input_ids": ids, "output_hidden_states": True}
    output = reference(encoder_outputs=(states,), **options)
  encode = tiny_models.jit(t5.T5Encoder(NETWORK.config).apply)
  for name in ("encoder", "whole"):
    imported = released_folders.import_encoder(tmp_path / name, tmp_path / f"{name}_out")
    params = traverse_util.unflatten_dict(tiny_encoders.read_arrays(imported.checkpoint), sep="/")
    embedded_BTD = params["token_embedder"]["embedding"][tokens_BT]
    for ours in ("encoder", "language_encoder"):
      found_BTD = encode({"params": params[ours]}, embedded_BTD, mask_BT)
      np.testing.assert_allclose(found_BTD[mask_BT], expected_BTD[mask_BT], atol=1e-5, rtol=1e-5)

  # The latent decoder starts with the vector of a language, mT5 with the first token.
  injection = {"hidden": {"kernel": np.zeros((12, 12))}, "sentence": {"kernel": np.zeros((4, 12))}}
  for i in range(2):
    params["decoder"][f"layers_{i}"]["injection"] = injection
  hidden = []
  decode = tiny_models.jit(vmsst_networks.decoder.LatentDecoder(NETWORK.config, 2, 1).apply)
  for row_T, row_TD in zip(tokens_BT, embedded_BTD, strict=True):
    start = {"embedding": params["token_embedder"]["embedding"][row_T[:1]]}
    shifted_1TD = np.concatenate([row_TD[1:], row_TD[:1]])[None]
    variables = {"params": params["decoder"] | {"language_embedder": start}}
    hidden.append(decode(variables, shifted_1TD, np.zeros(1, int), np.zeros((1, 4)))[0])
  hidden_BTD = np.stack(hidden)
  expected_BTD = output.decoder_hidden_states[-1].numpy()
  np.testing.assert_allclose(hidden_BTD, expected_BTD, atol=1e-5, rtol=1e-5)
  logits_BTV = hidden_BTD @ params["logits_hidden"]["kernel"]
  np.testing.assert_allclose(logits_BTV, output.logits.numpy(), atol=1e-4, rtol=1e-5)


def assert_means(encoder, model, ids, projection=None):
  """Compares an encoder's vectors with means of the hidden states of transformers.

  Args:
    encoder: The encoder.
    model: The encoder in transformers.
    ids: Token ids by text.
    projection: Weight of the projection after the mean, if any.
  """
  import torch

  texts = list(ids)
  for text, vector in zip(texts, encoder.encode(texts, on_cut=None), strict=True):
    with torch.no_grad():
      expected = model(torch.tensor([ids[text]])).last_hidden_state[0].mean(0).numpy()
    expected = expected if projection is None else expected @ projection.T
    np.testing.assert_allclose(vector, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("importer", ["mt5", "vmsst"])
def test_vectors_equal_those_of_transformers(tmp_path, capsys, importer, torch, theirs):
  options = []
  if importer == "mt5":
    save_hugging_face(tmp_path / "hf", ENCODER, vocabulary=VOCABULARY.read_bytes())
    (tmp_path / "hf" / "tokenizer_config.json").write_text('{"model_max_length": 300}')
  else:
    copy = {"mt5_encoder.encoder.embed_tokens.weight": WEIGHTS["shared.weight"]}
    save_hugging_face(tmp_path / "hf", RELEASE | copy)
    options = ["--vocabulary", VOCABULARY]
  out = tmp_path / "a" / "out"
  assert commands.vmsst("import", "encoder", tmp_path / "hf", out, *options) == 0
  printed = capsys.readouterr().out
  assert ("left out, copies of the token table: mt5_encoder.enc" in printed) == bool(options)
  assert f"vmsst.load('{out}') opens the encoder" in printed
  encoder = vmsst.load(out, backend="jax")
  dimension, length = (12, 300) if importer == "mt5" else (5, 512)
  assert (encoder.dimension, encoder.max_length) == (dimension, length)

  model = theirs.MT5EncoderModel(theirs.MT5Config(**CONFIG)).eval()
  state = {name: torch.tensor(x) for name, x in ENCODER.items()}
  model.load_state_dict(state | {"encoder.embed_tokens.weight": state["shared.weight"]})
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(VOCABULARY))
  ids = {text: [*pieces.encode(text)[: length - 1], pieces.eos_id()] for text in SENTENCES}
  assert_means(encoder, model, ids, None if importer == "mt5" else PROJECTION)


@pytest.mark.filterwarnings("ignore")  # transformers warns.
@pytest.mark.parametrize("is_gated", [True, False])
def test_a_model_of_newer_transformers_has_tokenizer_json(tmp_path, is_gated, torch, theirs):
  changes = {"vocab_size": 3700, "relative_attention_max_distance": 128}
  changes["feed_forward_proj"] = "gated-gelu" if is_gated else "relu"
  torch.manual_seed(0)
  model = theirs.MT5Model(theirs.MT5Config(**CONFIG | changes)).eval()
  model.save_pretrained(tmp_path / "hf")
  (tmp_path / "hf" / "spiece.model").write_bytes(VOCABULARY.read_bytes())
  tokenizer = theirs.AutoTokenizer.from_pretrained(tmp_path / "hf", extra_ids=0)
  tokenizer.save_pretrained(tmp_path / "hf")
  (tmp_path / "hf" / "spiece.model").unlink()
  encoder = vmsst.load(tmp_path / "hf", backend="jax")
  assert encoder.max_length == 512
  texts = [*SENTENCES, "<extra_id_3> a </s>", "  \t b"]
  ids = {text: tokenizer(text, truncation=True, max_length=512).input_ids for text in texts}
  assert_means(encoder, model.encoder, ids)
  if not is_gated:
    released_folders.import_encoder(tmp_path / "hf", tmp_path / "out")
    assert_means(vmsst.load(tmp_path / "out", backend="jax"), model.encoder, ids)


def test_an_import_from_and_into_a_store_is_that_on_this_machine(tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  folder = save_hugging_face(tmp_path / "hf", RELEASE, vocabulary=VOCABULARY.read_bytes())
  store.put(str(folder), "gs://bucket/hf", recursive=True)
  assert commands.vmsst("import", "encoder", "gs://bucket/hf", "gs://bucket/out") == 0
  storage.download("gs://bucket/out", tmp_path / "out")
  found, expected = (vmsst.load(path, backend="jax") for path in (tmp_path / "out", folder))
  np.testing.assert_array_equal(found.encode(SENTENCES[:3]), expected.encode(SENTENCES[:3]))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"projection.weight": None}, "lacks projection.weight"),
    ({}, "spiece.model does not exist"),
  ],
)
def test_a_release_that_does_not_fit_is_refused(tmp_path, change, message):
  state = {n: x for n, x in (RELEASE | change).items() if x is not None}
  options = {"vocabulary": VOCABULARY} if change else {}
  with pytest.raises(errors.InputError, match=message):
    loading.convert(save_hugging_face(tmp_path / "hf", state), **options)
