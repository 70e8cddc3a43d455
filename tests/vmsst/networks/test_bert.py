import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from vmsst import errors
from vmsst.networks import bert, sentence_encoder

CONFIG = bert.BertConfig(
  vocab_size=50, emb_dim=12, num_heads=3, mlp_dim=20, num_layers=2, max_positions=16,
  num_token_types=2, initializer_std=0.3,
)  # fmt: skip
TOKENS_BT = np.array([[5, 6, 7, 8, 9, 1], [11, 12, 1, 0, 0, 0], [49, 1, 0, 0, 0, 0]], np.int32)


def network(**changes):
  config = dataclasses.replace(CONFIG, **changes)
  return sentence_encoder.SentenceEncoder(config, config.emb_dim, head=False, pooling="pooler")


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


def test_a_sentence_longer_than_the_position_table_is_refused():
  embedded_BTD = jnp.zeros((1, 15, 12))
  mask_BT = np.ones((1, 15), bool)
  encoder = bert.BertEncoder(dataclasses.replace(CONFIG, position_offset=2))
  with pytest.raises(errors.InputError, match=r"15 tokens.*positions for 14"):
    encoder.init(jax.random.key(0), embedded_BTD, mask_BT)


def test_initial_distributions():
  sizes = {"emb_dim": 96, "mlp_dim": 128, "vocab_size": 200, "max_positions": 60}
  wide = network(**sizes, initializer_std=0.02, scan_layers=True)
  variables = jax.jit(wide.init)(jax.random.key(0), TOKENS_BT)
  flat = traverse_util.flatten_dict(variables["params"], sep="/")
  for name, array in flat.items():
    if name.endswith(("kernel", "embedding")):
      assert np.std(array) == pytest.approx(0.02, rel=0.15), name
    else:
      np.testing.assert_array_equal(array, float(name.endswith("/scale")), name)
  kernel_LDM = flat["encoder/layers/mlp/wi/kernel"]
  assert not np.allclose(kernel_LDM[0], kernel_LDM[1])
