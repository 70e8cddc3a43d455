import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util
from flax.linen import partitioning

from vmsst import errors
from vmsst.networks import sentence_encoder, t5

CONFIG = t5.T5Config(
  vocab_size=50, emb_dim=16, num_heads=3, head_dim=4, mlp_dim=24, num_encoder_layers=2
)
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)
# Axis names that T5X's partitioning rules and its Adafactor factor rules both know.
STANDARD_AXES = {
  "vocab", "embed", "mlp", "heads", "kv", "joined_kv", "relpos_buckets", "layers", "stack",
  "mlp_activations",
}  # fmt: skip


def network(**changes) -> sentence_encoder.SentenceEncoder:
  return sentence_encoder.SentenceEncoder(dataclasses.replace(CONFIG, **changes), latent_dim=10)


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
  layers = [encoder.pop(f"layers_{i}") for i in range(CONFIG.num_encoder_layers)]
  encoder["layers"] = jax.tree.map(lambda *x: jnp.stack(x), *layers)
  return {**params, "encoder": encoder}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["T5", "MT5"])
@pytest.mark.filterwarnings("ignore")  # those of another library
def test_hidden_states_equal_those_of_transformers(family, padded):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
  cfg = dataclasses.replace(CONFIG, relpos_buckets=8, relpos_max_distance=20)
  torch.manual_seed(0)
  reference = getattr(transformers, f"{family}EncoderModel")(
    getattr(transformers, f"{family}Config")(
      vocab_size=cfg.vocab_size,
      d_model=cfg.emb_dim,
      d_kv=cfg.head_dim,
      num_heads=cfg.num_heads,
      d_ff=cfg.mlp_dim,
      num_layers=cfg.num_encoder_layers,
      feed_forward_proj="gated-gelu",
      relative_attention_num_buckets=cfg.relpos_buckets,
      relative_attention_max_distance=cfg.relpos_max_distance,
    )
  ).eval()
  # Fresh norms and bias tables are too plain to show a mistake.
  with torch.no_grad():
    for weight in reference.parameters():
      weight += 0.3 * torch.randn_like(weight)
  array = {name: weight.numpy() for name, weight in reference.state_dict().items()}

  def layer(i):
    block = f"encoder.block.{i}.layer"
    attention = {
      ours: {"kernel": array[f"{block}.0.SelfAttention.{theirs}.weight"].T}
      for ours, theirs in {"query": "q", "key": "k", "value": "v", "out": "o"}.items()
    }
    mlp = {
      n: {"kernel": array[f"{block}.1.DenseReluDense.{n}.weight"].T} for n in ("wi_0", "wi_1", "wo")
    }
    return {
      "pre_attention_layer_norm": {"scale": array[f"{block}.0.layer_norm.weight"]},
      "attention": attention,
      "pre_mlp_layer_norm": {"scale": array[f"{block}.1.layer_norm.weight"]},
      "mlp": mlp,
    }

  bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
  encoder_params = {
    "relpos_bias": {"rel_embedding": array[bias].T},
    "encoder_norm": {"scale": array["encoder.final_layer_norm.weight"]},
    **{f"layers_{i}": layer(i) for i in range(cfg.num_encoder_layers)},
  }
  tokens_BT = np.random.default_rng(0).integers(2, 50, size=(3, 30))
  mask_BT = np.ones(tokens_BT.shape, bool)
  if padded:
    mask_BT[1, 7:] = mask_BT[2, 1:] = False
  embedded_BTD = array["shared.weight"][tokens_BT]
  found_BTD = t5.T5Encoder(cfg).apply({"params": encoder_params}, embedded_BTD, mask_BT)
  with torch.no_grad():
    expected_BTD = reference(
      input_ids=torch.tensor(tokens_BT), attention_mask=torch.tensor(mask_BT.astype(np.int64))
    ).last_hidden_state.numpy()
  np.testing.assert_allclose(found_BTD[mask_BT], expected_BTD[mask_BT], atol=1e-5, rtol=1e-5)


def test_buckets_by_exact_arithmetic():
  found_TT = t5.relative_position_buckets(300, buckets=32, max_distance=128)
  for query, key in [(0, d) for d in range(300)] + [(d, 0) for d in range(300)]:
    distance = abs(query - key)
    expected = 16 if key > query else 0
    if distance < 8:
      expected += distance
    else:
      # Bucket 8 + b holds distances of at least 8 * 16^(b/8): in integers, d^2 >= 64 * 2^b.
      expected += min(15, 8 + max(b for b in range(9) if distance**2 >= 64 * 2**b))
    assert found_TT[query, key] == expected, (query, key)


def test_trailing_padding_never_changes_a_sentence_vector(params):
  whole_BS = encode(params, TOKENS_BT)
  wider_BT = np.pad(TOKENS_BT, ((0, 0), (0, 7)))
  np.testing.assert_allclose(encode(params, wider_BT), whole_BS, atol=2e-6)
  alone_BS = encode(params, TOKENS_BT[1:2, :3])
  np.testing.assert_allclose(alone_BS, whole_BS[1:2], atol=2e-6)


def test_a_row_of_padding_is_zero(params):
  np.testing.assert_array_equal(encode(params, np.zeros((2, 4), np.int32)), 0)


def test_an_id_outside_the_table_cannot_go_unseen(params):
  assert np.isnan(encode(params, np.array([[50]]))).all()


def loss_and_gradients(params, **changes):
  rngs = {"dropout": jax.random.key(3)}

  @jax.jit
  @jax.value_and_grad
  def loss(p):
    vectors_BS = network(**changes).apply({"params": p}, TOKENS_BT, deterministic=False, rngs=rngs)
    return jnp.sum(vectors_BS**2)

  return loss(params)


def test_scanned_layers_compute_the_same_function(params):
  value, grad = loss_and_gradients(params)
  found = loss_and_gradients(stacked(params), scan_layers=True)
  assert_trees_close(found, (value, stacked(grad)), rtol=1e-3, atol=1e-4)


def test_scanned_layers_start_different():
  variables = jax.jit(network(scan_layers=True).init)(jax.random.key(0), TOKENS_BT)
  kernel_LDM = variables["params"]["encoder"]["layers"]["mlp"]["wi_0"]["kernel"]
  assert not np.allclose(kernel_LDM[0], kernel_LDM[1])


@pytest.mark.parametrize("scan", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_recomputing_changes_nothing_with_dropout(params, scan):
  params = stacked(params) if scan else params
  expected = loss_and_gradients(params, dropout_rate=0.2, scan_layers=scan)
  for remat in ("minimal", "full"):
    found = loss_and_gradients(params, dropout_rate=0.2, scan_layers=scan, remat=remat)
    assert_trees_close(found, expected, rtol=1e-4, atol=1e-4)


def test_recomputing_saves_memory():
  def temporaries(policy):
    net = network(remat=policy, num_encoder_layers=4, scan_layers=True)
    tokens_BT = jnp.ones((64, 32), jnp.int32)
    p = jax.eval_shape(net.init, jax.random.key(0), tokens_BT)["params"]
    grad = jax.jit(jax.grad(lambda p, x: jnp.sum(net.apply({"params": p}, x) ** 2)))
    return grad.lower(p, tokens_BT).compile().memory_analysis().temp_size_in_bytes

  assert temporaries("full") < 0.7 * temporaries("none")


def test_bfloat16_stays_close_with_float32_parameters_and_output(params):
  half = network(dtype="bfloat16")
  fresh = jax.eval_shape(half.init, jax.random.key(0), TOKENS_BT)["params"]
  assert {x.dtype for x in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}
  found_BS = encode(params, TOKENS_BT, dtype="bfloat16")
  expected_BS = encode(params, TOKENS_BT)
  assert found_BS.dtype == jnp.float32
  error = np.linalg.norm(found_BS - expected_BS) / np.linalg.norm(expected_BS)
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
  cfg = t5.T5Config(
    vocab_size=400, emb_dim=256, num_heads=8, head_dim=32, mlp_dim=512, num_encoder_layers=1
  )
  init = jax.jit(sentence_encoder.SentenceEncoder(cfg, latent_dim=256).init)
  variables = init(jax.random.key(0), TOKENS_BT)
  flat = traverse_util.flatten_dict(variables["params"], sep="/")
  layer = "encoder/layers_0"
  expected_std = {
    "token_embedder/embedding": 1,
    f"{layer}/attention/query/kernel": 1 / math.sqrt(256 * 32),
    f"{layer}/attention/key/kernel": 1 / math.sqrt(256),
    f"{layer}/attention/value/kernel": 1 / math.sqrt(256),
    f"{layer}/attention/out/kernel": 1 / math.sqrt(256),
    f"{layer}/mlp/wi_0/kernel": 1 / math.sqrt(256),
    f"{layer}/mlp/wi_1/kernel": 1 / math.sqrt(256),
    f"{layer}/mlp/wo/kernel": 1 / math.sqrt(512),
    "encoder/relpos_bias/rel_embedding": 1 / math.sqrt((8 + 32) / 2),
    "mean/kernel": 1 / math.sqrt(256),
  }
  for name, std in expected_std.items():
    assert np.std(flat[name]) == pytest.approx(std, rel=0.1), name
  norms = {name for name in flat if name.endswith("/scale")}
  assert set(flat) == set(expected_std) | norms
  for name in norms:
    np.testing.assert_array_equal(flat[name], 1)
  # Truncated at two standard deviations of the underlying normal; a plain normal is not.
  assert np.max(np.abs(flat[f"{layer}/mlp/wi_0/kernel"])) * 16 < 2.3
  assert np.max(np.abs(flat[f"{layer}/attention/key/kernel"])) * 16 > 3


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
@pytest.mark.parametrize("enter", [lambda mesh: mesh, jax.set_mesh])
def test_activations_are_laid_out_wherever_a_mesh_and_rules_are_set(enter):
  def program():
    shapes = jax.eval_shape(network().init, jax.random.key(0), TOKENS_BT)["params"]
    return str(jax.make_jaxpr(network().apply)({"params": shapes}, TOKENS_BT))

  assert "sharding_constraint" not in program()
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
  with enter(mesh), partitioning.axis_rules([("batch", "data"), ("heads", "model")]):
    # Table and mean head once; three of attention, one each of feed-forward and output a layer.
    # Where flax sees the mesh it adds those of parameters.
    assert program().count("sharding_constraint[") >= 2 + 5 * CONFIG.num_encoder_layers


def test_one_table_can_serve_two_encoders():
  class Twins(nn.Module):
    def setup(self):
      self.token_embedder = t5.TokenEmbedder(CONFIG.vocab_size, CONFIG.emb_dim)
      self.first = t5.T5Encoder(CONFIG)
      self.second = t5.T5Encoder(CONFIG)

    def __call__(self, tokens_BT):
      embedded_BTD, mask_BT = self.token_embedder(tokens_BT), tokens_BT != 0
      return self.first(embedded_BTD, mask_BT), self.second(embedded_BTD + 1, mask_BT)

  variables = jax.eval_shape(Twins().init, jax.random.key(0), TOKENS_BT)
  assert set(variables["params"]) == {"token_embedder", "first", "second"}


def test_config_survives_json():
  cfg = t5.T5Config(vocab_size=7, dropout_rate=0.1, dtype="bfloat16", remat="minimal")
  assert t5.T5Config(**json.loads(json.dumps(dataclasses.asdict(cfg)))) == cfg


@pytest.mark.parametrize(
  ("field", "value"),
  [("dtype", "float16"), ("remat", "some"), ("emb_dim", 0), ("dropout_rate", 1.0),
   ("vocab_size", "9"), ("relpos_buckets", 6)],
)  # fmt: skip
def test_config_names_the_bad_value(field, value):
  with pytest.raises(errors.InputError, match=field):
    dataclasses.replace(CONFIG, **{field: value})
