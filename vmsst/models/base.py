"""What trainers, evaluators and inference ask of a model: T5X's model interface, without T5X."""

import abc
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from clu import metrics as clu_metrics
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import errors, padding
from vmsst.networks import sentence_encoder
from vmsst.text import vocabularies

Batch = Mapping[str, jax.Array]
Metrics = dict[str, clu_metrics.Metric]


class BitextModel(abc.ABC):
  """A model trained on pairs of sentences that gives a vector for a sentence.

  Trainers find here what T5X's trainers look for; nothing is imported from T5X, and seqio only when
  a trainer asks for the feature converter or a vocabulary.

  Attributes:
    network: Flax module that is trained.
    vocabulary: Vocabulary of both sides.
    optimizer_def: T5X optimizer definition; None for a model that is only evaluated.
    max_length: Tokens of a sentence in training, EOS included; longer ones are cut.
  """

  def __init__(
    self,
    *,
    network: nn.Module,
    input_vocabulary: vocabularies.Vocabulary,
    optimizer_def: Any = None,
    max_length: int = 32,
  ):
    if max_length < 1:
      raise errors.InputError(f"max_length is {max_length}; it has to be at least 1")
    self.network = network
    self.vocabulary = input_vocabulary
    self.optimizer_def = optimizer_def
    self.max_length = max_length

  @property
  def module(self) -> nn.Module:
    """The network, under the name by which T5X asks for it."""
    return self.network

  @property
  def FEATURE_CONVERTER_CLS(self) -> Any:
    """Class that turns task examples into batches, looked up now: its module imports seqio."""
    from vmsst.tasks import feature_converter

    return feature_converter.BitextFeatureConverter

  @property
  def input_vocabulary(self) -> Any:
    """The vocabulary of `inputs` as a seqio object."""
    from vmsst.tasks import seqio_vocabulary

    return seqio_vocabulary.SeqioVocabulary(self.vocabulary)

  @property
  def output_vocabulary(self) -> Any:
    """The vocabulary of `targets` as a seqio object; both sides share one."""
    return self.input_vocabulary

  @property
  @abc.abstractmethod
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The network of inference; its parameters are those of the same names in `network`."""

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_types: Mapping[str, Any] | None = None,
  ) -> Mapping[str, Any]:
    """Returns fresh `params` and their logical axes, `params_axes`.

    Args:
      rng: Random key.
      input_shapes: Shape of each feature; only that of `inputs` is read.
      input_types: Ignored: tokens are int32.
    """
    del input_types
    return self.network.init(rng, jnp.ones(input_shapes["inputs"], jnp.int32))

  @abc.abstractmethod
  def loss_fn(
    self, params: Any, batch: Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, Metrics]:
    """Returns the mean loss of the batch's pairs and metrics; without a key, deterministically."""

  def eval_fn(self, params: Any, batch: Batch) -> tuple[jax.Array, Metrics]:
    """Returns loss and metrics as `loss_fn` does, without dropout."""
    return self.loss_fn(params, batch, None)

  def score_batch(self, params: Any, batch: Batch) -> Float[Array, "B S"]:
    """Returns the vector of each sentence of `inputs`: float32, not normalized."""
    return sentence_encoder.embed(self.sentence_encoder, params, batch["inputs"])

  def predict_batch_with_aux(
    self, params: Any, batch: Batch
  ) -> tuple[Int[Array, "B T"], dict[str, Float[Array, "B S"]]]:
    """Returns the input tokens, which decode to the text, and {"embedding": its vector}.

    The route by which T5X's infer writes vectors without turning them into Python floats.
    """
    return batch["inputs"], {"embedding": self.score_batch(params, batch)}

  def predict_batch(self, params: Any, batch: Batch) -> Any:
    """Raises: a sentence encoder predicts no text."""
    raise NotImplementedError(
      f"{type(self).__name__} predicts no text: use score_batch (infer.mode = 'score', metric_fns "
      "with arguments targets, scores) or predict_batch_with_aux for its vectors"
    )


def average(value_B: Float[Array, "B"]) -> clu_metrics.Average:
  """A metric that averages one value a pair, over batches of any size."""
  total = jnp.sum(value_B, dtype=jnp.float32)
  return clu_metrics.Average(total=total, count=jnp.asarray(value_B.size, jnp.float32))


def ratio(total: jax.Array, count: jax.Array | float) -> clu_metrics.Average:
  """A metric that is the sum of all totals over the sum of all counts."""
  return clu_metrics.Average(
    total=jnp.asarray(total, jnp.float32), count=jnp.asarray(count, jnp.float32)
  )


def tokens_per_pair(batch: Batch) -> Float[Array, "B"]:
  """Real tokens of both sides of each pair."""
  inputs_B, targets_B = (
    jnp.sum(batch[name] != padding.PAD_ID, axis=1, dtype=jnp.float32)
    for name in ("inputs", "targets")
  )
  return inputs_B + targets_B


def interleave_sides(
  inputs_BT: Int[Array, "B T"], targets_BT: Int[Array, "B U"]
) -> Int[Array, "B 2 W"]:
  """Both sides of each pair side by side, the shorter padded to the longer.

  Stacked behind the batch axis, so that a pair's two sentences stay on its device and one encoder
  call can take all of them.
  """
  width = max(inputs_BT.shape[1], targets_BT.shape[1])
  sides = [
    jnp.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=padding.PAD_ID)
    for x in (inputs_BT, targets_BT)
  ]
  return jnp.stack(sides, axis=1)
