"""Matryoshka losses: the first dimensions of a vector become useful by themselves.

A model computes its in-batch loss from the whole vectors and from their first dimensions. Vectors
of the trained encoder can then be cut (`encode(truncate_dim=64)`, `vmsst embed --dimensions 64`)
to save memory and search time. `vmsst eval --dimensions 64` evaluates the cut vectors.

`LayersModel` does the same for the first layers of the encoder. To make the trained encoder
faster, cut it to these layers (`Encoder.truncate(4)`).

References: Kusupati et al. 2022, Matryoshka Representation Learning (with equal weights); Li et al.
2024, 2D Matryoshka Sentence Embeddings.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vmsst import errors
from vmsst.models import base
from vmsst.networks import sentence_encoder

Vectors = TypeVar("Vectors")


def check_dims(dims: Any, name: str = "matryoshka_dims") -> None:
  """Raises InputError unless `dims` is a sequence of different positive integers."""
  numbers = isinstance(dims, Sequence) and all(type(dim) is int and dim > 0 for dim in dims)
  if not numbers or len({*dims}) < len(dims):
    raise errors.InputError(
      f"{name} is {dims!r}; set it to different numbers, such as (64, 128) dimensions or (2, 4) "
      "layers, or to () to train the whole only"
    )


def mean_loss(
  loss: Callable[[Vectors], tuple[Float[Array, "..."], base.Metrics]],
  vectors: Vectors,
  dims: Sequence[int],
) -> tuple[Float[Array, "..."], base.Metrics]:
  """Returns the mean loss of the whole vectors and of their first `dims` dimensions.

  The other dimensions are set to zero, so that they change no dot product and no cosine.

  Args:
    loss: Maps vectors to a loss and metrics.
    vectors: An array or several, with the dimensions of the vectors last.
    dims: Numbers of first dimensions; if empty, only the whole vectors count.

  Returns:
    The mean, and metrics: the metrics of the whole vectors, and the loss and metrics of each number
    of dimensions, with a prefix such as `first_64/`.

  Raises:
    InputError: the vectors have no more dimensions than a number in `dims`.
  """
  total, metrics = loss(vectors)
  metrics = dict(metrics)
  for dim in dims:
    cut_loss, cut_metrics = loss(jax.tree.map(lambda x, dim=dim: _first(x, dim), vectors))
    total += cut_loss
    named_metrics = {"loss": base.average(cut_loss), **cut_metrics}
    metrics |= {f"first_{dim}/{name}": value for name, value in named_metrics.items()}
  return total / (1 + len(dims)), metrics


def _first(x: Float[Array, "... S"], dim: int) -> Float[Array, "... S"]:
  if dim >= x.shape[-1]:
    raise errors.InputError(
      f"matryoshka_dims has {dim}, but vectors have {x.shape[-1]} dimensions; give smaller numbers"
    )
  return jnp.where(jnp.arange(x.shape[-1]) < dim, x, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LayersModel(base.BitextModel):
  """Trains an encoder and the encoders of its first layers, with the loss of another model.

  The loss is the mean over the encoders. Each computes its layers anew, so a step with the first 2
  and 4 of 6 layers takes the time of 12 layers.

  Attributes:
    model: Computes the loss of an encoder.
    layers: Numbers of first layers.

  For the other options, see `base.BitextModel`.
  """

  model: base.BitextModel
  layers: Sequence[int]

  def __post_init__(self) -> None:
    super().__post_init__()
    check_dims(self.layers, "matryoshka_layers")

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The encoder with all layers."""
    return self.model.sentence_encoder

  @property
  def compares_pairs(self) -> bool:
    """Whether the loss compares pairs."""
    return self.model.compares_pairs

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss, and metrics.

    Metrics: `loss` is the mean. The others are the metrics of the model with all layers and, with a
    prefix such as `layers_4/`, with each number of first layers.

    Raises:
      InputError: the encoder has no more layers than a number in `layers`.
    """
    total, metrics = self.model.loss_fn(params, batch, dropout_rng)
    losses = [metrics["loss"]]
    for layers in self.layers:
      network, first = sentence_encoder.first_layers(self.model.network, params, layers)
      model = dataclasses.replace(self.model, network=network)
      loss, layer_metrics = model.loss_fn(first, batch, dropout_rng)
      total += loss
      losses.append(layer_metrics["loss"])
      metrics |= {f"layers_{layers}/{name}": value for name, value in layer_metrics.items()}
    metrics["loss"] = jax.tree.map(lambda *x: sum(x) / len(x), *losses)
    return total / len(losses), metrics
