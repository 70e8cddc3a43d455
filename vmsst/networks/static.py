"""Static encoders: the sentence vector is the mean of the token vectors, without attention.

The network is a `SentenceEncoder` with a `StaticConfig`, mean pooling and, usually,
`normalize=True`.

References: Tulkens and van Dongen 2024 (Model2Vec), Aarsen 2025 (StaticEmbedding).
"""

import dataclasses

from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vmsst import errors
from vmsst.networks import t5


@dataclasses.dataclass(frozen=True)
class StaticConfig:
  """Configuration of a static encoder; all fields are plain values that gin can bind and save.

  Attributes:
    vocab_size: Number of rows in the token table (V); at least the vocabulary size.
    emb_dim: Width of the token vectors (D).
    dtype: Compute dtype, "float32" or "bfloat16". The token table is always float32.
  """

  vocab_size: int
  emb_dim: int = 256
  dtype: str = "float32"

  def __post_init__(self):
    errors.check_sizes(self)
    errors.check_choice("StaticConfig.dtype", self.dtype, t5.DTYPES)

  @property
  def width(self) -> int:
    """Width of the hidden states, which are the token vectors."""
    return self.emb_dim

  def token_embedder(self) -> t5.TokenEmbedder:
    """Returns the token table."""
    return t5.TokenEmbedder(self.vocab_size, self.emb_dim, self.dtype)

  def encoder(self) -> "Identity":
    """Returns the encoder."""
    return Identity()


class Identity(nn.Module):
  """An encoder without layers."""

  def __call__(
    self, embedded_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"], *, deterministic: bool
  ) -> Float[Array, "B T D"]:
    """Returns the token vectors."""
    del mask_BT, deterministic
    return embedded_BTD
