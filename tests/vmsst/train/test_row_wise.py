"""Row-wise updates of the token table, against updates of all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_models
import toy_runs

from vmsst.data import vocabularies
from vmsst.models import contrastive
from vmsst.networks import sentence_encoder, static
from vmsst.train import optimizers, partitioning, row_wise, train_state

V, B, RATE = 60, 8, 0.1
FIRST = 40  # tokens below are in no batch


def train(optimizer, *, steps=3, num_partitions=1, **options):
  """The first and the last train state."""
  network = sentence_encoder.SentenceEncoder(static.StaticConfig(V, 16), 16, head=False)
  model = contrastive.ContrastiveModel(
    network=network, vocabulary=vocabularies.ByteVocabulary(), optimizer_def=optimizer,
    allow_fewer_negatives=True,
  )  # fmt: skip
  partitioner = partitioning.PjitPartitioner(num_partitions=num_partitions)
  states = train_state.TrainStateInitializer(
    optimizer_def=optimizer,
    init_fn=model.get_initial_variables,
    input_shapes={"inputs": (B, 6), "targets": (B, 6)},
    partitioner=partitioner,
  )
  first = states.from_scratch(jax.random.PRNGKey(0))
  trainer = toy_runs.make_trainer(**options)(
    model=model, train_state=first, partitioner=partitioner, eval_names=[], summary_dir=None,
    train_state_axes=states.train_state_axes, rng=jax.random.PRNGKey(1),
  )  # fmt: skip
  first = toy_runs.host(first)
  batches = (tiny_models.random_batch(step, B, (6, 6), (FIRST, V)) for step in range(steps))
  trainer.train(map(partitioner.to_devices, batches), steps, 0)
  return first, toy_runs.host(trainer.train_state)


@pytest.mark.parametrize("num_microbatches", [None, 2])
def test_an_optimizer_that_keeps_rows_without_gradient_gives_the_same_table(num_microbatches):
  chained = optimizers.chain([optax.clip_by_global_norm(0.5), optax.adagrad(RATE)])
  options = {"num_microbatches": num_microbatches}
  _, expected = train(chained, **options)
  first, state = train(row_wise.RowWise(chained), **options)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
    (state.params, state.param_states),
    (expected.params, expected.param_states),
  )
  assert not np.allclose(state.params["token_embedder"]["embedding"],
                         first.params["token_embedder"]["embedding"])  # fmt: skip


def test_weight_decay_and_momentum_keep_rows_of_other_tokens():
  chained = optimizers.chain([optax.adamw(RATE, weight_decay=0.1)])
  first, last = train(row_wise.RowWise(chained))
  before, after = (x.params["token_embedder"]["embedding"] for x in (first, last))
  np.testing.assert_array_equal(after[1:FIRST], before[1:FIRST])  # all but padding
  assert (np.abs(after - before)[FIRST:] > 1e-3).all()
  (moments,) = (x for x in jax.tree.leaves(last.param_states, is_leaf=lambda x: hasattr(x, "mu"))
                if hasattr(x, "mu"))  # fmt: skip
  assert not moments.mu["token_embedder"]["embedding"][:FIRST].any()
  assert moments.mu["token_embedder"]["embedding"][FIRST:].any()


def test_a_token_that_is_not_among_the_rows_is_nan():
  network = sentence_encoder.SentenceEncoder(static.StaticConfig(V, 4), 4, head=False)
  params = {"token_embedder": {"embedding": np.eye(3, 4), "rows": jnp.array([2, 5, 9])}}
  vectors = sentence_encoder.embed(network, params, jnp.array([[2, 9, 0], [5, 3, 0], [60, 2, 0]]))
  np.testing.assert_allclose(vectors[0], [0.5, 0, 0.5, 0])
  assert np.isnan(vectors[1:]).all()
