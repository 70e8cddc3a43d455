"""Classifies frozen sentence vectors by topic or sentiment with a small network.

The network is trained on labeled texts in one language and tested on texts in another language. Its
architecture and training procedure are the same as in LASER's MLDoc experiments. The EMS paper uses
this method in Tables XI to XIV.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from vmsst import errors


@dataclasses.dataclass(frozen=True)
class MlpConfig:
  """Configuration of a tanh multilayer perceptron; the defaults are LASER's values for MLDoc.

  Attributes:
    hidden: Widths of the hidden layers.
    dropout_rate: Dropout rate for the input and every hidden layer.
    learning_rate: Learning rate for Adam.
    batch_size: Vectors per step. An incomplete last batch of an epoch is dropped.
    epochs: Number of epochs.
  """

  hidden: tuple[int, ...] = (10, 8)
  dropout_rate: float = 0.2
  learning_rate: float = 1e-3
  batch_size: int = 12
  epochs: int = 500


@dataclasses.dataclass(frozen=True)
class LabeledVectors:
  """Vectors [N, D] and their classes [N], 0 to C - 1."""

  vectors_ND: np.ndarray
  label_N: np.ndarray


@dataclasses.dataclass(frozen=True)
class Split:
  """Training data for a classifier, and development data for choosing the epoch."""

  train: LabeledVectors
  dev: LabeledVectors


def transfer_accuracies(
  splits: Mapping[str, Split],
  tests: Mapping[str, LabeledVectors],
  *,
  num_classes: int,
  seeds: Sequence[int] = (0, 1, 2, 3, 4),
  config: MlpConfig | None = None,
) -> dict[str, dict[str, np.ndarray]]:
  """Trains a classifier per split and seed; returns the accuracies on all test sets, 0 to 1.

  Usually, each split and each test set is in one language. Each classifier is tested with the
  parameters from the epoch with the highest accuracy on the split's development data; if several
  epochs have this accuracy, the last one is used. The classifiers for all seeds, and for all splits
  with the same number of vectors, are trained in parallel. Papers usually report the mean over five
  seeds.

  Args:
    splits: Training and development data by name.
    tests: Test data by name.
    num_classes: Number of classes C.
    seeds: Seeds for the initial parameters, the data order and dropout.
    config: Configuration of the classifier (default: LASER's).

  Returns:
    Accuracies by split and test set: `accuracies[split][test]` is an array with one value per seed.

  Raises:
    InputError: If a split has fewer vectors than one batch.
  """
  config = config or MlpConfig()
  by_shape: dict[Any, list[str]] = {}
  for name, split in splits.items():
    if len(split.train.label_N) < config.batch_size:
      raise errors.InputError(
        f"{name}: {len(split.train.label_N)} training vectors do not fill a batch of "
        f"{config.batch_size}"
      )
    shape = (split.train.vectors_ND.shape, split.dev.vectors_ND.shape)
    by_shape.setdefault(shape, []).append(name)
  accuracies = {}
  for names in by_shape.values():
    arrays = []
    for data in ([splits[x].train for x in names], [splits[x].dev for x in names]):
      arrays += [jnp.stack([x.vectors_ND for x in data]), jnp.stack([x.label_N for x in data])]
    params = _train_all(config, num_classes, jnp.asarray(seeds), *arrays)
    for row, name in enumerate(names):
      classifier = jax.tree.map(lambda leaf, row=row: leaf[row], params)
      accuracies[name] = {
        x: np.mean(np.asarray(_predictions(classifier, test.vectors_ND)) == test.label_N, axis=1)
        for x, test in tests.items()
      }
  return {name: accuracies[name] for name in splits}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _train_all(config: MlpConfig, num_classes: int, seed_S: jax.Array, *arrays: jax.Array) -> Any:
  """Runs `_train` for every split and seed; output leaves have shape [splits, seeds, ...]."""
  by_seed = jax.vmap(
    functools.partial(_train, config, num_classes), in_axes=(0, None, None, None, None)
  )
  return jax.vmap(by_seed, in_axes=(None, 0, 0, 0, 0))(seed_S, *arrays)


def _train(
  config: MlpConfig,
  num_classes: int,
  seed: Int[Array, ""],
  train_ND: Float[Array, "N D"],
  label_N: Int[Array, "N"],
  dev_MD: Float[Array, "M D"],
  dev_label_M: Int[Array, "M"],
) -> Any:
  """Trains one classifier; returns the parameters from the best epoch."""
  batch_size, widths = config.batch_size, (train_ND.shape[1], *config.hidden, num_classes)
  steps = len(train_ND) // batch_size
  # Each training step is so small that its time depends on the number of operations. Updating all
  # parameters as one flat array needs fewer operations than updating each array separately.
  optimizer = optax.flatten(optax.adam(config.learning_rate))
  init_rng, rng = jax.random.split(jax.random.key(seed))
  first = _init(init_rng, widths)

  def loss(
    params: Any, vectors_BD: Float[Array, "B D"], label_B: Int[Array, "B"], factors: Any
  ) -> Float[Array, ""]:
    logits_BC = _logits(params, vectors_BD, factors)
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits_BC, label_B).mean()

  def step(state: Any, batch: Any) -> tuple[Any, None]:
    params, optimizer_state = state
    updates, optimizer_state = optimizer.update(jax.grad(loss)(params, *batch), optimizer_state)
    return (optax.apply_updates(params, updates), optimizer_state), None

  def epoch(carry: Any, rng: jax.Array) -> tuple[Any, None]:
    state, best, best_accuracy = carry
    # Draw all random numbers in a single call, because each call takes seconds to compile.
    count = steps * batch_size
    draw = jax.random.uniform(rng, (len(train_ND) + count * sum(widths[:-1]),))
    row_SB = jnp.argsort(draw[: len(train_ND)])[:count].reshape(steps, batch_size)
    draw_SBW = draw[len(train_ND) :].reshape(steps, batch_size, -1)
    dropout_SBW = (draw_SBW >= config.dropout_rate) / (1 - config.dropout_rate)
    factors = tuple(jnp.split(dropout_SBW, list(itertools.accumulate(widths[:-2])), axis=2))
    state, _ = jax.lax.scan(step, state, (train_ND[row_SB], label_N[row_SB], factors))
    accuracy = jnp.mean(jnp.argmax(_logits(state[0], dev_MD), axis=1) == dev_label_M)
    better = accuracy >= best_accuracy
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), state[0], best)
    return (state, best, jnp.maximum(accuracy, best_accuracy)), None

  start = ((first, optimizer.init(first)), first, jnp.asarray(-1.0))
  (_, best, _), _ = jax.lax.scan(epoch, start, jax.random.split(rng, config.epochs))
  return best


def _init(rng: jax.Array, widths: Sequence[int]) -> list[tuple[jax.Array, jax.Array]]:
  """Initializes kernels and biases as torch.nn.Linear does.

  For a layer with n inputs, all values are drawn uniformly between -1 / sqrt(n) and 1 / sqrt(n).
  """
  shapes = list(itertools.pairwise(widths))
  draw = jax.random.uniform(rng, (sum((i + 1) * o for i, o in shapes),), minval=-1.0)
  layers = []
  for inputs, outputs in shapes:
    weights, draw = jnp.split(draw, [(inputs + 1) * outputs])
    weights = (weights / inputs**0.5).reshape(inputs + 1, outputs)
    layers.append((weights[:-1], weights[-1]))
  return layers


def _logits(
  params: Any, vectors_ND: Float[Array, "N D"], factors: Sequence[jax.Array] | None = None
) -> Float[Array, "N C"]:
  """Returns the logits; `factors` are dropout factors for the input of each layer."""
  hidden_NH = vectors_ND
  for number, (kernel_HI, bias_I) in enumerate(params):
    if factors is not None:
      hidden_NH = hidden_NH * factors[number]
    hidden_NH = hidden_NH @ kernel_HI + bias_I
    if number < len(params) - 1:
      hidden_NH = jnp.tanh(hidden_NH)
  return hidden_NH


@jax.jit
def _predictions(params: Any, vectors_ND: Float[Array, "N D"]) -> Int[Array, "S N"]:
  return jax.vmap(lambda classifier: jnp.argmax(_logits(classifier, vectors_ND), axis=1))(params)
