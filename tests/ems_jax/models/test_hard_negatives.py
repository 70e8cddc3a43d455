import math

import numpy as np
import pytest
import tiny_models
from tiny_models import jit

from ems_jax.models import hard_negatives
from vmsst.networks import sentence_encoder, t5
from vmsst.text import vocabularies

B, K, S = 4, 3, 8
NETWORK = sentence_encoder.SentenceEncoder(
  t5.T5Config(vocab_size=50, emb_dim=S, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1),
  latent_dim=S,
)


def make_model(**options):
  return hard_negatives.HardNegativesModel(
    network=NETWORK, input_vocabulary=vocabularies.ByteVocabulary(), **options
  )


def make_batch():
  rng = np.random.default_rng(0)
  tokens = {"inputs": (B, 5), "targets": (B, 6), "negatives": (B, K, 9)}
  batch = {name: rng.integers(2, 50, shape, dtype=np.int32) for name, shape in tokens.items()}
  for array in batch.values():
    array[1, ..., 3:] = 0
  batch["inputs"][3] = batch["inputs"][0]  # a source twice
  batch["negatives"][0, 1] = 0  # does not exist
  batch["negatives"][2] = 0
  return batch


def by_loops(vectors, batch, *, cosine, scale, mask_duplicates):
  source, target, wrong = vectors

  def score(x, y):
    length = np.linalg.norm(x) * np.linalg.norm(y) if cosine else 1.0
    return scale * float(x @ y) / length

  def is_rival(i, j):
    same = any(np.array_equal(batch[side][i], batch[side][j]) for side in ("inputs", "targets"))
    return not (mask_duplicates and same)

  losses, below, given = [], 0, 0
  for i in range(B):
    right = score(source[i], target[i])
    others = [j for j in range(B) if j != i and is_rival(i, j)]
    mined = [score(source[i], wrong[i, k]) for k in range(K) if batch["negatives"][i, k].any()]
    forward = [right, *(score(source[i], target[j]) for j in others), *mined]
    backward = [right, *(score(source[j], target[i]) for j in others)]
    losses.append(
      (math.log(sum(map(math.exp, forward))) + math.log(sum(map(math.exp, backward)))) / 2 - right
    )
    below += sum(x < right for x in mined)
    given += len(mined)
  return np.mean(losses), below / given, given / B


@pytest.mark.parametrize(
  "options",
  [
    {"similarity": "cosine", "scale": 10.0, "matryoshka_dims": (3,)},
    {"scale": 0.5, "mask_duplicates": True},
  ],
)
def test_loss_and_metrics_are_those_of_loops(options):
  model, batch = make_model(**options), make_batch()
  params = tiny_models.random_params(NETWORK)
  tokens = [x.reshape(-1, x.shape[-1]) for x in batch.values()]
  tokens_NT = np.concatenate([np.pad(x, ((0, 0), (0, 9 - x.shape[1]))) for x in tokens])
  vector_NS = np.float64(jit(model.score_batch)(params, {"inputs": tokens_NT}))
  loss, found = tiny_models.evaluate(model.eval_fn, params, batch)
  losses = []
  for dim in (S, *options.get("matryoshka_dims", ())):
    cut_NS = vector_NS[:, :dim]
    mean, below, given = by_loops(
      (cut_NS[:B], cut_NS[B : 2 * B], cut_NS[2 * B :].reshape(B, K, dim)),
      batch,
      cosine=options.get("similarity") == "cosine",
      scale=options["scale"],
      mask_duplicates=options.get("mask_duplicates", False),
    )
    losses.append(mean)
    prefix = "" if dim == S else f"first_{dim}/"
    assert found[f"{prefix}accuracy/negatives"] == pytest.approx(below)
    if prefix:
      assert found[f"{prefix}loss"] == pytest.approx(mean, rel=1e-4)
  assert [loss, found["loss"]] == pytest.approx([np.mean(losses)] * 2, rel=1e-4)
  assert found["negatives_per_example"] == given == 8 / B
  real = sum((batch[side] != 0).sum() for side in ("inputs", "targets"))
  assert found["tokens_per_example"] == pytest.approx(real / B)
