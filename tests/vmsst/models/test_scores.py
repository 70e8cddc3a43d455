"""Models of scores, and hard negatives, against the losses of sentence-transformers."""

import commands
import jax
import numpy as np
import pytest
import tiny_models
from flax import linen as nn

from vmsst import errors
from vmsst.models import contrastive, scores

B, K, S = 8, 3, 5
RNG = np.random.default_rng(0)


class Vectors(nn.Module):
  """A table of vectors, one for each text of one token: its gradient is the vectors'."""

  @nn.compact
  def __call__(self, tokens_BT, deterministic=True):
    table_NS = self.param("table", nn.initializers.normal(), (1 + (2 + K) * B, S))
    return table_NS[tokens_BT[:, 0]]


def make_batch():
  token_RB = 1 + np.arange((2 + K) * B, dtype=np.int32).reshape(2 + K, B)
  return {
    "inputs": token_RB[0][:, None],
    "targets": token_RB[1][:, None],
    "negatives": token_RB[2:].T[..., None],
    "scores": RNG.normal(size=(B, 1 + K)).astype(np.float32),
  }


TABLE_NS = RNG.normal(size=(1 + (2 + K) * B, S)).astype(np.float32)
BATCH = make_batch()
GRADES_B = RNG.integers(0, 4, B).astype(np.float32) / 4
COSINE = {"similarity": "cosine", "scale": 20.0}
BOTH = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


def value_and_gradient(model, batch):
  run = tiny_models.jit(jax.value_and_grad(model.loss_fn, has_aux=True))
  (loss, metrics), gradients = run({"table": TABLE_NS}, batch, None)
  assert float(metrics["loss"].compute()) == pytest.approx(float(loss), rel=1e-6)
  return float(loss), gradients["table"]


def new(model_cls, **options):
  return model_cls(network=Vectors(), vocabulary=None, **options)


RANKING, KL = "MultipleNegativesRankingLoss", "DistillKLDivLoss"
MARGIN_MSE = {"distillation": "margin_mse"}
# A model, the features that it reads, the loss of sentence-transformers, its options and scores.
CASES = [
  (new(contrastive.ContrastiveModel, symmetric=False, **COSINE), ("negatives",), RANKING, {}, None),
  (new(contrastive.ContrastiveModel, **COSINE), ("negatives",), RANKING, BOTH, None),
  (
    new(contrastive.ContrastiveModel, scale=0.3), (), RANKING,
    {"scale": 0.3, "similarity_fct": lambda x, y: x @ y.T, **BOTH}, None,
  ),
  (new(scores.SimilarityModel), (), "CoSENTLoss", {}, GRADES_B),
  (new(scores.SimilarityModel, loss="mse"), (), "CosineSimilarityLoss", {}, GRADES_B),
  (
    new(scores.ScoreDistillationModel, **MARGIN_MSE), ("negatives",),
    "MarginMSELoss", {}, BATCH["scores"],
  ),
  (
    new(scores.ScoreDistillationModel, scale=0.5, temperature=3.0), ("negatives",), KL,
    {"student_temperature": 2.0, "teacher_temperature": 3.0}, BATCH["scores"],
  ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "read", "name", "options", "grades"), CASES)
def test_losses_and_gradients_equal_sentence_transformers(model, read, name, options, grades):
  # Not at the top: the process with eight devices imports TensorFlow.
  torch = pytest.importorskip("torch", reason="needs sentence-transformers")
  losses = pytest.importorskip(
    "sentence_transformers.sentence_transformer.losses", reason="needs sentence-transformers"
  )

  theirs = getattr(losses, name)(None, **options)
  batch = {name: BATCH[name] for name in ("inputs", "targets", *read)}
  if grades is not None:
    batch["scores"] = grades.reshape(B, -1)
  loss, gradient_NS = value_and_gradient(model, batch)
  table_NS = torch.tensor(TABLE_NS, requires_grad=True)
  columns = table_NS[1:].reshape(2 + K, B, S)[: 2 + K * ("negatives" in read)]
  expected = theirs.compute_loss_from_embeddings(
    [*columns], torch.tensor(0 if grades is None else grades)
  )
  expected = expected / getattr(theirs, "student_temperature", 1) ** 2  # their factor
  expected.backward()
  assert loss == pytest.approx(expected.item(), rel=1e-5)
  np.testing.assert_allclose(gradient_NS, table_NS.grad, rtol=1e-4, atol=1e-6)


def test_a_missing_negative_changes_nothing_but_the_number_of_negatives():
  model = new(scores.ScoreDistillationModel, contrastive_weight=0.2, **COSINE)
  fewer = {**BATCH, "negatives": BATCH["negatives"][:, :-1]}
  fewer["scores"] = BATCH["scores"][:, :-1]
  padded = {**BATCH, "negatives": BATCH["negatives"].copy()}
  padded["negatives"][:, -1] = 0
  for one, other in zip(
    value_and_gradient(model, fewer), value_and_gradient(model, padded), strict=True
  ):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_terms_add_up_and_scores_need_negatives():
  models = [
    new(scores.ScoreDistillationModel, contrastive_weight=weight, **COSINE) for weight in (0.0, 0.2)
  ]
  distillation, both = (value_and_gradient(model, BATCH)[0] for model in models)
  ranking, _ = value_and_gradient(new(contrastive.ContrastiveModel, **COSINE), BATCH)
  assert both == pytest.approx(distillation + 0.2 * ranking, rel=1e-6)
  with pytest.raises(errors.InputError, match="no hard negatives with a teacher's scores"):
    value_and_gradient(models[0], {name: BATCH[name] for name in ("inputs", "targets")})


def run_on_eight_devices(folder):
  """Saves losses and gradients of batches whose rows are sharded."""
  mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  with jax.set_mesh(mesh):
    batch = jax.device_put(BATCH, rows)
    tiny_models.save(folder / "sharded.npz", jax.tree.leaves(all_results(batch)))


def all_results(batch):
  return [
    value_and_gradient(model, {x: batch[x] for x in ("inputs", "targets", "scores", *read)})
    for model, read, *_ in CASES
  ]


def test_eight_devices_have_the_results_of_one(tmp_path):
  commands.on_eight_devices(__file__, tmp_path)
  expected = jax.tree.leaves(all_results(BATCH))
  tiny_models.assert_saved_equal(tmp_path / "sharded.npz", expected, rtol=1e-4, atol=1e-6)
