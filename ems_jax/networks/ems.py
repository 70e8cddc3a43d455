"""EMS's network: a shared encoder, the XTR head and the contrastive head (EMS paper, section III).

The sentence vector u is the mean of the encoder's hidden states (equation 1). Both heads stand on
top of it and serve training alone.

Token table and encoder have the names that `vmsst.networks.sentence_encoder.SentenceEncoder` gives
them, so that inference loads the two without the heads. Any encoder that it knows will do.

Axes: `E` input of the vocabulary projection, `C` vector that the contrastive loss compares.
"""

from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import errors, languages, padding, sharding
from vmsst.networks import bert, pooling, sentence_encoder, t5
from vmsst.networks import vmsst as vmsst_networks

_KERNEL_INIT = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
_LAYER_NORM_EPS = 1e-12


class EmsNetwork(nn.Module):
  """Encoder and heads of EMS; what its ablations leave out has no parameters.

  Attributes:
    config: Sizes and numerics of the encoder.
    xtr: Whether there is a head for cross-lingual token-level reconstruction.
    contrastive: Whether vectors are compared with each other in training.
    language_dim: Width of the target language's embedding in the XTR head (d_la); None: there is
      no such embedding.
    num_languages: Its rows. One for each language is all that is looked up, by the index of
      `vmsst.languages`; the table of equation 2 has as many as the vocabulary.
    share_embedding: Takes the token table for W_emb. W_fc then has the table's width as output.
    xtr_layer_norm: Layer-norms the language embedding and what goes into W_emb, as the released
      code does and the paper does not.
    projection_dim: Width of the vectors that the contrastive loss compares (d_cntrs); None: it
      compares sentence vectors themselves.
  """

  config: sentence_encoder.EncoderConfig
  xtr: bool = True
  contrastive: bool = True
  language_dim: int | None = 128
  num_languages: int = languages.NUM_LANGUAGES
  share_embedding: bool = False
  xtr_layer_norm: bool = False
  projection_dim: int | None = 128

  def __post_init__(self) -> None:
    for name in ("language_dim", "num_languages", "projection_dim"):
      value = getattr(self, name)
      if value is not None and (not isinstance(value, int) or value < 1):
        raise errors.InputError(f"EmsNetwork.{name} is {value!r}; it has to be a positive integer")
    if not self.xtr and not self.contrastive:
      raise errors.InputError(
        "EmsNetwork.xtr and EmsNetwork.contrastive are both False: nothing is left to train"
      )
    super().__post_init__()

  @property
  def latent_dim(self) -> int:
    """Width of the sentence vector (S), that of the encoder's hidden states."""
    return sentence_encoder.hidden_dim(self.config)

  def setup(self) -> None:
    """Makes the parts, each with its own parameters."""
    cfg = self.config
    self.token_embedder = sentence_encoder.new_token_embedder(cfg)
    self.encoder = sentence_encoder.new_encoder(cfg)
    if self.xtr:
      self._make_xtr_head()
    if self.contrastive and self.projection_dim:
      self.projection_hidden = _dense(self.latent_dim)
      self.projection = _dense(self.projection_dim)

  def _make_xtr_head(self) -> None:
    cfg, features = self.config, self.latent_dim
    if self.language_dim:
      features += self.language_dim
      self.language_embedder = t5.TokenEmbedder(
        self.num_languages, self.language_dim, rows_axis="relpos_buckets"
      )
    if self.share_embedding:
      features = cfg.emb_dim
    else:
      self.xtr_logits = vmsst_networks.OutputKernel(features, features, cfg.vocab_size)
    self.xtr_transform = _dense(features)
    if self.xtr_layer_norm:
      if self.language_dim:
        self.language_layer_norm = bert.LayerNorm(_LAYER_NORM_EPS)
      self.xtr_norm = bert.LayerNorm(_LAYER_NORM_EPS)

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns unnormalized float32 sentence vectors u; padding (id 0) at the end changes nothing.

    A row of padding alone gives zeros.

    Args:
      tokens_BT: Token ids.
      deterministic: False turns dropout on (needs an rng named "dropout").
    """
    mask_BT = tokens_BT != padding.PAD_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    vector_BS = sharding.constrain(pooling.masked_mean(hidden_BTD, mask_BT), ("batch", "kv"))
    if self.is_initializing():
      # Parameters are made of tokens alone: so are those of the heads.
      if self.xtr:
        self.xtr_hidden(vector_BS, jnp.zeros_like(tokens_BT[:, 0]))
        self.xtr_kernel()
      if self.contrastive:
        self.compared(vector_BS)
    return vector_BS

  def xtr_hidden(
    self, vector_BS: Float[Array, "B S"], languages_B: Int[Array, "B"]
  ) -> Float[Array, "B E"]:
    """Returns swish(W_fc [u_la; u] + b_fc), the input of W_emb (equations 2 to 5), float32.

    Args:
      vector_BS: Sentence vectors.
      languages_B: Language of the sentence that each is to predict, the other one of its pair; an
        index of `vmsst.languages`. One outside the table gives NaN.
    """
    input_BE = vector_BS
    if self.language_dim:
      language_BE = self.language_embedder(languages_B[:, None])[:, 0]
      if self.xtr_layer_norm:
        language_BE = self.language_layer_norm(language_BE)
      input_BE = jnp.concatenate([language_BE, vector_BS], axis=-1)
    hidden_BE = nn.swish(self.xtr_transform(input_BE))
    if self.xtr_layer_norm:
      hidden_BE = self.xtr_norm(hidden_BE)
    return sharding.constrain(hidden_BE, ("batch", "kv"))

  def xtr_kernel(self) -> Float[Array, "E V"]:
    """Returns the transpose of W_emb (equations 4 and 5), float32."""
    if self.share_embedding:
      table_VD = self.token_embedder.variables["params"]["embedding"]
      return cast(jax.Array, table_VD).T
    return self.xtr_logits()

  def compared(self, vector_BS: Float[Array, "B S"]) -> Float[Array, "B C"]:
    """Returns W_1 relu(W_2 u + b_2) + b_1 (equations 10 and 11), float32; without a head u."""
    if not self.projection_dim:
      return vector_BS
    compared_BC = self.projection(nn.relu(self.projection_hidden(vector_BS)))
    return sharding.constrain(compared_BC, ("batch", "kv"))


def _dense(features: int) -> nn.Module:
  # T5X's rules replicate a "kv" axis: beside the encoder these are small.
  return bert.Dense(features, ("embed", "kv"), _KERNEL_INIT)
