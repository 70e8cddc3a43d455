import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from vmsst import errors
from vmsst.models import base, contrastive, gradient_caching
from vmsst.networks import sentence_encoder, t5
from vmsst.text import vocabularies

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
  rng = np.random.default_rng(pairs)
  batch = {}
  for name, length in {"inputs": inputs_length, "targets": targets_length}.items():
    tokens_BT = rng.integers(2, 60, size=(pairs, length), dtype=np.int32)
    tokens_BT[np.arange(length) >= rng.integers(2, length + 1, size=(pairs, 1))] = 0
    batch[name] = tokens_BT
  return batch


@pytest.fixture(scope="module")
def params():
  model = make_model()
  init = jax.jit(lambda rng: model.get_initial_variables(rng, {"inputs": (8, 6)})["params"])
  # Vectors small enough that the softmax is not saturated.
  return jax.tree.map(lambda x: 0.5 * x, init(jax.random.key(0)))


def loss_and_metrics(model, params, batch):
  loss, metrics = jax.jit(model.eval_fn)(params, batch)
  return loss, {name: float(m.compute()) for name, m in metrics.items()}


def assert_trees_close(found, expected, **tolerance):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


def test_loss_and_metrics_from_the_vectors_of_each_side(params):
  model, batch = make_model(), make_batch(targets_length=9)
  loss, metrics = loss_and_metrics(model, params, batch)
  score_batch = jax.jit(model.score_batch)
  source_BS = np.float64(score_batch(params, {"inputs": batch["inputs"]}))
  target_BS = np.float64(score_batch(params, {"inputs": batch["targets"]}))
  score_BB = source_BS @ target_BS.T
  log_p_BB = score_BB - np.log(np.exp(score_BB).sum(axis=1, keepdims=True))
  log_q_BB = score_BB - np.log(np.exp(score_BB).sum(axis=0, keepdims=True))
  expected = -0.5 * np.mean(np.diag(log_p_BB) + np.diag(log_q_BB))
  assert loss == pytest.approx(expected, rel=1e-4)
  assert metrics["loss"] == pytest.approx(expected, rel=1e-4)
  assert metrics["accuracy/forward"] == np.mean(score_BB.argmax(axis=1) == np.arange(8))
  assert metrics["accuracy/backward"] == np.mean(score_BB.argmax(axis=0) == np.arange(8))
  tokens = sum(np.count_nonzero(x) for x in batch.values())
  assert metrics["tokens_per_example"] == pytest.approx(tokens / 8)
  norms = np.linalg.norm(np.concatenate([source_BS, target_BS]), axis=1)
  assert metrics["embedding_norm"] == pytest.approx(norms.mean(), rel=1e-4)


def test_cosine_and_duplicates_are_options(params):
  batch = make_batch()
  batch["targets"][3] = batch["targets"][0]
  plain, _ = loss_and_metrics(make_model(), params, batch)
  masked, _ = loss_and_metrics(make_model(mask_duplicates=True), params, batch)
  cosine, _ = loss_and_metrics(make_model(similarity="cosine", scale=0.001), params, batch)
  assert masked < plain
  assert cosine == pytest.approx(np.log(8), abs=0.01)  # nearly uniform at this temperature


def test_without_a_key_there_is_no_dropout(params):
  model, batch = make_model(dropout_rate=0.3), make_batch()
  calm, _ = loss_and_metrics(make_model(), params, batch)
  assert loss_and_metrics(model, params, batch)[0] == calm
  noisy = jax.jit(lambda seed: model.loss_fn(params, batch, jax.random.key(seed))[0])
  assert noisy(1) == noisy(1)
  assert len({float(calm), float(noisy(1)), float(noisy(2))}) == 3


def test_slices_give_the_plain_loss_and_gradient(params):
  def loss_and_grad(count):
    model = make_model(embedding_slices=count)
    return jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))(params, make_batch(), None)

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


def test_slices_have_to_divide_the_batch(params):
  with pytest.raises(ValueError, match="batch of 8 cannot be cut into 3"):
    make_model(embedding_slices=3).loss_fn(params, make_batch(), None)


def test_slices_need_less_memory(params):
  batch = jax.tree.map(jnp.asarray, make_batch(256, 32, 32))

  def temporaries(count):
    model = make_model(embedding_slices=count)
    step = jax.jit(jax.grad(model.loss_fn, has_aux=True))
    return step.lower(params, batch, None).compile().memory_analysis().temp_size_in_bytes

  assert temporaries(8) < temporaries(1) / 4


DEVICES = textwrap.dedent(r"""
  import json, re, sys
  import jax, numpy as np
  from flax.linen import partitioning
  from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
  sys.path.insert(0, sys.argv[1])
  import test_contrastive as t

  # T5X's standard rules, as far as this model goes.
  rules = [("batch", "data"), ("vocab", "model"), ("embed", None), ("mlp", "model"),
           ("heads", "model"), ("kv", None), ("joined_kv", "model"), ("relpos_buckets", None),
           ("length", None), ("layers", None)]
  MOVED = r"\w+\[\d+,\d+,[\d,]+\]\S* (?:all-gather|all-to-all|collective-permute)\("
  batch = t.make_batch(32)
  def variables(model):
    return model.get_initial_variables(jax.random.key(0), {"inputs": (32, 6)})
  shapes = jax.eval_shape(lambda: variables(t.make_model()))
  fresh = jax.device_get(jax.jit(lambda: variables(t.make_model())["params"])())
  axes = partitioning.get_axis_names(shapes["params_axes"]).unfreeze()
  out = {}
  for data, model_axis, count in ((1, 1, 1), (8, 1, 1), (8, 1, 4), (4, 2, 4)):
    model = t.make_model(embedding_slices=count)
    mesh = Mesh(np.array(jax.devices()[:data * model_axis]).reshape(data, model_axis),
                ("data", "model"))
    with mesh, partitioning.axis_rules(rules):
      mesh_axes = jax.tree.map(partitioning.logical_to_mesh_axes, axes,
                               is_leaf=lambda x: isinstance(x, P))
      to_mesh = lambda spec: NamedSharding(mesh, spec)
      place = jax.tree.map(to_mesh, mesh_axes, is_leaf=lambda x: isinstance(x, P))
      params = jax.device_put(fresh, place)
      rows = to_mesh(P("data"))
      step = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True),
                     in_shardings=(place, rows), static_argnums=2)
      compiled = step.lower(params, batch, None).compile()
      (loss, metrics), grad = compiled(params, jax.device_put(batch, rows))
    out[f"{data}x{model_axis}/{count}"] = {
      "loss": float(loss),
      "accuracy": float(metrics["accuracy/forward"].compute()),
      "grad": [float(np.sum(np.abs(x))) for x in jax.tree.leaves(grad)],
      # Vectors [B, S] of other devices are needed, tokens [..., 2, T] are not.
      "moves": re.findall(MOVED, compiled.as_text()),
    }
  print(json.dumps(out))
""")


def test_eight_devices_equal_one_and_move_no_rows():
  env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
  env["JAX_PLATFORMS"] = "cpu"
  here = os.path.dirname(__file__)
  done = subprocess.run(
    [sys.executable, "-c", DEVICES, here], env=env, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  expected = found.pop("1x1/1")
  assert len(found) == 3
  for layout, result in found.items():
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5), layout
    assert result["accuracy"] == expected["accuracy"], layout
    np.testing.assert_allclose(result["grad"], expected["grad"], rtol=1e-4, err_msg=layout)
    if layout.startswith("8x1"):
      assert not result["moves"], layout


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
  score_batch = jax.jit(make_model().score_batch)
  vectors_BS = score_batch(params, batch)
  assert vectors_BS.shape == (8, 16)
  assert vectors_BS.dtype == jnp.float32
  np.testing.assert_array_equal(score_batch({**params, "decoder": {}}, batch), vectors_BS)


def test_predicting_text_is_refused_and_vectors_go_beside_it(params):
  model, batch = make_model(), make_batch()
  with pytest.raises(NotImplementedError, match="score_batch"):
    model.predict_batch(params, batch)
  tokens_BT, aux = jax.jit(model.predict_batch_with_aux)(params, batch)
  np.testing.assert_array_equal(tokens_BT, batch["inputs"])
  np.testing.assert_array_equal(aux["embedding"], jax.jit(model.score_batch)(params, batch))


def test_metrics_of_microbatches_merge(params):
  model, batch = make_model(), make_batch()
  whole = base.average(jnp.arange(8.0)).compute()
  halves = base.average(jnp.arange(3.0)).merge(base.average(jnp.arange(3.0, 8.0)))
  assert halves.compute() == whole
  _, metrics = jax.eval_shape(model.eval_fn, params, batch)
  for leaf in traverse_util.flatten_dict(dict(metrics)).values():
    assert {leaf.total.shape, leaf.count.shape} == {()}


def test_vocabularies_are_those_of_the_data():
  class Fake:
    def to_seqio(self):
      return "seqio"

  model = contrastive.ContrastiveModel(network=make_model().network, input_vocabulary=Fake())
  assert model.input_vocabulary == model.output_vocabulary == "seqio"


@pytest.mark.parametrize(
  "options", [{"similarity": "l2"}, {"scale": 0}, {"embedding_slices": 0}, {"max_length": 0}]
)
def test_a_bad_option_is_named(options):
  with pytest.raises(errors.InputError, match=next(iter(options))):
    make_model(**options)


def test_models_import_neither_tensorflow_nor_seqio():
  code = "import sys, vmsst.models.contrastive; print(*sys.modules)"
  done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
  assert not {"tensorflow", "seqio", "t5x"} & set(done.stdout.split())
