"""Table-driven conversion of weights between other libraries and this one.

A table has one `Rule` for each tensor of a format: its name there, its axes, and the parameter that
it becomes. `expand` makes the rows of a model of given sizes, `check` compares them with the
tensors in a file, and `to_parameters` converts. Exports use the same rows backward (`to_tensors`).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.formats import tensors

CHECKPOINT = "checkpoint_0"
TOKEN_TABLE = "token_embedder/embedding"
# Stands for a layer's number in the names of a rule.
_LAYER = "{i}"


@dataclasses.dataclass(frozen=True)
class Rule:
  """Says which parameter a tensor becomes.

  Attributes:
    source: The tensor's name in the other library; `{i}` stands for a layer's number.
    target: Name of the parameter, with `{i}` likewise; or several, which are equal parts of the
      tensor along its first axis.
    axes: Names of the sizes of the tensor's axes, in order.
    transposed: Whether the parameter is the tensor's transpose.
    plus: Number that the parameter has more than the tensor.
    layers: Name of the number of layers, for a rule that every layer has.
    first_layer: First layer with this tensor. In those before, the parameter is 1 and unused.
  """

  source: str
  target: str | tuple[str, ...]
  axes: tuple[str, ...]
  transposed: bool = False
  plus: float = 0.0
  layers: str | None = None
  first_layer: int = 0


Table = Sequence[Rule]


@dataclasses.dataclass(frozen=True)
class Row:
  """What a tensor becomes.

  Attributes:
    source: Its name in the other library; empty: there is no tensor, and the parameter is 1.
    shape: Its shape there.
    targets: Names of the parameters that it becomes.
    transposed: Whether they are its transpose.
    fused: Whether they are its parts along the first axis; otherwise, all are the whole.
    plus: Number that the parameters have more than the tensor.
  """

  source: str
  shape: tuple[int, ...]
  targets: tuple[str, ...]
  transposed: bool = False
  fused: bool = False
  plus: float = 0.0

  def parameters(self, array: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the parameters that the tensor becomes, by name."""
    parts = np.split(array, len(self.targets)) if self.fused else [array] * len(self.targets)
    made = {}
    for name, part in zip(self.targets, parts, strict=True):
      part = np.ascontiguousarray(part.T) if self.transposed else part
      made[name] = part + np.float32(self.plus) if self.plus else part
    return made

  def opened(self, stored: Mapping[str, tensors.StoredTensor]) -> dict[str, tensors.StoredTensor]:
    """Returns the parameters by name, to be read on request; none if the tensor is missing."""
    shape = self.shape
    if self.fused:
      shape = (shape[0] // len(self.targets), *shape[1:])
    shape = shape[::-1] if self.transposed else shape
    if not self.source:
      ones = tensors.StoredTensor(shape, "", lambda: np.ones(shape, np.float32))
      return dict.fromkeys(self.targets, ones)
    if self.source not in stored:
      return {}
    tensor = stored[self.source]
    if not (self.transposed or self.fused or self.plus):
      return dict.fromkeys(self.targets, tensor)
    check([self], {self.source: tensor}, tensor.where)

    def read(name: str) -> np.ndarray:
      return self.parameters(tensor.read())[name]

    return {name: tensor.computed(functools.partial(read, name), shape) for name in self.targets}

  def tensor(self, params: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the tensor that becomes these parameters."""
    parts = [params[name] for name in (self.targets if self.fused else self.targets[:1])]
    parts = [part - np.float32(self.plus) if self.plus else part for part in parts]
    parts = [np.ascontiguousarray(part.T if self.transposed else part) for part in parts]
    return np.concatenate(parts) if self.fused else parts[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
  """A model of another library, converted.

  Attributes:
    convert: Returns the parameters by name; see `params`.
    sizes: Sizes of the model by the attributes of its config.
    left_out: By the name of each tensor that became no parameter, the reason.
    assets: Returns what `vmsst.load` needs next to the parameters. None: the source has no
      vocabulary.
    notes: What to know before using the result, one sentence each.
  """

  convert: Callable[[], Mapping[str, np.ndarray]]
  sizes: Mapping[str, Any]
  left_out: Mapping[str, str]
  assets: Callable[[], Any] | None
  notes: tuple[str, ...] = ()

  @functools.cached_property
  def params(self) -> Mapping[str, np.ndarray]:
    """The parameters by name, converted when they are first needed."""
    return self.convert()


def dense(
  source: str,
  target: str,
  outputs: str = "emb_dim",
  inputs: str = "emb_dim",
  *,
  bias: bool = True,
) -> tuple[Rule, ...]:
  """Returns the rules of a dense layer of PyTorch, whose weight is [outputs, inputs]."""
  rules = (
    Rule(f"{source}.weight", f"{target}/kernel", (outputs, inputs), transposed=True),
    Rule(f"{source}.bias", f"{target}/bias", (outputs,)),
  )
  return rules if bias else rules[:1]


def norm(
  source: str, target: str, width: str = "emb_dim", *, bias: bool = True, plus: float = 0.0
) -> tuple[Rule, ...]:
  """Returns the rules of a normalization layer of PyTorch; `plus` is added to its weight."""
  rules = (
    Rule(f"{source}.weight", f"{target}/scale", (width,), plus=plus),
    Rule(f"{source}.bias", f"{target}/bias", (width,)),
  )
  return rules if bias else rules[:1]


def each_layer(layers: str, source: str, target: str, table: Table) -> tuple[Rule, ...]:
  """Returns the rules of all layers of a stack, from those of one layer.

  Args:
    layers: Name of the number of layers.
    source: Start of the tensors' names, with `{i}` in it.
    target: Start of the parameters' names, with `{i}` in it.
    table: Rules of one layer.
  """
  return tuple(
    dataclasses.replace(
      rule,
      source=source + rule.source,
      target=tuple(target + name for name in _targets(rule)),
      layers=layers,
    )
    for rule in table
  )


def _targets(rule: Rule) -> tuple[str, ...]:
  return rule.target if isinstance(rule.target, tuple) else (rule.target,)


def expand(table: Table, sizes: Mapping[str, Any]) -> list[Row]:
  """Returns the rows of a model of these sizes, layer by layer."""
  rows = []
  for layers, group in itertools.groupby(table, lambda rule: rule.layers):
    rules = tuple(group)
    for i in range(1 if layers is None else sizes[layers]):
      for rule in rules:
        targets = tuple(name.replace(_LAYER, str(i)) for name in _targets(rule))
        rows.append(
          Row(
            rule.source.replace(_LAYER, str(i)) if i >= rule.first_layer else "",
            tuple(sizes[axis] for axis in rule.axes),
            targets,
            rule.transposed,
            len(targets) > 1,
            rule.plus,
          )
        )
  return rows


def check(rows: Iterable[Row], stored: Mapping[str, tensors.StoredTensor], where: str) -> None:
  """Compares the tensors in a file with the rows of a model.

  Raises:
    InputError: a tensor is missing, has another shape or is not expected; the message names it.
  """
  expected = {row.source: row.shape for row in rows if row.source}
  for name, shape in expected.items():
    if name in stored and stored[name].shape != shape:
      raise errors.InputError(f"{stored[name].where} has shape {stored[name].shape}, not {shape}")
  problems = []
  if missing := expected.keys() - stored.keys():
    problems.append(f"lacks {tensors.some(missing)}")
  if unknown := stored.keys() - expected.keys():
    problems.append(f"holds {tensors.some(unknown)}, which this kind of model does not have")
  if problems:
    raise errors.InputError(
      f"{where} {' and '.join(problems)} ({len(expected)} tensors expected, {len(stored)} found)"
    )


def to_parameters(
  rows: Iterable[Row], stored: Mapping[str, tensors.StoredTensor]
) -> dict[str, np.ndarray]:
  """Returns the parameters that stored tensors become, by name, in float32.

  Raises:
    InputError: a tensor cannot be read, or has values that are not finite.
  """
  params: dict[str, np.ndarray] = {}
  for row in rows:
    array = stored[row.source].read() if row.source else np.ones(row.shape, np.float32)
    params |= row.parameters(array)
  return params


def to_tensors(rows: Iterable[Row], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the tensors that become these parameters, by their names in the other library."""
  return {row.source: row.tensor(params) for row in rows if row.source}
