"""Loss and gradients of a model on a mesh, with rows and parameters laid out by their axes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# T5X's standard rules for the axes that models of this library have.
RULES = (
  ("batch", "data"),
  *((name, "model") for name in ("vocab", "mlp", "heads", "joined_kv")),
  *((name, None) for name in ("embed", "kv", "stack", "length", "layers", "relpos_buckets")),
)


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
  variables = jax.eval_shape(network.init, jax.random.key(0), jnp.ones((1, 2), jnp.int32))
  with enter(mesh), partitioning.axis_rules(RULES):
    layouts = jax.tree.map(
      lambda names: NamedSharding(mesh, partitioning.logical_to_mesh_axes(names)),
      partitioning.get_axis_names(variables["params_axes"]).unfreeze(),
      is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    shardings = (layouts, NamedSharding(mesh, PartitionSpec("data")))
    program = jax.jit(_value_and_grad(loss_fn), in_shardings=shardings)
    compiled = program.lower(params, batch).compile()
    results = compiled(*jax.device_put((params, batch), shardings))
  return _leaves(results), compiled.as_text()


def _value_and_grad(loss_fn):
  return jax.value_and_grad(loss_fn, has_aux=True)


def _leaves(results):
  (loss, metrics), gradients = results
  values = {name: metric.compute() for name, metric in metrics.items()}
  return [np.asarray(x) for x in jax.tree.leaves((loss, values, gradients))]


def save(path, arrays):
  """Writes arrays for `assert_saved_equal`."""
  np.savez(path, *arrays)


def assert_saved_equal(path, expected, **tolerance):
  """Fails unless the arrays of a file are close to those expected."""
  with np.load(path) as file:
    assert len(file.files) == len(expected)
    for name, array in zip(file.files, expected, strict=True):
      np.testing.assert_allclose(file[name], array, err_msg=f"{path.name} {name}", **tolerance)
