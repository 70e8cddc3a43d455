"""From tokens to one vector a sentence: table, T5 encoder, masked mean, mean head."""

from typing import Any, cast

import jax
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import sharding
from vmsst.networks import pooling, t5


class SentenceEncoder(nn.Module):
  """Sentence vectors of token ids: the mean of the semantic latent (section 5 of the VMSST paper).

  A larger model that keeps these three names (`token_embedder`, `encoder`, `mean`) at the top of
  its parameters can be loaded for inference as this network.

  Attributes:
    config: Sizes and numerics of the T5 encoder.
    latent_dim: Width of the sentence vector (S); the paper's equals `config.emb_dim`.
  """

  config: t5.T5Config
  latent_dim: int

  def setup(self) -> None:
    """Makes the three parts, each with its own parameters."""
    cfg = self.config
    self.token_embedder = t5.TokenEmbedder(cfg.vocab_size, cfg.emb_dim, cfg.dtype)
    self.encoder = t5.T5Encoder(cfg)
    # T5X's rules replicate a "kv" axis: the head is small.
    self.mean = t5.Dense(self.latent_dim, ("embed", "kv"))

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns unnormalised float32 sentence vectors; padding (id 0) at the end changes nothing.

    A row of padding alone gives zeros.
    """
    mask_BT = tokens_BT != t5.PADDING_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    latent_BS = self.mean(pooling.masked_mean(hidden_BTD, mask_BT))
    return sharding.constrain(latent_BS, ("batch", "kv"))


def embed(
  network: SentenceEncoder,
  params: Any,
  tokens_BT: Int[Array, "B T"],
  *,
  dropout_rng: jax.Array | None = None,
) -> Float[Array, "B S"]:
  """Returns the network's sentence vectors; without a key there is no dropout."""
  rngs = None if dropout_rng is None else {"dropout": dropout_rng}
  vector_BS = network.apply(
    {"params": params}, tokens_BT, deterministic=dropout_rng is None, rngs=rngs
  )
  return cast(jax.Array, vector_BS)
