"""Matryoshka losses, which make the first dimensions of a vector useful on their own.

During training, the loss is computed from the full vectors and also from vectors that are truncated
to their first dimensions. After training, you can truncate vectors in the same way to save memory
and search time (`encode(truncate_dim=64)`, `vmsst embed --dimensions 64`). To evaluate truncated
vectors, use `vmsst eval --dimensions 64`.

Similarly, `LayersModel` computes the loss from the output of the full encoder and also from the
outputs of shorter encoders, which consist of its first layers. After training, you can keep only
the first layers to make the encoder faster (`Encoder.truncate(4)`).

References: Kusupati et al. 2022, Matryoshka Representation Learning (here with equal weights for
all sizes); Li et al. 2024, 2D Matryoshka Sentence Embeddings.
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
  """Raises InputError unless `dims` is a sequence of distinct positive integers."""
  numbers = isinstance(dims, Sequence) and all(type(dim) is int and dim > 0 for dim in dims)
  if not numbers or len({*dims}) < len(dims):
    raise errors.InputError(
      f"{name} is {dims!r}; set it to distinct positive integers, such as (64, 128) for dimensions "
      "or (2, 4) for layers; or set it to (), to train only full vectors from all layers"
    )


def mean_loss(
  loss: Callable[[Vectors], tuple[Float[Array, "..."], base.Metrics]],
  vectors: Vectors,
  dims: Sequence[int],
) -> tuple[Float[Array, "..."], base.Metrics]:
  """Returns the mean loss over the full vectors and the vectors truncated to each size in `dims`.

  To truncate a vector, the function sets its last dimensions to zero, so that they do not affect
  dot products or cosines.

  Args:
    loss: Function that maps vectors to a loss and metrics.
    vectors: One or more arrays of vectors; the last axis is truncated.
    dims: Numbers of dimensions to keep; if empty, only the full vectors are used.

  Returns:
    The mean loss, and metrics. The metrics for the full vectors have no prefix. The loss and
    metrics for truncated vectors have a prefix with their size, such as `first_64/`.

  Raises:
    InputError: If a number in `dims` is not smaller than the width of the vectors.
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
      f"matryoshka_dims contains {dim}, but the vectors have {x.shape[-1]} dimensions; use sizes "
      f"below {x.shape[-1]}"
    )
  return jnp.where(jnp.arange(x.shape[-1]) < dim, x, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LayersModel(base.BitextModel):
  """Trains an encoder, and shorter encoders that use only its first layers, with the same loss.

  The loss is averaged over the encoders. The encoders share parameters but no computation, so a
  training step for a 6-layer encoder with `layers=(2, 4)` takes as long as a step for a 12-layer
  encoder (2 + 4 + 6 layers).

  Attributes:
    model: Model that computes the loss of each encoder.
    layers: Number of layers in each shorter encoder.

  For the inherited attributes, see `base.BitextModel`.
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
    """Whether the loss of `model` compares pairs."""
    return self.model.compares_pairs

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss averaged over the encoders, and metrics.

    Metrics: `loss` is this average. The other metrics for the full encoder have no prefix. The
    metrics for a shorter encoder have a prefix with its number of layers, such as `layers_4/`.

    Raises:
      InputError: If a number in `layers` is not smaller than the encoder's number of layers.
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

  def loss_of_vectors(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss and metrics of the encoder with all layers."""
    return self.model.loss_of_vectors(params, vector_BRS, batch)
