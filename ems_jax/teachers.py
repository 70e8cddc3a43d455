"""Frozen teachers: vectors of sentences that a student learns from, without gradient.

A teacher is a training run of this library, whose encoder runs inside of the step, or vectors that
were computed before and come with the batch as its features `teacher_inputs` and `teacher_targets`.

The parameters of a teacher in the step are no part of the train state, and a trainer hands a model
nothing else. An array that a jitted function closes over becomes a literal in its program (JAX
0.10: 8 bytes of text for a float, a copy on every device); a `jax.Ref` becomes an argument, with
the sharding that it has. So they are held in refs, which nobody writes to.
"""

import concurrent.futures
import dataclasses
import os
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from flax.linen import partitioning
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from vmsst import errors
from vmsst.checkpoints import encoder_json, restoring
from vmsst.checkpoints import t5x as t5x_checkpoints
from vmsst.models import base, gradient_caching
from vmsst.networks import sentence_encoder
from vmsst.text import vocabularies

FEATURES = ("teacher_inputs", "teacher_targets")


class Teacher:
  """The encoder of a training run, to be called inside of a student's step.

  Attributes:
    checkpoint: The `checkpoint_<step>` folder whose parameters are used.
    vocabulary: What its token ids are of.
    dimension: Width of its vectors.
  """

  def __init__(self, path: str | os.PathLike[str], *, partitioner: Any = None):
    """Reads what describes the run; its parameters are read when they are first used.

    Args:
      path: The run's MODEL_DIR (its latest checkpoint is taken) or one `checkpoint_<step>` folder
        in it.
      partitioner: A T5X partitioner like the student's: the parameters are laid out on its mesh by
        its rules, as a student's would be. None: they are on the default device.

    Raises:
      InputError: there is no such run.
    """
    self.checkpoint = t5x_checkpoints.find_checkpoint(path)
    loaded = encoder_json.load_encoder_assets(self.checkpoint.parent)
    self.vocabulary = loaded.vocabulary
    self.dimension = loaded.network.latent_dim
    self._network = loaded.network
    self._partitioner = partitioner
    self._refs: Any = None

  def check_vocabulary(self, vocabulary: vocabularies.Vocabulary) -> None:
    """Raises InputError where the student's token ids are not the teacher's."""
    if _identity(vocabulary) != _identity(self.vocabulary):
      raise errors.InputError(
        f"the teacher {self.checkpoint} was trained with another vocabulary than the student's "
        f"({self.vocabulary} and {vocabulary}), so it cannot read the student's token ids: compute "
        "its vectors before the training, add them to the data as the features "
        f"{' and '.join(FEATURES)}, and set TEACHER = None"
      )

  def embed(self, tokens_NT: Int[Array, "N T"], *, count: int = 1) -> Float[Array, "N S"]:
    """Returns float32 vectors of sentences: not normalized, without dropout and gradient.

    Args:
      tokens_NT: Token ids of the vocabulary.
      count: Slices that the sentences are computed in, for the memory.
    """
    # Once, not in the loop over slices, which the backward pass is told to run again.
    params = jax.tree.map(lambda ref: ref[...], self._parameters())

    def encode(tokens_NT: Int[Array, "N T"], rng: jax.Array | None) -> Float[Array, "N S"]:
      return sentence_encoder.embed(self._network, params, tokens_NT)

    vector_NS = gradient_caching.map_slices(encode, tokens_NT, slices=count)
    return cast(jax.Array, jax.lax.stop_gradient(vector_NS))

  def _parameters(self) -> Any:
    """A ref for each parameter; read once, wherever that is asked for first."""
    if self._refs is None:
      # In a thread of its own: here a trace may be under way, into which arrays would be drawn.
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        self._refs = pool.submit(self._read_parameters).result()
    return self._refs

  def _read_parameters(self) -> Any:
    params = restoring.restore_params(self.checkpoint, self._network)
    if self._partitioner is None:
      return jax.tree.map(jax.new_ref, params)
    return jax.tree.map(
      lambda value, sharding: jax.new_ref(_placed(np.asarray(value), sharding)),
      params,
      self._shardings(),
    )

  def _shardings(self) -> Any:
    """Where each parameter lies on the partitioner's mesh."""
    mesh, rules = self._partitioner.mesh, self._partitioner.logical_axis_rules
    tokens_BT = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    variables = jax.eval_shape(self._network.init, jax.random.key(0), tokens_BT)
    names = traverse_util.flatten_dict(
      dict(partitioning.get_axis_names(variables["params_axes"])), sep="/"
    )
    return traverse_util.unflatten_dict(
      {
        name: NamedSharding(mesh, partitioning.logical_to_mesh_axes(axes, rules) or PartitionSpec())
        for name, axes in names.items()
      },
      sep="/",
    )


def from_run(path: str | os.PathLike[str] | None, *, partitioner: Any = None) -> Teacher | None:
  """Returns the teacher of a run; None, vectors that come with the batch, where `path` is None.

  For gin, where one macro says which: `TEACHER`.
  """
  return None if path is None else Teacher(path, partitioner=partitioner)


def feature_lengths(
  *, max_length: int, dimension: int | None, teacher: str | os.PathLike[str] | None
) -> dict[str, int]:
  """Returns what a batch of pairs is made of and each feature's length, as SeqIO asks for it.

  Args:
    max_length: Tokens of a sentence.
    dimension: Width of the teacher's vectors; None where nothing reads them.
    teacher: As of `from_run`: where it is None, the batch has the teacher's vectors.
  """
  lengths = {
    "inputs": max_length,
    "targets": max_length,
    "input_language": 1,
    "target_language": 1,
  }
  if teacher is None and dimension is not None:
    lengths |= dict.fromkeys(FEATURES, dimension)
  return lengths


def pair_vectors(
  teacher: Teacher | None, batch: base.Batch, *, count: int = 1
) -> Float[Array, "B 2 S"]:
  """Returns the teacher's vectors of both sides of each pair, float32.

  Args:
    teacher: Computes them; None: they are in the batch.
    batch: A batch of pairs.
    count: Slices that the teacher computes the batch in.

  Raises:
    InputError: there is neither a teacher nor its vectors, or there are both.
  """
  if teacher is None:
    return _given(batch)
  _check_not_given(batch)
  tokens_B2T = base.interleave_sides(batch["inputs"], batch["targets"])
  vector_NS = teacher.embed(tokens_B2T.reshape(-1, tokens_B2T.shape[-1]), count=count)
  return vector_NS.reshape(*tokens_B2T.shape[:2], -1)


def anchor_vectors(
  teacher: Teacher | None, batch: base.Batch, is_input_B: Bool[Array, "B"], *, count: int = 1
) -> Float[Array, "B S"]:
  """Returns the teacher's vector of one side of each pair, float32; a teacher reads no other.

  Args:
    teacher: Arguments are those of `pair_vectors`, and so is what is raised.
    batch: See there.
    is_input_B: Whether that side is `inputs`.
    count: See there.
  """
  if teacher is None:
    return _one_side(_given(batch), is_input_B)
  _check_not_given(batch)
  tokens_B2T = base.interleave_sides(batch["inputs"], batch["targets"])
  return teacher.embed(_one_side(tokens_B2T, is_input_B), count=count)


def _one_side(x_B2X: jax.Array, is_input_B: Bool[Array, "B"]) -> jax.Array:
  return jnp.where(is_input_B[:, None], x_B2X[:, 0], x_B2X[:, 1])


def _given(batch: base.Batch) -> Float[Array, "B 2 S"]:
  """The vectors that come with a batch."""
  if missing := [name for name in FEATURES if name not in batch]:
    raise errors.InputError(
      f"there is no teacher, and the batch has no {' and no '.join(missing)}: set TEACHER to the "
      f"folder of a trained run, or train on data with the features {' and '.join(FEATURES)}"
    )
  vectors = [batch[name].astype(jnp.float32) for name in FEATURES]
  return jax.lax.stop_gradient(jnp.stack(vectors, axis=1))


def _check_not_given(batch: base.Batch) -> None:
  if given := [name for name in FEATURES if name in batch]:
    raise errors.InputError(
      f"there is a teacher, and the batch has {' and '.join(given)} as well: set TEACHER = None to "
      "use the vectors of the batch, or leave them out of TASK_FEATURE_LENGTHS"
    )


def _identity(vocabulary: vocabularies.Vocabulary) -> Any:
  """What two vocabularies that give the same ids share: all but where their files lie."""
  fields = dataclasses.asdict(cast(Any, vocabulary))
  content = [getattr(vocabulary, name, None) for name in ("model_bytes", "content")]
  return type(vocabulary), fields | {"path": None}, content


def _placed(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
  """An array that every process has, on a mesh of all their devices."""
  return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
