import dataclasses
import functools
import json
import pathlib
import re

import eight_devices
import jax
import jax.numpy as jnp
import numpy as np
import pair_batches
import pytest
import sharded_models
from flax import traverse_util

from vmsst import errors
from vmsst.models import base, contrastive, gradient_caching
from vmsst.networks import sentence_encoder, t5
from vmsst.text import vocabularies

# Compilation takes most of the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

CONFIG = t5.T5Config(
  vocab_size=60, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16, num_encoder_layers=1
)


def make_model(*, dropout_rate=0.0, **options):
  return contrastive.ContrastiveModel(
    network=sentence_encoder.SentenceEncoder(
      dataclasses.replace(CONFIG, dropout_rate=dropout_rate), latent_dim=16
    ),
    input_vocabulary=vocabularies.ByteVocabulary(),
    **options,
  )


def make_batch(pairs=8, inputs_length=6, targets_length=6):
  return pair_batches.random_batch(pairs, pairs, (inputs_length, targets_length), (2, 60))


def make_params():
  """Initial parameters, scaled so that the softmax is not saturated."""
  model = make_model()
  init = jit(lambda rng: model.get_initial_variables(rng, {"inputs": (8, 6)})["params"])
  return jax.tree.map(lambda x: 0.5 * x, init(jax.random.key(0)))


@pytest.fixture(scope="module")
def params():
  return make_params()


def loss_and_metrics(model, params, batch):
  loss, metrics = jit(model.eval_fn)(params, batch)
  return loss, {name: float(m.compute()) for name, m in metrics.items()}


def assert_trees_close(found, expected, **tolerance):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


def side_vectors(params, batch):
  """Vectors of sources and targets, encoded separately."""
  score_batch = jit(make_model().score_batch)
  return [np.float64(score_batch(params, {"inputs": batch[x]})) for x in ("inputs", "targets")]


def loss_of_scores(score_BB, rival_BB=None):
  """The loss from scores, pair by pair; `rival_BB` is False for pairs that are not negatives."""
  if rival_BB is None:
    rival_BB = np.ones(score_BB.shape, bool)
  losses = []
  for i in range(len(score_BB)):
    for scores, rivals in ((score_BB[i], rival_BB[i]), (score_BB[:, i], rival_BB[:, i])):
      losses.append(np.log(np.exp(scores[rivals]).sum()) - scores[i])
  return np.mean(losses)


def test_loss_and_metrics_from_the_vectors_of_each_side(params):
  model, batch = make_model(), make_batch(targets_length=9)
  loss, metrics = loss_and_metrics(model, params, batch)
  source_BS, target_BS = side_vectors(params, batch)
  score_BB = source_BS @ target_BS.T
  expected = loss_of_scores(score_BB)
  assert loss == pytest.approx(expected, rel=1e-4)
  assert metrics["loss"] == pytest.approx(expected, rel=1e-4)
  assert metrics["accuracy/forward"] == np.mean(score_BB.argmax(axis=1) == np.arange(8))
  assert metrics["accuracy/backward"] == np.mean(score_BB.argmax(axis=0) == np.arange(8))
  tokens = sum(np.count_nonzero(x) for x in batch.values())
  assert metrics["tokens_per_example"] == pytest.approx(tokens / 8)
  norms = np.linalg.norm(np.concatenate([source_BS, target_BS]), axis=1)
  assert metrics["embedding_norm"] == pytest.approx(norms.mean(), rel=1e-4)


def test_a_matryoshka_loss_is_the_mean_over_cut_vectors(params):
  model, batch = make_model(similarity="cosine", scale=5.0, matryoshka_dims=(4, 9)), make_batch()
  loss, metrics = loss_and_metrics(model, params, batch)
  expected = {}
  for dim in (16, 4, 9):
    cut = [vectors[:, :dim] for vectors in side_vectors(params, batch)]
    source_BS, target_BS = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in cut)
    score_BB = 5.0 * source_BS @ target_BS.T
    expected[dim] = loss_of_scores(score_BB)
    prefix = "" if dim == 16 else f"first_{dim}/"
    accuracy = np.mean(score_BB.argmax(axis=1) == np.arange(8))
    assert metrics[f"{prefix}accuracy/forward"] == accuracy
  assert metrics["first_4/loss"] == pytest.approx(expected[4], rel=1e-4)
  assert metrics["first_9/loss"] == pytest.approx(expected[9], rel=1e-4)
  assert loss == pytest.approx(np.mean([*expected.values()]), rel=1e-4)
  assert metrics["loss"] == pytest.approx(np.mean([*expected.values()]), rel=1e-4)


@pytest.mark.parametrize("dims", [4, (0,), (4, 4), (True,), ("4",), (2.0,)])
def test_other_matryoshka_dims_are_refused(dims):
  with pytest.raises(errors.InputError, match=re.escape(f"matryoshka_dims is {dims!r}; set it to")):
    make_model(matryoshka_dims=dims)


def test_vectors_must_be_longer_than_they_are_cut(params):
  model = make_model(matryoshka_dims=(16,))
  with pytest.raises(errors.InputError, match="matryoshka_dims has 16, but vectors have 16 dim"):
    model.eval_fn(params, make_batch())


def test_cosine_and_duplicates_are_options(params):
  batch = make_batch()
  batch["targets"][3] = batch["targets"][0]
  batch["inputs"][5] = batch["inputs"][6]
  model = make_model(similarity="cosine", scale=7.0, mask_duplicates=True)
  loss, metrics = loss_and_metrics(model, params, batch)
  source_BS, target_BS = (
    x / np.linalg.norm(x, axis=1, keepdims=True) for x in side_vectors(params, batch)
  )
  score_BB = 7.0 * source_BS @ target_BS.T
  rival_BB = np.ones((8, 8), bool)
  for i, j in ((3, 0), (5, 6)):
    rival_BB[i, j] = rival_BB[j, i] = False
  assert loss == pytest.approx(loss_of_scores(score_BB, rival_BB), rel=1e-4)
  assert loss != pytest.approx(loss_of_scores(score_BB), rel=1e-2)
  rivals_BB = np.where(rival_BB, score_BB, -np.inf)
  assert metrics["accuracy/forward"] == np.mean(rivals_BB.argmax(axis=1) == np.arange(8))
  assert metrics["accuracy/backward"] == np.mean(rivals_BB.argmax(axis=0) == np.arange(8))


def test_without_a_key_there_is_no_dropout(params):
  model, batch = make_model(dropout_rate=0.3), make_batch()
  calm, _ = loss_and_metrics(make_model(), params, batch)
  assert loss_and_metrics(model, params, batch)[0] == calm
  noisy = jit(lambda seed: model.loss_fn(params, batch, jax.random.key(seed))[0])
  assert noisy(1) == noisy(1)
  assert len({float(calm), float(noisy(1)), float(noisy(2))}) == 3


def test_slices_give_the_plain_loss_and_gradient(params):
  def loss_and_grad(count):
    model = make_model(embedding_slices=count)
    return jit(jax.value_and_grad(model.loss_fn, has_aux=True))(params, make_batch(), None)

  assert_trees_close(loss_and_grad(4), loss_and_grad(1), rtol=1e-4, atol=1e-5)


def test_each_slice_has_its_own_dropout():
  def encode(x_BD, rng):
    return x_BD * jax.random.bernoulli(rng, 0.5, x_BD.shape)

  out_BD = gradient_caching.map_slices(encode, jnp.ones((4, 64)), slices=2, rng=jax.random.key(0))
  # Rows 0 and 2 are the first slice, rows 1 and 3 the second.
  assert not np.array_equal(out_BD[0::2], out_BD[1::2])


def test_slices_keep_the_order_and_structure_of_the_batch():
  batch = {"a": jnp.arange(12), "b": jnp.arange(24).reshape(12, 2)}
  found = gradient_caching.map_slices(
    lambda x, rng: {"sum": x["a"][:, None] + x["b"]}, batch, slices=3
  )
  np.testing.assert_array_equal(found["sum"], batch["a"][:, None] + batch["b"])


def test_slices_must_divide_the_batch(params):
  with pytest.raises(ValueError, match="batch of 8 cannot be cut into 3"):
    make_model(embedding_slices=3).loss_fn(params, make_batch(), None)


def test_slices_need_less_memory(params):
  batch = jax.tree.map(jnp.asarray, make_batch(256, 32, 32))

  def temporaries(count):
    model = make_model(embedding_slices=count)
    step = jax.jit(jax.grad(model.loss_fn, has_aux=True))
    return step.lower(params, batch, None).compile().memory_analysis().temp_size_in_bytes

  assert temporaries(8) < temporaries(1) / 4


# Mesh axes "data" and "model", and slices.
LAYOUTS = ((8, 1, 1), (8, 1, 4), (4, 2, 4))
MOVED = re.compile(r"\w+\[\d+,\d+,[\d,]+\]\S* (?:all-gather|all-to-all|collective-permute)\(")


def run_on_eight_devices(folder):
  """Saves loss, metrics and gradients of each layout; prints what moves between devices."""
  moved = {}
  for data, model_axis, slices in LAYOUTS:
    model = make_model(embedding_slices=slices)
    arrays, program = sharded_models.leaves_on_mesh(
      (data, model_axis),
      model.network,
      lambda p, batch, model=model: model.loss_fn(p, batch, None),
      make_params(),
      make_batch(32),
      enter=lambda mesh: mesh,
    )
    name = f"{data}_{model_axis}_{slices}"
    sharded_models.save(pathlib.Path(folder, f"{name}.npz"), arrays)
    # Vectors [B, S] of other devices are needed, tokens [..., 2, T] are not.
    moved[name] = MOVED.findall(program)
  print(json.dumps(moved))


@pytest.mark.slow
def test_eight_devices_equal_one_and_move_no_rows(tmp_path):
  moved = json.loads(eight_devices.run(__file__, tmp_path).splitlines()[-1])
  model = make_model()
  expected = sharded_models.leaves(
    lambda p, batch: model.loss_fn(p, batch, None), make_params(), make_batch(32)
  )
  for data, model_axis, slices in LAYOUTS:
    name = f"{data}_{model_axis}_{slices}"
    path = tmp_path / f"{name}.npz"
    sharded_models.assert_saved_equal(path, expected, rtol=1e-4, atol=1e-6)
    if model_axis == 1:
      assert not moved[name], name


def test_initial_variables_need_only_the_shape_of_inputs():
  model = make_model()
  made = jax.eval_shape(
    lambda rng: model.get_initial_variables(rng=rng, input_shapes={"inputs": (8, 6)}),
    jax.random.key(0),
  )
  assert set(made) == {"params", "params_axes"}
  assert set(made["params"]) == {"token_embedder", "encoder", "mean"}
  assert model.get_initial_variables.__self__ is model  # T5X asks the method for its model


def test_a_larger_model_scores_through_its_sentence_encoder(params):
  batch = make_batch()
  score_batch = jit(make_model().score_batch)
  vectors_BS = score_batch(params, batch)
  assert vectors_BS.shape == (8, 16)
  assert vectors_BS.dtype == jnp.float32
  found_BS = score_batch({**params, "decoder": {}}, batch)
  np.testing.assert_allclose(found_BS, vectors_BS, rtol=0, atol=1e-6)


def test_predicting_text_is_refused_and_vectors_are_auxiliary(params):
  model, batch = make_model(), make_batch()
  with pytest.raises(NotImplementedError, match="score_batch"):
    model.predict_batch(params, batch)
  tokens_BT, aux = jit(model.predict_batch_with_aux)(params, batch)
  np.testing.assert_array_equal(tokens_BT, batch["inputs"])
  expected_BS = jit(model.score_batch)(params, batch)
  np.testing.assert_allclose(aux["embedding"], expected_BS, rtol=0, atol=1e-6)


def test_metrics_of_microbatches_merge(params):
  model, batch = make_model(), make_batch()
  whole = base.average(jnp.arange(8.0)).compute()
  halves = base.average(jnp.arange(3.0)).merge(base.average(jnp.arange(3.0, 8.0)))
  assert halves.compute() == whole
  _, metrics = jax.eval_shape(model.eval_fn, params, batch)
  for leaf in traverse_util.flatten_dict(dict(metrics)).values():
    assert {leaf.total.shape, leaf.count.shape} == {()}


def test_vocabularies_are_those_of_the_data():
  model = make_model()
  (ids,) = model.vocabulary.encode(["to be"], 32)
  for found in (model.input_vocabulary, model.output_vocabulary):
    assert [*found.encode("to be"), found.eos_id] == list(ids)


@pytest.mark.parametrize(
  "options", [{"similarity": "l2"}, {"scale": 0}, {"embedding_slices": 0}, {"max_length": 0}]
)
def test_a_bad_option_is_named(options):
  with pytest.raises(errors.InputError, match=next(iter(options))):
    make_model(**options)
