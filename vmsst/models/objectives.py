"""A model with several objectives, one for each batch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from vmsst.data import tables
from vmsst.models import base
from vmsst.networks import sentence_encoder


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ObjectivesModel(base.BitextModel):
  """Trains one encoder with several losses.

  The feature `objective/NAME` of a batch chooses the model that computes its loss. A step is
  compiled for each objective.

  Attributes:
    models: Models by the names of their objectives, with the same encoder and vocabulary.

  For the other options, see `base.BitextModel`.
  """

  models: Mapping[str, base.BitextModel]

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The encoder of the models."""
    return next(iter(self.models.values())).sentence_encoder

  @property
  def compares_pairs(self) -> bool:
    """Whether one of the losses compares pairs."""
    return any(model.compares_pairs for model in self.models.values())

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_types: Mapping[str, Any] | None = None,
  ) -> Mapping[str, Any]:
    """Returns the initial variables of all models: the encoder, and layers of single objectives."""
    merged: dict[str, dict[str, Any]] = {}
    for model in self.models.values():
      for kind, tree in model.get_initial_variables(rng, input_shapes, input_types).items():
        merged[kind] = {**tree, **merged.get(kind, {})}
    return merged

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss and the metrics of the batch's objective, and `NAME/loss`, its loss."""
    (feature_name,) = (feature for feature in batch if feature.startswith(tables.OBJECTIVE))
    name = feature_name.removeprefix(tables.OBJECTIVE)
    loss, metrics = self.models[name].loss_fn(params, batch, dropout_rng)
    return loss, {**metrics, f"{name}/loss": metrics["loss"]}
