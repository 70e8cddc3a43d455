import dataclasses
import math

import jax
import numpy as np
import pytest
import tiny_models
from flax import traverse_util

from vmsst.networks import sentence_encoder, t5

CONFIG = t5.T5Config(
  vocab_size=50, emb_dim=16, num_heads=3, head_dim=4, mlp_dim=24, num_encoder_layers=2
)
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)


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
  # Fresh norms and bias tables would hide mistakes.
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


def test_dropout_is_shared_along_the_length():
  layer = t5.EncoderLayer(dataclasses.replace(CONFIG, dropout_rate=0.5), deterministic=False)
  arrays = (np.broadcast_to(np.linspace(1, 2, 16, dtype=np.float32), (2, 7, 16)), np.zeros(()))
  rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
  params = tiny_models.random_values(jax.eval_shape(layer.init, rngs, *arrays)["params"])
  # Without attention, whose weights are dropped one by one, equal positions stay equal.
  params["attention"]["out"]["kernel"] *= 0
  found_BTD, _ = layer.apply({"params": params}, *arrays, rngs=rngs)
  np.testing.assert_array_equal(found_BTD, np.broadcast_to(found_BTD[:, :1], found_BTD.shape))
  assert not np.array_equal(found_BTD[0], found_BTD[1])


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
