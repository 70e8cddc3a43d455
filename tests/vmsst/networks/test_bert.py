import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from vmsst import errors
from vmsst.networks import bert, sentence_encoder

CONFIG = bert.BertConfig(
  vocab_size=50,
  emb_dim=12,
  num_heads=3,
  mlp_dim=20,
  num_layers=2,
  max_positions=16,
  num_token_types=2,
  initializer_std=0.3,
)
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)


def network(**changes):
  config = dataclasses.replace(CONFIG, **changes)
  return sentence_encoder.SentenceEncoder(config, config.emb_dim, head=False, pooling="pooler")


@pytest.fixture(scope="module")
def params():
  return jax.jit(network().init)(jax.random.key(0), TOKENS_BT)["params"]


def encoder_params(array, layers):
  """Converts the state dict of a transformers model to our parameters."""

  def dense(name):
    return {"kernel": array[f"{name}.weight"].T, "bias": array[f"{name}.bias"]}

  def norm(name):
    return {"scale": array[f"{name}.weight"], "bias": array[f"{name}.bias"]}

  def layer(i):
    place = f"encoder.layer.{i}"
    return {
      "attention": {
        "query": dense(f"{place}.attention.self.query"),
        "key": dense(f"{place}.attention.self.key"),
        "value": dense(f"{place}.attention.self.value"),
        "out": dense(f"{place}.attention.output.dense"),
      },
      "post_attention_layer_norm": norm(f"{place}.attention.output.LayerNorm"),
      "mlp": {
        "wi": dense(f"{place}.intermediate.dense"),
        "wo": dense(f"{place}.output.dense"),
      },
      "post_mlp_layer_norm": norm(f"{place}.output.LayerNorm"),
    }

  return {
    "position_embedding": array["embeddings.position_embeddings.weight"],
    "token_type_embedding": array["embeddings.token_type_embeddings.weight"],
    "embedding_layer_norm": norm("embeddings.LayerNorm"),
    **{f"layers_{i}": layer(i) for i in range(layers)},
  }, {"dense": dense("pooler.dense")}


@pytest.mark.parametrize(
  ("family", "changes"),
  [
    ("Bert", {"activation": "gelu"}),
    ("Bert", {"activation": "swish", "num_token_types": 1}),
    ("XLMRoberta", {"activation": "gelu", "position_offset": 2, "layer_norm_eps": 1e-5}),
  ],
)
@pytest.mark.filterwarnings("ignore")  # those of another library
def test_token_states_and_pooler_equal_those_of_transformers(family, changes):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
  cfg = dataclasses.replace(CONFIG, **changes)
  padding = 1 if family == "XLMRoberta" else 0
  torch.manual_seed(0)
  reference = getattr(transformers, f"{family}Model")(
    getattr(transformers, f"{family}Config")(
      vocab_size=cfg.vocab_size,
      hidden_size=cfg.emb_dim,
      num_hidden_layers=cfg.num_layers,
      num_attention_heads=cfg.num_heads,
      intermediate_size=cfg.mlp_dim,
      hidden_act={"swish": "silu"}.get(cfg.activation, cfg.activation),
      max_position_embeddings=cfg.max_positions,
      type_vocab_size=cfg.num_token_types,
      layer_norm_eps=cfg.layer_norm_eps,
      pad_token_id=padding,
    )
  ).eval()
  # Fresh norms and biases would hide mistakes.
  with torch.no_grad():
    for weight in reference.parameters():
      weight += 0.3 * torch.randn_like(weight)
  array = {name: weight.numpy() for name, weight in reference.state_dict().items()}
  encoder, pooler = encoder_params(array, cfg.num_layers)

  length = cfg.max_positions - cfg.position_offset  # up to the last row of the table
  whole_BT = np.random.default_rng(0).integers(2, 50, size=(3, length))
  for ends in ([length, length, length], [length, 5, 1]):
    mask_BT = np.arange(length) < np.array(ends)[:, None]
    tokens_BT = np.where(mask_BT, whole_BT, padding)
    embedded_BTD = array["embeddings.word_embeddings.weight"][tokens_BT]
    found_BTD = bert.BertEncoder(cfg).apply({"params": encoder}, embedded_BTD, mask_BT)
    found_BD = bert.ClsPooler(cfg).apply({"params": pooler}, found_BTD)
    with torch.no_grad():
      expected = reference(
        input_ids=torch.tensor(tokens_BT), attention_mask=torch.tensor(mask_BT.astype(np.int64))
      )
    expected_BTD = expected.last_hidden_state.numpy()
    np.testing.assert_allclose(found_BTD[mask_BT], expected_BTD[mask_BT], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found_BD, expected.pooler_output.numpy(), atol=1e-5, rtol=1e-5)


def test_without_embedding_norm_the_sum_goes_to_the_first_layer(params):
  found = network(embedding_norm=False)
  shapes = jax.eval_shape(found.init, jax.random.key(0), TOKENS_BT)["params"]["encoder"]
  assert set(params["encoder"]) - set(shapes) == {"embedding_layer_norm"}
  # A fresh norm does not change normalized input.
  plain = {**params["encoder"], "position_embedding": jnp.zeros((16, 12))}
  plain["token_type_embedding"] = jnp.zeros((2, 12))
  normed_BTD = np.random.default_rng(0).normal(size=(2, 4, 12))
  normed_BTD = (normed_BTD - normed_BTD.mean(-1, keepdims=True)) / normed_BTD.std(-1)[..., None]
  mask_BT = np.ones((2, 4), bool)
  with_BTD, without_BTD = (
    bert.BertEncoder(dataclasses.replace(CONFIG, embedding_norm=norm)).apply(
      {"params": plain}, jnp.asarray(normed_BTD, jnp.float32), mask_BT
    )
    for norm in (True, False)
  )
  np.testing.assert_allclose(with_BTD, without_BTD, atol=1e-5)


def test_a_sentence_longer_than_the_position_table_is_refused():
  embedded_BTD = jnp.zeros((1, 15, 12))
  mask_BT = np.ones((1, 15), bool)
  encoder = bert.BertEncoder(dataclasses.replace(CONFIG, position_offset=2))
  with pytest.raises(errors.InputError, match=r"15 tokens.*positions for 14"):
    encoder.init(jax.random.key(0), embedded_BTD, mask_BT)


def test_initial_distributions():
  wide = network(
    emb_dim=96,
    mlp_dim=128,
    vocab_size=200,
    max_positions=60,
    initializer_std=0.02,
    scan_layers=True,
  )
  variables = jax.jit(wide.init)(jax.random.key(0), TOKENS_BT)
  flat = traverse_util.flatten_dict(variables["params"], sep="/")
  for name, array in flat.items():
    if name.endswith(("kernel", "embedding")):
      assert np.std(array) == pytest.approx(0.02, rel=0.15), name
    else:
      np.testing.assert_array_equal(array, float(name.endswith("/scale")), name)
  kernel_LDM = flat["encoder/layers/mlp/wi/kernel"]
  assert not np.allclose(kernel_LDM[0], kernel_LDM[1])


def test_the_encoder_of_the_paper_has_its_parameters():
  encoder = bert.BertEncoder(bert.BertConfig(vocab_size=60_000))
  shapes = jax.eval_shape(
    encoder.init, jax.random.key(0), jnp.zeros((1, 4, 1024)), np.ones((1, 4), bool)
  )["params"]
  layer = 4 * (1024**2 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 2 * 2 * 1024
  # With the table (61.44 million) and the heads (10.19 million) these are Table III's 147 million.
  assert sum(x.size for x in jax.tree.leaves(shapes)) == 6 * layer + 120 * 1024 + 2 * 1024


def test_config_survives_json():
  cfg = bert.BertConfig(vocab_size=7, dropout_rate=0.1, activation="gelu", remat="minimal")
  assert bert.BertConfig(**json.loads(json.dumps(dataclasses.asdict(cfg)))) == cfg


@pytest.mark.parametrize(
  ("field", "value"),
  [("dtype", "float16"), ("remat", "some"), ("activation", "silu"), ("emb_dim", 13),
   ("dropout_rate", 1.0), ("vocab_size", "9"), ("num_token_types", -1), ("position_offset", 16),
   ("layer_norm_eps", 0.0), ("initializer_std", float("nan"))],
)  # fmt: skip
def test_config_names_the_bad_value(field, value):
  with pytest.raises(errors.InputError, match=field):
    dataclasses.replace(CONFIG, **{field: value})
