import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util
from flax.linen import partitioning

from vmsst import errors
from vmsst.networks import bert, pooling

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
# Axis names that T5X's partitioning rules and its Adafactor factor rules both know.
STANDARD_AXES = {
  "vocab", "embed", "mlp", "heads", "kv", "joined_kv", "relpos_buckets", "layers", "stack",
  "mlp_activations",
}  # fmt: skip


class Sentences(nn.Module):
  """Table, encoder, and both ways to one vector."""

  config: bert.BertConfig

  @nn.compact
  def __call__(self, tokens_BT, *, deterministic=True):
    mask_BT = tokens_BT != 0
    embedded_BTD = bert.token_embedder(self.config, name="token_embedder")(tokens_BT)
    encoder = bert.BertEncoder(self.config, name="encoder")
    hidden_BTD = encoder(embedded_BTD, mask_BT, deterministic=deterministic)
    first_BD = bert.ClsPooler(self.config, name="pooler")(hidden_BTD)
    return jnp.concatenate([pooling.masked_mean(hidden_BTD, mask_BT), first_BD], axis=-1)


def network(**changes):
  return Sentences(dataclasses.replace(CONFIG, **changes))


@pytest.fixture(scope="module")
def params():
  return jax.jit(network().init)(jax.random.key(0), TOKENS_BT)["params"]


def encode(params, tokens_BT, **changes):
  return jax.jit(network(**changes).apply)({"params": params}, tokens_BT)


def assert_trees_close(found, expected, **tolerance):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


def stacked(params):
  """Parameters of a looped encoder in the layout of a scanned one."""
  encoder = dict(params["encoder"])
  layers = [encoder.pop(f"layers_{i}") for i in range(CONFIG.num_layers)]
  encoder["layers"] = jax.tree.map(lambda *x: jnp.stack(x), *layers)
  return {**params, "encoder": encoder}


def encoder_params(array, layers):
  """Our parameters out of the state dict of a model of transformers."""

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
  # Fresh norms and biases are too plain to show a mistake.
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
  # Input that is normed already passes a fresh norm unchanged.
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


def test_trailing_padding_never_changes_a_sentence_vector(params):
  whole_BD = encode(params, TOKENS_BT)
  wider_BT = np.pad(TOKENS_BT, ((0, 0), (0, 7)))
  np.testing.assert_allclose(encode(params, wider_BT), whole_BD, atol=2e-6)
  alone_BD = encode(params, TOKENS_BT[1:2, :3])
  np.testing.assert_allclose(alone_BD, whole_BD[1:2], atol=2e-6)


def test_an_id_outside_the_table_cannot_go_unseen(params):
  assert np.isnan(encode(params, np.array([[50, 1]]))).all()


def test_a_sentence_longer_than_the_position_table_is_refused():
  embedded_BTD = jnp.zeros((1, 15, 12))
  mask_BT = np.ones((1, 15), bool)
  encoder = bert.BertEncoder(dataclasses.replace(CONFIG, position_offset=2))
  with pytest.raises(errors.InputError, match=r"15 tokens.*positions for 14"):
    encoder.init(jax.random.key(0), embedded_BTD, mask_BT)


def loss_and_gradients(params, **changes):
  rngs = {"dropout": jax.random.key(3)}

  @jax.jit
  @jax.value_and_grad
  def loss(p):
    vectors_BD = network(**changes).apply({"params": p}, TOKENS_BT, deterministic=False, rngs=rngs)
    return jnp.sum(vectors_BD**2)

  return loss(params)


def test_scanned_and_recomputed_layers_compute_the_same_function(params):
  value, grad = loss_and_gradients(params)
  for remat in ("none", "full"):
    found = loss_and_gradients(stacked(params), scan_layers=True, remat=remat)
    assert_trees_close(found, (value, stacked(grad)), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["minimal", "full"])
@pytest.mark.parametrize("scan", [False, True])
def test_recomputing_changes_nothing_with_dropout(params, remat, scan):
  params = stacked(params) if scan else params
  expected = loss_and_gradients(params, dropout_rate=0.2, scan_layers=scan)
  found = loss_and_gradients(params, dropout_rate=0.2, scan_layers=scan, remat=remat)
  assert_trees_close(found, expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_stays_close_with_float32_parameters_and_output(params):
  half = network(dtype="bfloat16")
  fresh = jax.eval_shape(half.init, jax.random.key(0), TOKENS_BT)["params"]
  assert {x.dtype for x in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}
  found_BD = encode(params, TOKENS_BT, dtype="bfloat16")
  expected_BD = encode(params, TOKENS_BT)
  assert found_BD.dtype == jnp.float32
  error = np.linalg.norm(found_BD - expected_BD) / np.linalg.norm(expected_BD)
  assert 0 < error < 0.03


def test_dropout_needs_a_key_and_differs_by_key(params):
  @jax.jit
  def noisy(seed):
    rngs = {"dropout": jax.random.key(seed)}
    net = network(dropout_rate=0.3)
    return net.apply({"params": params}, TOKENS_BT, deterministic=False, rngs=rngs)

  np.testing.assert_array_equal(noisy(1), noisy(1))
  assert not np.allclose(noisy(1), noisy(2))
  np.testing.assert_array_equal(
    encode(params, TOKENS_BT, dropout_rate=0.3), encode(params, TOKENS_BT)
  )


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


@pytest.mark.parametrize("scan", [False, True])
def test_every_parameter_has_standard_logical_axes(scan):
  variables = jax.eval_shape(network(scan_layers=scan).init, jax.random.key(0), TOKENS_BT)
  axes = traverse_util.flatten_dict(
    partitioning.get_axis_names(variables["params_axes"]).unfreeze()
  )
  shapes = traverse_util.flatten_dict(jax.tree.map(lambda x: x.shape, variables["params"]))
  assert set(axes) == set(shapes)
  for name, shape in shapes.items():
    assert len(axes[name]) == len(shape), name
    assert set(axes[name]) <= STANDARD_AXES, name
    assert ("layers" in axes[name]) == (scan and "layers" in name), name


@pytest.mark.filterwarnings("ignore:.*context manager:DeprecationWarning")  # T5X enters meshes so
def test_activations_are_laid_out_where_a_mesh_and_rules_are_set():
  def program():
    shapes = jax.eval_shape(network().init, jax.random.key(0), TOKENS_BT)["params"]
    return str(jax.make_jaxpr(network().apply)({"params": shapes}, TOKENS_BT))

  assert "sharding_constraint" not in program()
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
  with mesh, partitioning.axis_rules([("batch", "data"), ("heads", "model")]):
    # Table once; three of attention, one each of feed-forward and output a layer.
    assert program().count("sharding_constraint[") == 1 + 5 * CONFIG.num_layers


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
