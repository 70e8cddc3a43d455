"""EMS's network: a shared encoder, the XTR head and the contrastive head (EMS paper, section III).

The sentence vector u is the mean of the encoder's hidden states (equation 1). The XTR head and the
contrastive head both take u as input and are used only in training.

The token table and the encoder have the same names as in
`vmsst.networks.sentence_encoder.SentenceEncoder`, so that inference loads them without the heads.
`EmsNetwork` can use any encoder that `SentenceEncoder` supports.

Axes: `E` width of the vocabulary projection's input, `C` width of the vectors that the contrastive
loss compares.
"""

from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import arrays, errors, languages
from vmsst.arrays import layouts
from vmsst.networks import sentence_encoder, t5, transformer
from vmsst.networks import vmsst as vmsst_networks

_LAYER_NORM_EPS = 1e-12
_SIMPLIFIED, _TRADITIONAL = (languages.language(code).index for code in ("zh", "zh_TW"))


class EmsNetwork(nn.Module):
  """EMS's encoder and heads; a disabled head has no parameters.

  Attributes:
    config: Configuration of the encoder.
    xtr: Whether the network has a head for cross-lingual token-level reconstruction.
    contrastive: Whether the network is trained with the contrastive loss.
    language_dim: Width of the target language's embedding in the XTR head (d_la); if None, the
      embedding is omitted.
    num_languages: Number of rows in the language table, which lists languages in the order of
      `vmsst.languages`; traditional Chinese uses the row for simplified Chinese (footnote 4). The
      paper's table (equation 2) has one row per vocabulary piece, but uses only one per language.
    share_embedding: Whether to use the token table as W_emb; the output of W_fc then has the
      table's width.
    xtr_layer_norm: Whether to apply layer norms to the language embedding and to the input of
      W_emb, as in the released code but not in the paper.
    projection_dim: Width of the vectors compared by the contrastive loss (d_cntrs); if None, the
      loss compares the sentence vectors themselves.
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
    errors.check_sizes(self)
    if not self.xtr and not self.contrastive:
      raise errors.InputError(
        "EmsNetwork.xtr and EmsNetwork.contrastive are both False; set at least one of them"
      )
    super().__post_init__()

  @property
  def latent_dim(self) -> int:
    """Width of the sentence vector (S), equal to the width of the encoder's hidden states."""
    return self.config.width

  def setup(self) -> None:
    """Creates the submodules."""
    cfg = self.config
    self.token_embedder = cfg.token_embedder()
    self.encoder = cfg.encoder()
    if self.contrastive and self.projection_dim:
      self.projection_hidden = _dense(self.latent_dim)
      self.projection = _dense(self.projection_dim)
    if not self.xtr:
      return
    features = self.latent_dim
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
        self.language_layer_norm = transformer.LayerNorm(_LAYER_NORM_EPS)
      self.xtr_norm = transformer.LayerNorm(_LAYER_NORM_EPS)

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns unnormalized float32 sentence vectors u; padding (id 0) does not change them.

    Rows with only padding are mapped to zeros.

    Args:
      tokens_BT: Token ids; padding must be at the end.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.
    """
    mask_BT = tokens_BT != arrays.PAD_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    vector_BS = layouts.constrain(
      sentence_encoder.masked_mean(hidden_BTD, mask_BT), ("batch", "kv")
    )
    if self.is_initializing():
      # Flax initializes only what this method calls, so call the heads to create their parameters.
      if self.xtr:
        self.xtr_hidden(vector_BS, jnp.zeros_like(tokens_BT[:, 0]))
        self.xtr_kernel()
      if self.contrastive:
        self.project(vector_BS)
    return vector_BS

  def xtr_hidden(
    self, vector_BS: Float[Array, "B S"], languages_B: Int[Array, "B"]
  ) -> Float[Array, "B E"]:
    """Returns swish(W_fc [u_la; u] + b_fc), the input of W_emb (equations 2 to 5), float32.

    Args:
      vector_BS: Sentence vectors.
      languages_B: Language of the sentence to predict, which is the other side of the pair; an
        index into `vmsst.languages`. An index outside the table gives NaN.
    """
    input_BE = vector_BS
    if self.language_dim:
      row_B = jnp.where(languages_B == _TRADITIONAL, _SIMPLIFIED, languages_B)
      language_BE = self.language_embedder(row_B[:, None])[:, 0]
      if self.xtr_layer_norm:
        language_BE = self.language_layer_norm(language_BE)
      input_BE = jnp.concatenate([language_BE, vector_BS], axis=-1)
    hidden_BE = nn.swish(self.xtr_transform(input_BE))
    if self.xtr_layer_norm:
      hidden_BE = self.xtr_norm(hidden_BE)
    return layouts.constrain(hidden_BE, ("batch", "kv"))

  def xtr_kernel(self) -> Float[Array, "E V"]:
    """Returns the transpose of W_emb (equations 4 and 5), float32."""
    if self.share_embedding:
      table_VD = self.token_embedder.variables["params"]["embedding"]
      return cast(jax.Array, table_VD).T
    return self.xtr_logits()

  def project(self, vector_BS: Float[Array, "B S"]) -> Float[Array, "B C"]:
    """Returns W_1 relu(W_2 u + b_2) + b_1 (equations 10, 11), float32; u if projection is off."""
    if not self.projection_dim:
      return vector_BS
    compared_BC = self.projection(nn.relu(self.projection_hidden(vector_BS)))
    return layouts.constrain(compared_BC, ("batch", "kv"))


def _dense(features: int) -> nn.Module:
  # These layers are small, so they use the logical axis "kv", which T5X's rules replicate.
  return t5.Dense(features, ("embed", "kv"), use_bias=True)
