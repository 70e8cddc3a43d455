"""Batches and parameters of tiny models, and their results on one device and on a mesh."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import tiny_encoders
from flax import linen as nn
from flax import traverse_util
from flax.linen import partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vmsst.data import vocabularies
from vmsst.models import contrastive
from vmsst.networks import dropout, sentence_encoder

# Compilation takes most of the time of a tiny model.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

# T5X's standard rules for the axes that models of this library have.
RULES = (
  ("batch", "data"),
  *((name, "model") for name in ("vocab", "mlp", "heads", "joined_kv")),
  *((name, None) for name in ("embed", "kv", "stack", "length", "layers", "relpos_buckets")),
)


def random_batch(seed, pairs, lengths, ids, *, eos=None, languages=None):
  """Returns tokens of both sides, padded with 0, and language ids if there are any.

  Args:
    seed: Seed of the random numbers.
    pairs: Number of pairs.
    lengths: Lengths of "inputs" and "targets"; sentences have from 2 tokens to all.
    ids: Least token id, and the first that is too large.
    eos: Last token of every sentence; None: any.
    languages: Language ids to choose from, for each sentence; None: the batch has none.
  """
  rng = np.random.default_rng(seed)
  batch = {}
  for name, length in zip(("inputs", "targets"), lengths, strict=True):
    tokens_BT = rng.integers(*ids, size=(pairs, length), dtype=np.int32)
    count_B1 = rng.integers(2, length + 1, size=(pairs, 1))
    tokens_BT[np.arange(length) >= count_B1] = 0
    if eos is not None:
      tokens_BT[np.arange(length) == count_B1 - 1] = eos
    batch[name] = tokens_BT
  if languages is not None:
    for name in ("input_language", "target_language"):
      batch[name] = rng.choice(np.asarray(languages, np.int32), size=(pairs, 1))
  return batch


def pair_model(model_cls=contrastive.ContrastiveModel, **options):
  """A model of pairs with 60 pieces, whose vectors have 16 dimensions."""
  config = tiny_encoders.t5_config(vocab_size=60, emb_dim=16, head_dim=8, mlp_dim=16)
  network = sentence_encoder.SentenceEncoder(config, latent_dim=16)
  return model_cls(network=network, vocabulary=vocabularies.ByteVocabulary(), **options)


def shapes_of(network):
  """Shapes of a network's parameters and their logical axes, without computing anything."""
  return jax.eval_shape(network.init, jax.random.key(0), jnp.ones((1, 2), jnp.int32))


def random_params(network, seed=0):
  """Parameters none of which is zero or one, as initial norms and biases would hide mistakes."""
  return random_values(shapes_of(network)["params"], seed)


def random_values(shapes, seed=0):
  """The same for a tree of shapes."""
  rng = np.random.default_rng(seed)
  return jax.tree.map_with_path(
    lambda path, x: np.float32((path[-1].key == "scale") + 0.3 * rng.normal(size=x.shape)), shapes
  )


def with_dropout_factors(network, params, *arrays):
  """The output of a network with dropout, and the factors of each call of `Dropout`, in order."""

  @jit
  def run(params, key):
    factors = []

    def record(call, args, kwargs, context):
      if not isinstance(context.module, dropout.Dropout):
        return call(*args, **kwargs)
      factors.append(call(jnp.ones_like(args[0]), *args[1:], **kwargs))
      return args[0] * factors[-1]

    with nn.intercept_methods(record):
      rngs = {"dropout": key}
      out = network.apply({"params": params}, *arrays, deterministic=False, rngs=rngs)
    return out, factors

  return jax.tree.map(np.asarray, run(params, jax.random.key(1)))


def values(metrics):
  """Metrics as numbers."""
  return {name: float(metric.compute()) for name, metric in metrics.items()}


def evaluate(function, *arguments):
  """The results of a compiled `loss_fn` or `eval_fn`: a loss and metrics, as numbers."""
  loss, metrics = jit(function)(*arguments)
  return float(loss), values(metrics)


def assert_trees_close(found, expected, **tolerance):
  """Fails unless two trees have equal structure and close arrays."""
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.float64(x), np.float64(y), **tolerance)


def assert_standard_axes(variables):
  """Fails unless every parameter has logical axes, all known to T5X's rules and its Adafactor."""
  axes = traverse_util.flatten_dict(
    partitioning.get_axis_names(variables["params_axes"]).unfreeze(), sep="/"
  )
  shapes = traverse_util.flatten_dict(variables["params"], sep="/")
  assert set(axes) == set(shapes)
  for path, x in shapes.items():
    assert len(axes[path]) == len(x.shape), path
    assert set(axes[path]) <= {name for name, _ in RULES} - {"batch", "length"}, path
    assert ("layers" in axes[path]) == ("layers" in path.split("/")), path


def mesh_axes(network):
  """The mesh axes of each parameter by the rules in effect."""
  axes = partitioning.get_axis_names(shapes_of(network)["params_axes"]).unfreeze()
  return jax.tree.map(partitioning.logical_to_mesh_axes, axes)


def leaves(loss_fn, params, batch):
  """Loss, metrics and gradients as a list of arrays, computed on one device without a mesh."""
  return _leaves(jax.jit(_value_and_grad(loss_fn))(params, batch))


def leaves_on_mesh(shape, network, loss_fn, params, batch, *, enter=jax.set_mesh):
  """The arrays of `leaves`, computed on a mesh, and the text of the compiled program.

  Args:
    shape: Sizes of the mesh axes "data" and "model".
    network: The network of the parameters.
    loss_fn: Maps parameters and batch to loss and metrics.
    params: Parameters.
    batch: A batch, whose rows are sharded over "data".
    enter: Returns the context of a mesh: `jax.set_mesh`, or the mesh itself as in T5X.
  """
  mesh = Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), ("data", "model"))
  with enter(mesh), partitioning.axis_rules(RULES):
    layouts = jax.tree.map(lambda axes: NamedSharding(mesh, axes), mesh_axes(network))
    shardings = (layouts, NamedSharding(mesh, PartitionSpec("data")))
    program = jax.jit(_value_and_grad(loss_fn), in_shardings=shardings)
    compiled = program.lower(params, batch).compile()
    results = compiled(*jax.device_put((params, batch), shardings))
  return _leaves(results), compiled.as_text()


def _value_and_grad(loss_fn):
  return jax.value_and_grad(loss_fn, has_aux=True)


def _leaves(results):
  (loss, metrics), gradients = results
  return [np.asarray(x) for x in jax.tree.leaves((loss, values(metrics), gradients))]


def save(path, arrays):
  """Writes arrays for `assert_saved_equal`."""
  np.savez(path, *arrays)


def assert_saved_equal(path, expected, **tolerance):
  """Fails unless the arrays of a file are close to those expected."""
  with np.load(path) as file:
    assert len(file.files) == len(expected)
    for name, array in zip(file.files, expected, strict=True):
      np.testing.assert_allclose(file[name], array, err_msg=f"{path.name} {name}", **tolerance)
