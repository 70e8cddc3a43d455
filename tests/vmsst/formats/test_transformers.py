"""Compares imported configs and weights with the models in transformers."""

import json
import re

import commands
import jax
import numpy as np
import pytest
import released_folders
import tiny_encoders
import tiny_tokenizers
from flax import linen as nn
from flax import traverse_util

from vmsst import errors
from vmsst.encoder import loading
from vmsst.formats import tensors, transformers
from vmsst.networks import t5
from vmsst.networks import transformer as networks

WEIGHTS = "model.safetensors"
SIZES = {
  "vocab_size": 40, "emb_dim": 12, "num_heads": 3, "num_layers": 2, "mlp_dim": 10,
  "max_positions": 9, "num_token_types": 2, "activation": "gelu", "layer_norm_eps": 1e-12,
}  # fmt: skip
CONFIG = {"model_type": "bert", "pad_token_id": 0, **released_folders.bert_config(SIZES)}


class Network(nn.Module):
  config: networks.TransformerConfig

  @nn.compact
  def __call__(self, tokens_BT):
    table = t5.TokenEmbedder(self.config.vocab_size, self.config.emb_dim, name="token_embedder")
    embedded_BTD = table(tokens_BT)
    encoder = networks.TransformerEncoder(self.config, name="encoder")
    return encoder(embedded_BTD, tokens_BT != 0)


def weights(prefix="", norm=("weight", "bias")):
  """Returns random weights of a BERT by name. `norm` has the names of a norm's weight and bias."""
  rows = transformers.BERT.table.rows(networks.TransformerConfig(**SIZES))
  names = {"LayerNorm.weight": f"LayerNorm.{norm[0]}", "LayerNorm.bias": f"LayerNorm.{norm[1]}"}
  found = {}
  for name, array in released_folders.weights(rows).items():
    for theirs, old in names.items():
      name = name.replace(theirs, old)
    found[prefix + name] = array
  return found


def save_hugging_face(folder, arrays, **changes):
  weights = {name: np.float32(array) for name, array in arrays.items()}
  return released_folders.save_weights(folder, CONFIG | changes, weights)


def apply_network(imported, tokens_BT, padding_id=0, **options):
  """Returns the hidden states. `tokens_BT` has the ids of the original tokenizer."""
  config = networks.TransformerConfig(**imported.converted.sizes, **options)
  arrays = tiny_encoders.read_arrays(imported.checkpoint)
  network = Network(config)
  shapes = jax.eval_shape(network.init, jax.random.key(0), tokens_BT)["params"]
  params = {
    name: tensors.find(name, x.shape, arrays).make(arrays)
    for name, x in traverse_util.flatten_dict(shapes, sep="/").items()
  }
  params = traverse_util.unflatten_dict(params, sep="/")
  ours_BT = tiny_tokenizers.swap_padding(tokens_BT, padding_id)
  return jax.jit(network.apply)({"params": params}, ours_BT)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
  folder = tmp_path_factory.mktemp("bert")
  return released_folders.import_encoder(
    save_hugging_face(folder / "hf", weights()), folder / "out"
  )


_HEADS = {"qwen3": "ForCausalLM", "gemma": "Model", "mpnet": "Model", "t5": "EncoderModel"}


@pytest.mark.parametrize(
  ("family", "kind", "changes"),
  [
    ("Bert", "ForPreTraining", CONFIG),  # mBERT
    ("Bert", "Model", CONFIG | {"tokenizer_class": "XLMRobertaTokenizer"}),  # small E5
    ("XLMRoberta", "Model", CONFIG | {"pad_token_id": 1, "type_vocab_size": 1,
                                      "hidden_act": "silu"}),
    *((family, _HEADS.get(name, "ForMaskedLM"), {"pad_token_id": 0} | options | {"vocab_size": 40})
      for name, (family, options, *_) in released_folders.ARCHITECTURES.items()
      if name != "t5 gated"),  # an mT5
    ("Gemma3Text", "Model", released_folders.ARCHITECTURES["gemma"][1] | {
      "vocab_size": 40, "use_bidirectional_attention": False, "sliding_window_pattern": 2}),
  ],
)  # fmt: skip
@pytest.mark.parametrize("scan_layers", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")  # transformers warns.
def test_token_states_equal_those_of_a_saved_model(
  tmp_path, family, kind, changes, scan_layers, torch, theirs
):
  torch.manual_seed(0)
  config = {key: x for key, x in changes.items() if key != "model_type"}
  model = getattr(theirs, f"{family}{kind}")(getattr(theirs, f"{family}Config")(**config)).eval()
  with torch.no_grad():
    for weight in model.parameters():
      weight += 0.3 * torch.randn_like(weight)
  model.save_pretrained(tmp_path / "hf")
  if "tokenizer_class" in changes:
    saved = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(saved | changes))
  found = released_folders.import_encoder(tmp_path / "hf", tmp_path / "out")
  padding_id = 1 if changes.get("pad_token_id") == 1 or "tokenizer_class" in changes else 0
  sizes = found.converted.sizes
  length = min(sizes["max_positions"] - sizes.get("position_offset", 0), 60)
  mask_BT = np.arange(length) < np.array([[length], [6], [3], [1]])
  tokens_BT = np.random.default_rng(0).integers(2, 40, size=mask_BT.shape)
  # If a tokenizer pads with 1, sentences start with 0.
  tokens_BT[:, 0] = 0 if padding_id else 5
  tokens_BT = np.where(mask_BT, tokens_BT, padding_id)

  def reference(dtype):
    with torch.no_grad():
      return getattr(model, model.base_model_prefix, model).to(dtype)(
        input_ids=torch.tensor(tokens_BT), attention_mask=torch.tensor(mask_BT.astype(np.int64))
      )

  expected = reference(torch.float32)
  expected_BTD = expected.last_hidden_state.numpy()
  hidden_BTD = apply_network(found, tokens_BT, padding_id, scan_layers=scan_layers)
  # The norms of queries and keys amplify rounding errors.
  atol = 1e-4 if {"head_dim", "d_kv"} & changes.keys() else 1e-5
  np.testing.assert_allclose(hidden_BTD[mask_BT], expected_BTD[mask_BT], atol=atol, rtol=1e-5)
  # In bfloat16, the result is about as accurate as the reference.
  half_BTD = apply_network(found, tokens_BT, padding_id, dtype="bfloat16")
  their_BTD = reference(torch.bfloat16).last_hidden_state.float().numpy()
  error, their_error = (
    np.sqrt(np.mean(np.square(x_BTD.astype(np.float32) - expected_BTD)[mask_BT]))
    for x_BTD in (np.asarray(half_BTD), their_BTD)
  )
  assert error < 1.5 * their_error < 0.3


def test_old_names_and_heads_of_pre_training(tmp_path, imported, capsys):
  arrays = weights("bert.", norm=("gamma", "beta")) | {
    "bert.embeddings.position_ids": np.arange(9)[None],
    "bert.pooler.dense.bias": np.zeros(12),
    "cls.predictions.bias": np.zeros(40),
    "cls.seq_relationship.weight": np.zeros((2, 12)),
  }
  folder = save_hugging_face(tmp_path / "hf", arrays)
  assert commands.vmsst("import", "encoder", folder, tmp_path / "out") == 0
  text, checkpoint = capsys.readouterr().out, tmp_path / "out" / "checkpoint_0"
  expected = tiny_encoders.read_arrays(imported.checkpoint)
  jax.tree.map(np.testing.assert_array_equal, tiny_encoders.read_arrays(checkpoint), expected)
  left_out = {name for name in arrays if re.search("position_ids|pooler|^cls", name)}
  assert loading.convert(folder).left_out.keys() == left_out
  assert (
    "left out, not part of the encoder: bert.pooler.dense.bias, cls.predictions.bias, cls." in text
  )
  assert "vmsst.load cannot open it" in text  # The folder has no tokenizer.
  assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint_0"]


@pytest.mark.parametrize(
  ("config", "arrays", "message"),
  [
    ({"model_type": "electra"}, {}, "model_type.*'electra'"),
    ({"hidden_act": "quick_gelu"}, {}, "'quick_gelu'.*hidden_act"),
    ({"position_embedding_type": "relative_key"}, {}, "position_embedding_type"),
    (
      {"model_type": "qwen3", "head_dim": 4, "rope_parameters": {"rope_type": "linear"}},
      {},
      r"rope_parameters\.rope_type",
    ),
    ({"pad_token_id": 40}, {}, "the padding id 40"),
    ({"num_hidden_layers": 1}, {}, r"unexpected tensors encoder\.layer\.1"),
    ({"model_type": "mpnet"}, {}, r"lacks encoder\.layer\.0\.attention"),
    ({}, {"embeddings.LayerNorm.bias": np.full(12, np.nan)}, r"LayerNorm\.bias.*NaN values"),
  ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, config, arrays, message):
  folder = save_hugging_face(tmp_path / "hf", weights() | arrays, **config)
  with pytest.raises(errors.InputError, match=message):
    released_folders.import_encoder(folder, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


ARRAYS = {name: np.arange(i, 9.0, dtype=np.float32) for i, name in enumerate("abcde")}


def assert_read(folder, expected):
  found = transformers.open_tensors(folder)
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name].read(), array)


def test_a_model_is_read_from_shards_and_from_files_of_torch(tmp_path, torch):
  folder = tmp_path
  shards = {f"model-{i}.safetensors": sorted(ARRAYS)[i::2] for i in range(2)}
  for shard, names in shards.items():
    tensors.write_file(folder / shard, {name: ARRAYS[name] for name in names})
  index = {"weight_map": {name: shard for shard, names in shards.items() for name in names}}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))
  assert_read(folder, ARRAYS)
  torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
  assert_read(folder, ARRAYS)  # safetensors are preferred
  (folder / "model.safetensors.index.json").unlink()
  assert_read(folder, {"a": np.ones(2, np.float32)})
  (folder / "pytorch_model.bin").rename(folder / "part.bin")
  with pytest.raises(errors.InputError, match=rf"{folder} has no weights"):
    transformers.open_tensors(folder)
  (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "part.bin"}}')
  assert_read(folder, {"a": np.ones(2, np.float32)})
