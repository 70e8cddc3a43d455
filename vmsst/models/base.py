"""The interface of models for trainers, evaluators and inference: T5X's, without importing T5X."""

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
  """A model trained on sentence pairs that maps a sentence to a vector.

  It has all members that T5X's trainers use. It imports nothing from T5X, and seqio only when a
  trainer requests the feature converter or a vocabulary.

  Attributes:
    network: Flax module to train.
    vocabulary: Vocabulary of both sides.
    optimizer_def: T5X optimizer definition; None for evaluation.
    max_length: Maximum tokens of a sentence in training, with EOS; longer sentences are truncated.
    allow_fewer_negatives: Whether microbatches (a trainer setting) may divide the batch of a loss
      that compares pairs; a pair then has only the negatives of its microbatch.
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
    """The network, under the name that T5X uses."""
    return self.network

  @property
  def FEATURE_CONVERTER_CLS(self) -> Any:
    """Class that converts task examples to batches; imported lazily because it needs seqio."""
    from vmsst.data import seqio_tasks

    return seqio_tasks.BitextFeatureConverter

  @property
  def input_vocabulary(self) -> Any:
    """The vocabulary of `inputs` as a seqio object."""
    from vmsst.data import seqio_tasks

    return seqio_tasks.SeqioVocabulary(self.vocabulary)

  @property
  def output_vocabulary(self) -> Any:
    """The vocabulary of `targets` as a seqio object; both sides share one."""
    return self.input_vocabulary

  @property
  @abc.abstractmethod
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The network used for inference; it shares parameters with `network` by name."""

  @property
  def compares_pairs(self) -> bool:
    """Whether the loss of a pair depends on other pairs of the batch, such as its negatives."""
    return False

  def check_microbatches(self, count: int) -> None:
    """Raises InputError if microbatches would remove negatives from the loss without permission.

    Args:
      count: Number of microbatches per batch (a trainer setting).
    """
    if count > 1 and self.compares_pairs and not self.allow_fewer_negatives:
      raise errors.InputError(
        f"NUM_MICROBATCHES={count} leaves a pair of {type(self).__name__} only 1/{count} of its "
        f"negatives; set NUM_MICROBATCHES=None and EMBEDDING_SLICES={count} to "
        "save as much memory and keep all negatives, or set ALLOW_FEWER_NEGATIVES=True"
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
    """Returns the mean loss over the batch's pairs, and metrics; deterministic without a key."""

  def eval_fn(self, params: Any, batch: Batch) -> tuple[jax.Array, Metrics]:
    """Returns loss and metrics like `loss_fn`, without dropout."""
    return self.loss_fn(params, batch, None)

  def score_batch(self, params: Any, batch: Batch) -> Float[Array, "B S"]:
    """Returns the vector of each sentence in `inputs`: float32, not normalized."""
    return sentence_encoder.embed(self.sentence_encoder, params, batch["inputs"])

  def predict_batch_with_aux(
    self, params: Any, batch: Batch
  ) -> tuple[Int[Array, "B T"], dict[str, Float[Array, "B S"]]]:
    """Returns the input tokens, to decode the text from, and {"embedding": vectors}.

    T5X's infer uses this method to write vectors without converting them to Python floats.
    """
    return batch["inputs"], {"embedding": self.score_batch(params, batch)}

  def predict_batch(self, params: Any, batch: Batch) -> Any:
    """Raises NotImplementedError: sentence encoders do not predict text."""
    raise NotImplementedError(
      f"{type(self).__name__} does not predict text; for vectors, use score_batch (infer.mode = "
      "'score', metric_fns with arguments targets, scores) or predict_batch_with_aux"
    )


def average(value_B: Float[Array, "B"]) -> clu_metrics.Average:
  """Returns a metric that averages one value per pair over batches of any size."""
  total = jnp.sum(value_B, dtype=jnp.float32)
  return clu_metrics.Average(total=total, count=jnp.asarray(value_B.size, jnp.float32))


def ratio(total: jax.Array, count: jax.Array | float) -> clu_metrics.Average:
  """Returns a metric that divides the sum of all totals by the sum of all counts."""
  return clu_metrics.Average(
    total=jnp.asarray(total, jnp.float32), count=jnp.asarray(count, jnp.float32)
  )


def vector_metrics(vector_B2S: Float[Array, "B 2 S"], batch: Batch) -> Metrics:
  """Returns the metrics embedding_norm and tokens_per_example (real tokens of both sides)."""
  return {
    "embedding_norm": average(jnp.linalg.norm(vector_B2S, axis=-1)),
    "tokens_per_example": average(tokens_per_pair(batch)),
  }


def tokens_per_pair(batch: Batch) -> Float[Array, "B"]:
  """Returns the number of real tokens in both sides of each pair."""
  inputs_B, targets_B = (
    jnp.sum(batch[name] != arrays.PAD_ID, axis=1, dtype=jnp.float32)
    for name in ("inputs", "targets")
  )
  return inputs_B + targets_B


def split_rng(rng: jax.Array | None, count: int) -> list[jax.Array | None]:
  """Returns `count` keys split from one; without a key, a list of `count` times None."""
  return [None] * count if rng is None else list(jax.random.split(rng, count))


def interleave(*tokens: Int[Array, "B *K T"]) -> Int[Array, "B R W"]:
  """Returns the texts of each pair next to each other, all padded to the longest length.

  The batch axis comes first, so that all texts of a pair stay on one device, and one encoder call
  can process them.

  Args:
    *tokens: Token ids of one text of each pair, [B, T], or of several, [B, K, T].
  """
  width = max(x.shape[-1] for x in tokens)
  texts = [x.reshape(len(x), -1, x.shape[-1]) for x in tokens]
  padded = [
    jnp.pad(x, ((0, 0), (0, 0), (0, width - x.shape[2])), constant_values=arrays.PAD_ID)
    for x in texts
  ]
  return jnp.concatenate(padded, axis=1)
