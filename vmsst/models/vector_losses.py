"""Base class for models that compute their loss from the vectors of the texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import jax
from jaxtyping import Array, Float

from vmsst import errors
from vmsst.losses import contrastive
from vmsst.models import base, gradient_caching, matryoshka
from vmsst.networks import sentence_encoder


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VectorLossModel(base.BitextModel):
  """Encodes the texts in a batch and computes the loss from their vectors.

  A subclass implements `vector_loss`. If its loss has further terms, such as a decoder's loss, it
  overrides `loss_fn` instead.

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

  _TEXTS: ClassVar[Sequence[str]] = ("inputs", "targets")  # the features to encode

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
    """Returns the mean loss over pairs, and the metrics of `vector_loss`."""
    tokens_BRT = base.interleave(*(batch[name] for name in self._TEXTS if name in batch))
    vector_BRS = gradient_caching.embed_texts(
      self.network, params, tokens_BRT, batch, slices=self.embedding_slices, rng=dropout_rng
    )
    return self.vector_loss(params, vector_BRS, batch)

  def vector_loss(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss over pairs, and metrics; `vector_BRS` is the network's output."""
    raise NotImplementedError(f"{type(self).__name__} has no loss that depends only on vectors")

  def loss_of_vectors(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns `vector_loss`, for vectors that may not be normalized yet."""
    if getattr(self.network, "normalize", False):
      vector_BRS = contrastive.unit_rows(vector_BRS)
    return self.vector_loss(params, vector_BRS, batch)
