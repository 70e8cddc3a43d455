"""The model interface used in training, evaluation and inference; it is compatible with T5X."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from clu import metrics as clu_metrics
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import arrays, errors
from vmsst.data import vocabularies
from vmsst.networks import sentence_encoder

Batch = Mapping[str, jax.Array]
Metrics = dict[str, clu_metrics.Metric]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BitextModel(abc.ABC):
  """A model that is trained on sentence pairs and maps each sentence to a vector.

  The class has all attributes and methods that T5X's trainers use, but does not import T5X. It
  imports seqio only when a trainer requests the feature converter or a vocabulary.

  Attributes:
    network: Flax module to train.
    vocabulary: Vocabulary for both sides.
    optimizer_def: T5X optimizer definition; None for evaluation.
    max_length: Maximum number of tokens per training sentence, including EOS; longer sentences are
      truncated.
    allow_fewer_negatives: Whether a trainer may divide batches into microbatches even if the loss
      compares pairs. Each pair is then compared only with negatives from its own microbatch.
  """

  network: nn.Module
  vocabulary: vocabularies.Vocabulary
  optimizer_def: Any = None
  max_length: int = 32
  allow_fewer_negatives: bool = False

  def __post_init__(self) -> None:
    errors.as_integer("max_length", self.max_length)

  @property
  def module(self) -> nn.Module:
    """The network; T5X calls this attribute `module`."""
    return self.network

  @property
  def FEATURE_CONVERTER_CLS(self) -> Any:
    """Class that converts task examples to batches; imported lazily because it needs seqio."""
    from vmsst.data import seqio_tasks

    return seqio_tasks.BitextFeatureConverter

  @property
  def input_vocabulary(self) -> Any:
    """The vocabulary for `inputs`, as a seqio object."""
    from vmsst.data import seqio_tasks

    return seqio_tasks.SeqioVocabulary(self.vocabulary)

  @property
  def output_vocabulary(self) -> Any:
    """The vocabulary for `targets`, as a seqio object; equal to `input_vocabulary`."""
    return self.input_vocabulary

  @property
  @abc.abstractmethod
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The network used for inference; its parameters have the same names as in `network`."""

  @property
  def compares_pairs(self) -> bool:
    """Whether the loss of a pair depends on other pairs in the batch, for example as negatives."""
    return False

  def check_microbatches(self, count: int) -> None:
    """Raises InputError if microbatches remove negatives, unless `allow_fewer_negatives` is True.

    Args:
      count: Number of microbatches per batch (a trainer setting).
    """
    if count > 1 and self.compares_pairs and not self.allow_fewer_negatives:
      raise errors.InputError(
        f"NUM_MICROBATCHES={count} leaves only 1/{count} of the negatives for each pair in "
        f"{type(self).__name__}; set NUM_MICROBATCHES=None and EMBEDDING_SLICES={count} to save "
        "the same amount of memory and keep all negatives, or set ALLOW_FEWER_NEGATIVES=True"
      )

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_types: Mapping[str, Any] | None = None,
  ) -> Mapping[str, Any]:
    """Returns initial `params` and their logical axes, `params_axes`.

    Args:
      rng: Random key.
      input_shapes: Shape of each feature; only the shape of `inputs` is used.
      input_types: Ignored; tokens are int32.
    """
    del input_types
    return self.network.init(rng, jnp.ones(input_shapes["inputs"], jnp.int32))

  @abc.abstractmethod
  def loss_fn(
    self, params: Any, batch: Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, Metrics]:
    """Returns the mean loss over pairs, and metrics; no dropout if `dropout_rng` is None."""

  def loss_of_vectors(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: Batch
  ) -> tuple[jax.Array, Metrics]:
    """Returns the loss of the whole encoder, and metrics, for texts that are already encoded.

    Args:
      params: Network parameters; used only by heads on top of the vectors.
      vector_BRS: Vectors of each row's source, target and any hard negatives, before any
        normalization.
      batch: The batch, as for `loss_fn`.

    Raises:
      NotImplementedError: If this loss does not depend on the texts through their vectors alone.
    """
    raise NotImplementedError(f"{type(self).__name__} has no loss that depends only on vectors")

  def eval_fn(self, params: Any, batch: Batch) -> tuple[jax.Array, Metrics]:
    """Returns the loss and metrics of `loss_fn`, computed without dropout."""
    return self.loss_fn(params, batch, None)

  def score_batch(self, params: Any, batch: Batch) -> Float[Array, "B S"]:
    """Returns one float32 vector per sentence in `inputs`, not normalized."""
    return sentence_encoder.embed(self.sentence_encoder, params, batch["inputs"])

  def predict_batch_with_aux(
    self, params: Any, batch: Batch
  ) -> tuple[Int[Array, "B T"], dict[str, Float[Array, "B S"]]]:
    """Returns the input tokens, from which T5X decodes the text, and {"embedding": vectors}.

    With this method, T5X's inference script can write vectors without converting them to Python
    floats.
    """
    return batch["inputs"], {"embedding": self.score_batch(params, batch)}

  def predict_batch(self, params: Any, batch: Batch) -> Any:
    """Raises NotImplementedError: sentence encoders do not predict text."""
    raise NotImplementedError(
      f"{type(self).__name__} does not predict text; for vectors, use score_batch (infer.mode = "
      "'score', metric_fns with arguments `targets` and `scores`) or predict_batch_with_aux"
    )


def average(value_B: Float[Array, "B"]) -> clu_metrics.Average:
  """Returns a metric that averages `value_B` over the pairs of all batches."""
  total = jnp.sum(value_B, dtype=jnp.float32)
  return clu_metrics.Average(total=total, count=jnp.asarray(value_B.size, jnp.float32))


def ratio(total: jax.Array, count: jax.Array | float) -> clu_metrics.Average:
  """Returns a metric that divides the sum of `total` over all batches by the sum of `count`."""
  return clu_metrics.Average(
    total=jnp.asarray(total, jnp.float32), count=jnp.asarray(count, jnp.float32)
  )


def vector_metrics(vector_B2S: Float[Array, "B 2 S"], batch: Batch) -> Metrics:
  """Returns the metrics embedding_norm and tokens_per_example (real tokens on both sides)."""
  return {
    "embedding_norm": average(jnp.linalg.norm(vector_B2S, axis=-1)),
    "tokens_per_example": average(tokens_per_pair(batch)),
  }


def tokens_per_pair(batch: Batch) -> Float[Array, "B"]:
  """Returns the number of real tokens in each pair, summed over both sides."""
  inputs_B, targets_B = (
    jnp.sum(batch[name] != arrays.PAD_ID, axis=1, dtype=jnp.float32)
    for name in ("inputs", "targets")
  )
  return inputs_B + targets_B


def split_rng(rng: jax.Array | None, count: int) -> list[jax.Array | None]:
  """Splits a key into a list of `count` keys; if the key is None, every element is None."""
  return [None] * count if rng is None else list(jax.random.split(rng, count))


def interleave(*tokens: Int[Array, "B *K T"]) -> Int[Array, "B R W"]:
  """Places the texts of each pair next to each other and pads all texts to the longest length.

  One encoder call can then process all texts. The first axis of the result is still the batch axis,
  so the texts of a pair stay on the same device.

  Args:
    *tokens: Token ids, [B, T] for one text per pair or [B, K, T] for several texts per pair.
  """
  width = max(x.shape[-1] for x in tokens)
  texts = [x.reshape(len(x), -1, x.shape[-1]) for x in tokens]
  padded = [
    jnp.pad(x, ((0, 0), (0, 0), (0, width - x.shape[2])), constant_values=arrays.PAD_ID)
    for x in texts
  ]
  return jnp.concatenate(padded, axis=1)
