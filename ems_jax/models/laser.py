"""LASER: translates sentences into one or two languages from their vectors alone.

References: Artetxe and Schwenk 2019 (arXiv 1812.10464), section 3.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ems_jax.networks import laser
from vmsst import arrays, errors, languages
from vmsst.losses import vocabulary
from vmsst.models import base, bitranslation
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as vmsst_networks


class Translations(NamedTuple):
  """At most one translation per pair.

  Attributes:
    sources_BT: Tokens to encode.
    targets_BT: Tokens to predict; only padding if a pair has no translation.
    languages_B: Languages of the targets.
  """

  sources_BT: Int[Array, "B T"]
  targets_BT: Int[Array, "B T"]
  languages_B: Int[Array, "B"]

  @property
  def tokens(self) -> Int[Array, ""]:
    """Number of tokens to predict."""
    return jnp.sum(self.targets_BT != arrays.PAD_ID)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LaserModel(base.BitextModel):
  """An encoder trained with a decoder that translates sentences from their vectors alone.

  The loss is the negative log-likelihood per token, averaged over the tokens of all translations in
  the batch, including EOS:

    - sum_t log p(y_t | y_<t, l_y, u(x)) / number of tokens

  u(x) is the maximum of the encoder's hidden states over the tokens of the sentence x, and l_y is
  the language of its translation y. Each side in one of the `target_languages` is predicted from
  the other side of its pair. A pair with two such sides is therefore used in both directions, and a
  pair without such a side is ignored.

  Attributes:
    network: Encoder and decoder.
    target_languages: Codes of the languages to translate into (see `vmsst.languages`).

  For the inherited attributes, see `vmsst.models.base.BitextModel`.
  """

  network: laser.LaserNetwork
  max_length: int = 120
  target_languages: Sequence[str] = ("en", "es")

  def __post_init__(self) -> None:
    super().__post_init__()
    if isinstance(self.target_languages, str) or not self.target_languages:
      raise errors.InputError(
        f"target_languages is {self.target_languages!r}; set it to a sequence of language codes, "
        "such as ('en', 'es')"
      )
    if max(self._target_rows) >= self.network.num_languages:
      raise errors.InputError(
        f"LaserNetwork.num_languages is {self.network.num_languages}; set it to at least "
        f"{max(self._target_rows) + 1} for the target languages {tuple(self.target_languages)}"
      )

  @functools.cached_property
  def _target_rows(self) -> list[int]:
    return [languages.language(code).index for code in self.target_languages]

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The encoder with max pooling."""
    return sentence_encoder.SentenceEncoder(
      self.network.config, self.network.latent_dim, head=False, pooling="max"
    )

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss in nats per token, and metrics; no dropout if `dropout_rng` is None.

    Metrics: loss, nll/translation (equal to the loss; all models with a decoder use this name),
    token_accuracy/translation (0 to 1, given the earlier tokens), translations_per_example (mean
    number of translations per pair), tokens_per_example (real tokens on both sides). A batch
    without translations has a loss of 0. If no batch contains a translation, the averages of loss,
    nll/translation and token_accuracy/translation over batches are NaN.
    """
    pairs = bitranslation.pairs_in_batch(batch)
    is_target_B2 = jnp.isin(pairs.languages_B2, jnp.array(self._target_rows))
    first, second = translations(pairs, is_target_B2)
    tokens = (first.tokens + second.tokens).astype(jnp.float32)
    weight = 1 / jnp.maximum(tokens, 1)
    first_rng, second_rng = base.split_rng(dropout_rng, 2)
    loss, correct = self._score(params, first, weight, first_rng)
    # Skip the second translations if no pair has one.
    second_loss, second_correct = jax.lax.cond(
      second.tokens > 0,
      lambda: self._score(params, second, weight, second_rng),
      lambda: (jnp.zeros_like(loss), jnp.zeros_like(correct)),
    )
    loss += second_loss
    correct += second_correct
    metrics = {
      "loss": base.ratio(loss * tokens, tokens),
      "nll/translation": base.ratio(loss * tokens, tokens),
      "token_accuracy/translation": base.ratio(correct, tokens),
      "translations_per_example": base.average(jnp.sum(is_target_B2, axis=1)),
      "tokens_per_example": base.average(base.tokens_per_pair(batch)),
    }
    return loss, metrics

  def _score(
    self, params: Any, rows: Translations, weight: Float[Array, ""], dropout_rng: jax.Array | None
  ) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the negative log-likelihood times `weight`, and the number of correct tokens."""
    vector_BS = sentence_encoder.embed(
      self.network, params, rows.sources_BT, dropout_rng=dropout_rng
    )
    decoded = sentence_encoder.run(
      self.network,
      params,
      "decode",
      rows.targets_BT,
      rows.languages_B,
      vector_BS,
      dropout_rng=None if dropout_rng is None else jax.random.fold_in(dropout_rng, 1),
    )
    weighted, aux = vocabulary.weighted_nll(
      *cast(vmsst_networks.Projection, decoded),
      rows.targets_BT,
      jnp.broadcast_to(weight, rows.targets_BT.shape),
      dtype=self.network.config.dtype,
    )
    return weighted, jnp.sum(aux.correct_BT, dtype=jnp.float32)


def translations(
  pairs: bitranslation.Pairs, is_target_B2: Bool[Array, "B 2"]
) -> tuple[Translations, Translations]:
  """Returns the first and the second translation of each pair, if they exist.

  Args:
    pairs: Both sides of each pair.
    is_target_B2: Whether each side is a translation target, a sentence in a target language.
  """
  # The first translation is from inputs to targets if the targets are translation targets,
  # otherwise from targets to inputs. The second translation exists only if both sides are
  # translation targets. Missing translations contain only padding, so they have no weight in the
  # loss.
  inputs_BT, targets_BT = pairs.tokens_B2T[:, 0], pairs.tokens_B2T[:, 1]
  padding_BT = jnp.zeros_like(inputs_BT)
  forward_B, backward_B = is_target_B2[:, 1], is_target_B2[:, 0]
  forward_B1, backward_B1 = forward_B[:, None], backward_B[:, None]
  first = Translations(
    jnp.where(forward_B1, inputs_BT, targets_BT),
    jnp.where(forward_B1, targets_BT, jnp.where(backward_B1, inputs_BT, padding_BT)),
    jnp.where(forward_B, pairs.languages_B2[:, 1], pairs.languages_B2[:, 0]),
  )
  second = Translations(
    targets_BT, jnp.where(forward_B1 & backward_B1, inputs_BT, padding_BT), pairs.languages_B2[:, 0]
  )
  return first, second
