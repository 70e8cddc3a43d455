"""Base class for models whose loss depends on a text only through the text's vector."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import jax

from vmsst import errors
from vmsst.models import base, gradient_caching, matryoshka
from vmsst.networks import sentence_encoder


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VectorLossModel(base.BitextModel):
  """Encodes the texts in a batch and computes the loss from their vectors.

  Batches may contain hard negatives in the feature `negatives` (int32, [B, K, U]): K wrong targets
  for each source. They are encoded together with both sides of each pair.

  Subclasses implement `loss_of_vectors`. If the loss has terms that do not depend on the vectors,
  they replace `loss_fn` instead.

  Attributes:
    embedding_slices: Number of slices into which gradient caching divides a batch. Memory holds the
      activations of only one slice at a time, but the backward pass encodes every slice again. The
      gradient does not depend on the number of slices.
    matryoshka_dims: Sizes to which vectors can be truncated after training. The loss is averaged
      over the full vectors and the vectors truncated to each size; see `vmsst.models.matryoshka`.

  For the inherited attributes, see `base.BitextModel`.
  """

  embedding_slices: int = 1
  matryoshka_dims: Sequence[int] = ()

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.as_integer("embedding_slices", self.embedding_slices)
    matryoshka.check_dims(self.matryoshka_dims)

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The network itself."""
    return cast(sentence_encoder.SentenceEncoder, self.network)

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss over pairs, and the metrics of `loss_of_vectors`."""
    names = ("inputs", "targets", "negatives")
    tokens_BRT = base.interleave(*(batch[name] for name in names if name in batch))
    vector_BRS = gradient_caching.embed_texts(
      self.network, params, tokens_BRT, batch, slices=self.embedding_slices, rng=dropout_rng
    )
    return self.loss_of_vectors(params, vector_BRS, batch)
