import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from vmsst.data import packing
from vmsst.models import base, contrastive
from vmsst.networks import sentence_encoder, t5, transformer
from vmsst.train import input_pipeline


def _batch(size=12, length=80, negatives=3):
  """Returns texts of 1 to 39 tokens; some hard negatives are missing."""
  rng = np.random.default_rng(0)

  def texts(*shape):
    length_N = rng.integers(1, 40, shape)
    if len(shape) > 1:
      length_N[::3, -1] = 0
    tokens = rng.integers(1, 30, (*shape, length))
    return np.where(np.arange(length) < length_N[..., None], tokens, 0).astype(np.int32)

  batch = {"inputs": texts(size), "targets": texts(size)}
  return batch | ({"negatives": texts(size, negatives)} if negatives else {})


@pytest.mark.parametrize("negatives", [0, 3])
def test_rows_hold_each_text_once_and_in_one_piece(negatives):
  batch = packing.pack(_batch(negatives=negatives))
  tokens = np.asarray(base.interleave(*(x for name, x in batch.items() if name != "packing")))
  tokens_NT = tokens.reshape(-1, 80)
  packing_RW = batch["packing"]
  assert packing_RW.shape[1] == 64
  assert packing_RW.size < 1.5 * np.count_nonzero(tokens_NT) < tokens_NT.size
  used = packing_RW[packing_RW >= 0]
  assert sorted(used) == np.flatnonzero(tokens_NT).tolist()
  rows = [set(row[row >= 0] // 80) for row in packing_RW]
  assert sum(map(len, rows)) == len(set.union(*rows))


@pytest.mark.parametrize(
  ("size", "slices", "multiple"), [(1, 1, 1), (12, 1, 2), (32, 1, 3), (64, 2, 6), (512, 1, 11)]
)
def test_batches_have_few_shapes_and_little_padding(size, slices, multiple):
  packing_RW = packing.pack(_batch(size, negatives=0), slices)["packing"]
  is_empty_R = (packing_RW < 0).all(axis=1)
  assert len(packing_RW) % multiple == 0
  assert min(np.count_nonzero(is_empty_R[s::slices]) for s in range(slices)) < multiple / slices


def test_packed_batches_are_not_trimmed():
  tokens_BT = np.zeros((4, 128), np.int32)
  tokens_BT[:, :3] = 1
  batch = {"inputs": tokens_BT, "targets": tokens_BT}
  assert input_pipeline.trim_padding(batch)["inputs"].shape == (4, 8)
  packed = packing.pack(batch)
  trimmed = input_pipeline.trim_padding(packed)
  assert {name: x.shape for name, x in trimmed.items()} == {
    name: x.shape for name, x in packed.items()
  }


def test_a_row_is_as_wide_as_the_longest_text():
  tokens_BT = np.zeros((4, 128), np.int32)
  tokens_BT[0, :65] = tokens_BT[1:, :60] = 1
  batch = packing.pack({"inputs": tokens_BT, "targets": tokens_BT})
  assert batch["packing"].shape == (4, 128)


_T5 = t5.T5Config(
  vocab_size=30, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_encoder_layers=2,
)  # fmt: skip
_SIZES = {"vocab_size": 30, "emb_dim": 16, "num_heads": 2, "mlp_dim": 32, "num_layers": 2}


@pytest.mark.parametrize("pooling", ["mean", "cls+last"])
@pytest.mark.parametrize(
  "config",
  [
    _T5,
    transformer.TransformerConfig(**_SIZES, max_positions=82, position_offset=2),
    transformer.TransformerConfig(**_SIZES, positions="relative", relpos_buckets=8),
    transformer.TransformerConfig(**_SIZES, positions="rotary", causal=True, scan_layers=True),
    transformer.TransformerConfig(**_SIZES, positions="rotary", local_layers=(1,), window=4),
  ],
)
def test_packed_rows_give_the_same_vectors_and_gradients(config, pooling):
  network = sentence_encoder.SentenceEncoder(
    config, 16 * len(pooling.split("+")), head=False, pooling=pooling
  )
  batch = packing.pack(_batch(negatives=0))
  tokens_NT = base.interleave(batch["inputs"], batch["targets"]).reshape(-1, 80)
  params = network.init(jax.random.PRNGKey(0), tokens_NT)["params"]
  weights_NS = jax.random.normal(jax.random.PRNGKey(1), (len(tokens_NT), network.latent_dim))

  @jax.jit
  def loss(params, packing_RW=None):
    vector_NS = sentence_encoder.embed(network, params, tokens_NT, packing_RW)
    return jnp.sum(weights_NS * vector_NS), vector_NS

  results = [
    jax.value_and_grad(loss, has_aux=True)(params, *packed) for packed in ((), (batch["packing"],))
  ]
  # The gradient of a key bias is 0, so compare with the largest gradient of any parameter.
  scale = max(np.abs(x).max() for x in jax.tree.leaves(results[0]))
  for plain, packed in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(packed, plain, atol=1e-6 * scale, rtol=1e-4)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("negatives", [0, 3])
def test_a_model_has_the_same_loss_and_gradient_for_packed_batches(negatives, slices):
  config = transformer.TransformerConfig(**_SIZES, max_positions=80)
  network = sentence_encoder.SentenceEncoder(config, 16, head=False)
  options = {"network": network, "vocabulary": None, "similarity": "cosine", "scale": 20.0}
  batch = _batch(negatives=negatives)
  params = network.init(jax.random.PRNGKey(0), batch["inputs"])["params"]
  results = []
  for count, given in ((1, batch), (slices, packing.pack(batch, slices))):
    model = contrastive.ContrastiveModel(**options, embedding_slices=count)
    loss = jax.value_and_grad(lambda params, x, model=model: model.loss_fn(params, x, None)[0])
    results.append(loss(params, given))
  tiny_models.assert_trees_close(*results, rtol=1e-4, atol=1e-6 * float(results[0][0]))
