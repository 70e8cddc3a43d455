"""A model with several objectives; each batch uses one of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Float

from vmsst.data import tables
from vmsst.models import base
from vmsst.networks import sentence_encoder


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ObjectivesModel(base.BitextModel):
  """Trains one encoder with several losses.

  Each batch contains one feature named `objective/NAME`; the model `models[NAME]` computes the loss
  of this batch. A separate training step is compiled for each objective.

  Attributes:
    models: Models, keyed by objective name; all models must share the same encoder and vocabulary.

  For the inherited attributes, see `base.BitextModel`.
  """

  models: Mapping[str, base.BitextModel]

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The encoder that all models share."""
    return next(iter(self.models.values())).sentence_encoder

  @property
  def compares_pairs(self) -> bool:
    """Whether any of the losses compares pairs."""
    return any(model.compares_pairs for model in self.models.values())

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_types: Mapping[str, Any] | None = None,
  ) -> Mapping[str, Any]:
    """Returns initial variables for the shared encoder and for layers that only one model uses."""
    merged: dict[str, dict[str, Any]] = {}
    for model in self.models.values():
      for kind, tree in model.get_initial_variables(rng, input_shapes, input_types).items():
        merged[kind] = {**tree, **merged.get(kind, {})}
    return merged

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss and metrics of the batch's objective; `NAME/loss` repeats the loss."""
    name = self._objective(batch)
    loss, metrics = self.models[name].loss_fn(params, batch, dropout_rng)
    return loss, {**metrics, f"{name}/loss": metrics["loss"]}

  def loss_of_vectors(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss and metrics of the batch's objective."""
    return self.models[self._objective(batch)].loss_of_vectors(params, vector_BRS, batch)

  def _objective(self, batch: base.Batch) -> str:
    (feature_name,) = (feature for feature in batch if feature.startswith(tables.OBJECTIVE))
    return feature_name.removeprefix(tables.OBJECTIVE)
