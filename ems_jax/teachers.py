"""Frozen teachers: sentence vectors that a student learns from, without gradient.

A teacher is an encoder that runs in the student's training step, or precomputed vectors in the
batch features `teacher_inputs` and `teacher_targets`.

The parameters of a teacher in the step are not part of the train state, the only parameters that a
trainer passes to a model. An array in the closure of a jitted function becomes a literal of its
program (JAX 0.10: 8 bytes of text per float, a copy on every device), but a `jax.Ref` becomes an
argument with its own sharding. So the parameters are stored in refs, which are never written to.
"""

import concurrent.futures
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from flax.linen import partitioning
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays, errors
from vmsst.data import vocabularies
from vmsst.encoder import loading
from vmsst.models import base, gradient_caching
from vmsst.networks import sentence_encoder

FEATURES = ("teacher_inputs", "teacher_targets")


class Teacher:
  """An encoder, called in a student's training step.

  Attributes:
    checkpoint: The path of its parameters.
    vocabulary: Its vocabulary, with its own prefix.
    dimension: Width of its vectors.
    max_length: Tokens of a sentence; longer sentences are cut.
  """

  def __init__(self, path: str | os.PathLike[str], *, partitioner: Any = None):
    """Reads the description of the encoder; its parameters are read on first use.

    Args:
      path: A path that `vmsst.load` opens: a run, a `checkpoint_<step>`
        folder, a released encoder, or a name on the Hugging Face Hub.
      partitioner: A T5X partitioner like the student's, which lays out the parameters on its mesh.
        None: they are on the default device.

    Raises:
      InputError: there is no such encoder.
    """
    self.checkpoint = path
    loaded = loading.read_assets(path)
    self.vocabulary = loaded.vocabulary
    self.dimension = loaded.network.latent_dim
    self.max_length = loaded.max_length
    self._network = loaded.network
    self._partitioner = partitioner
    self._refs: Any = None

  def check_vocabulary(self, vocabulary: vocabularies.Vocabulary) -> None:
    """Raises InputError if student and teacher have different vocabularies.

    They may have different prefixes, see `embed`.
    """
    if _identity(vocabulary) != _identity(self.vocabulary):
      raise errors.InputError(
        f"the teacher {self.checkpoint} was trained with another vocabulary than the student's "
        f"({self.vocabulary} and {vocabulary}), so it cannot encode the student's token ids; "
        f"precompute its vectors, add them to the data as the features {' and '.join(FEATURES)}, "
        "and set TEACHER = None"
      )

  def embed(
    self, tokens_NT: Int[Array, "N T"], vocabulary: vocabularies.Vocabulary, *, count: int = 1
  ) -> Float[Array, "N S"]:
    """Returns float32 sentence vectors as inference does, without dropout and gradient.

    Args:
      tokens_NT: Token ids of sentences.
      vocabulary: Their vocabulary, perhaps with another prefix, which the teacher's own replaces.
      count: Number of slices to encode one after the other, to save memory.
    """
    tokens_NT = replace_prefix(
      tokens_NT,
      vocabulary.leading_ids,
      self.vocabulary.leading_ids,
      eos_id=self.vocabulary.eos_id,
      max_length=self.max_length,
    )
    # Read once, outside the loop over slices, which a backward pass would repeat.
    params = jax.tree.map(lambda ref: ref[...], self._parameters())

    def encode(tokens_NT: Int[Array, "N T"], rng: jax.Array | None) -> Float[Array, "N S"]:
      return sentence_encoder.embed(self._network, params, tokens_NT)

    vector_NS = gradient_caching.map_slices(encode, tokens_NT, slices=count)
    return cast(jax.Array, jax.lax.stop_gradient(vector_NS))

  def _parameters(self) -> Any:
    """Returns a ref for each parameter, read from the checkpoint on the first call."""
    if self._refs is None:
      # In another thread, because a trace active in this one would capture the arrays.
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        self._refs = pool.submit(self._read_parameters).result()
    return self._refs

  def _read_parameters(self) -> Any:
    params = loading.read(self.checkpoint).params
    if self._partitioner is None:
      return jax.tree.map(jax.new_ref, params)

    def place(value: Any, sharding: NamedSharding) -> Any:
      whole = np.asarray(value)  # Every process has all of it.
      return jax.new_ref(
        jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
      )

    return jax.tree.map(place, params, self._shardings())

  def _shardings(self) -> Any:
    """Returns the sharding of each parameter on the partitioner's mesh."""
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
  """Returns the teacher of a run, or None (the batch contains its vectors) if `path` is None.

  Gin files call it with the macro `TEACHER`.
  """
  return None if path is None else Teacher(path, partitioner=partitioner)


def feature_lengths(
  *,
  max_length: int,
  dimension: int | None = None,
  teacher: str | os.PathLike[str] | None = None,
  negatives: int = 0,
  scores: bool = False,
) -> dict[str, Any]:
  """Returns the features of a batch of pairs and their lengths, the format of SeqIO.

  Args:
    max_length: Tokens of a sentence.
    dimension: Width of the teacher's vectors; None if the model does not use them.
    teacher: As for `from_run`; if None, the batch contains the teacher's vectors.
    negatives: Number of hard negatives of each pair.
    scores: Whether each pair has scores of its target and its hard negatives.
  """
  lengths: dict[str, Any] = {
    "inputs": max_length,
    "targets": max_length,
    "input_language": 1,
    "target_language": 1,
  }
  if teacher is None and dimension is not None:
    lengths |= dict.fromkeys(FEATURES, dimension)
  if negatives:
    lengths["negatives"] = (negatives, max_length)
  if scores:
    lengths["scores"] = 1 + negatives
  return lengths


def side_vectors(
  teacher: Teacher | None,
  batch: base.Batch,
  vocabulary: vocabularies.Vocabulary,
  is_input_B: Bool[Array, "B"] | None = None,
  *,
  count: int = 1,
) -> Float[Array, "B *sides S"]:
  """Returns the teacher's vectors of both sides of each pair, [B, 2, S], or of one, float32.

  Args:
    teacher: Computes the vectors; None: they are in the batch.
    batch: A batch of pairs.
    vocabulary: The vocabulary of its tokens.
    is_input_B: Whether to encode only `inputs` (True) or only `targets`; None: both.
    count: Number of slices that the teacher encodes one after the other.

  Raises:
    InputError: there is neither a teacher nor its vectors, or there are both.
  """
  given = [name for name in FEATURES if name in batch]
  if (teacher is None) != (len(given) == len(FEATURES)):
    names = " and ".join(FEATURES)
    raise errors.InputError(
      f"there is {'no' if teacher is None else 'a'} teacher, and the batch has "
      f"{' and '.join(given) or f'no {names}'}; set TEACHER to an encoder, or TEACHER = None and "
      f"train on data with the features {names}"
    )

  def choose(x_B2X: jax.Array) -> jax.Array:
    if is_input_B is None:
      return x_B2X
    return jnp.where(is_input_B[:, None], x_B2X[:, 0], x_B2X[:, 1])

  if teacher is None:
    vector_B2S = jnp.stack([batch[name].astype(jnp.float32) for name in FEATURES], axis=1)
    return jax.lax.stop_gradient(choose(vector_B2S))
  tokens = choose(base.interleave_sides(batch["inputs"], batch["targets"]))
  vector_NS = teacher.embed(tokens.reshape(-1, tokens.shape[-1]), vocabulary, count=count)
  return vector_NS.reshape(*tokens.shape[:-1], -1)


def _identity(vocabulary: vocabularies.Vocabulary) -> Any:
  """Returns the properties that determine the ids of words."""
  others = ("path", "prefix", "prompts")
  fields = dataclasses.asdict(cast(Any, vocabulary))
  content = [getattr(vocabulary, name, None) for name in ("model_bytes", "content")]
  return type(vocabulary), fields | dict.fromkeys(others), content


def replace_prefix(
  tokens_NT: Int[Array, "N T"],
  old: Sequence[int],
  new: Sequence[int],
  *,
  eos_id: int | None,
  max_length: int,
) -> Int[Array, "N U"]:
  """Returns the ids of the same texts after other leading ids; rows of padding stay so.

  Args:
    tokens_NT: Ids of texts, with EOS tokens if the vocabulary has one; 0 is padding.
    old: The leading ids of every text.
    new: The ids to put in their place.
    eos_id: The EOS token, or None.
    max_length: Texts with more ids are cut, but keep the EOS token.
  """
  text_NU = tokens_NT[:, len(old) :]
  is_text_N1 = jnp.any(tokens_NT != arrays.PAD_ID, axis=1, keepdims=True)
  start_NP = jnp.where(is_text_N1, jnp.array(new, jnp.int32).reshape(1, -1), arrays.PAD_ID)
  found_NT = jnp.concatenate([start_NP, text_NU], axis=1)
  cut_NU = found_NT[:, :max_length]
  if eos_id is None or found_NT.shape[1] <= max_length:
    return cut_NU
  is_cut_N = found_NT[:, max_length] != arrays.PAD_ID
  last_N = jnp.where(is_cut_N, eos_id, cut_NU[:, -1])
  return cut_NU.at[:, -1].set(last_N)
