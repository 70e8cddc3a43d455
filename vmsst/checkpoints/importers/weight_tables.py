"""Table-driven conversion of weights between other libraries and this one.

A table has one `Rule` for each tensor of a format: its name there, its axes, and the parameter that
it becomes. `infer_sizes` reads sizes off the tensors' shapes. `expand` makes the rows of a
model of given sizes, `check` compares them with the tensors in a file, and `to_parameters`
converts. Exports use the same rows backward (`to_tensors`).
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.checkpoints import tensors
from vmsst.files import checksums, storage

CHECKPOINT = "checkpoint_0"
TOKEN_TABLE = "token_embedder/embedding"
# Stands for a layer's number in the names of a rule.
_LAYER = "{i}"


@dataclasses.dataclass(frozen=True)
class Rule:
  """Says which parameter a tensor becomes.

  Attributes:
    source: The tensor's name in the other library; `{i}` stands for a layer's number.
    target: Name of the parameter, with `{i}` likewise.
    axes: Names of the sizes of the tensor's axes, in order.
    transposed: Whether the parameter is the tensor's transpose.
    layers: Name of the number of layers, for a rule that every layer has.
  """

  source: str
  target: str
  axes: tuple[str, ...]
  transposed: bool = False
  layers: str | None = None


Table = Sequence[Rule]


@dataclasses.dataclass(frozen=True)
class Row:
  """What a tensor becomes.

  Attributes:
    source: Its name in the other library.
    shape: Its shape there.
    targets: Names of the parameters that it becomes.
    transposed: Whether they are its transpose.
    note: Why it becomes no parameter, if so.
  """

  source: str
  shape: tuple[int, ...]
  targets: tuple[str, ...] = ()
  transposed: bool = False
  note: str = ""

  @property
  def size(self) -> int:
    """The number of values in the tensor."""
    return int(np.prod(self.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
  """The result of an import.

  Attributes:
    checkpoint: The new checkpoint.
    sizes: Sizes of the model by the attributes of its config.
    rows: What each tensor of the source became.
    vocabulary: The vocabulary next to the checkpoint, or None.
    notes: What to know before using the result, one sentence each.
  """

  checkpoint: storage.Path
  sizes: Mapping[str, Any]
  rows: tuple[Row, ...]
  vocabulary: storage.Path | None
  notes: tuple[str, ...] = ()


def describe(imported: Imported) -> str:
  """Returns a table of all tensors with totals and sizes, and how to use the result."""
  used = [row for row in imported.rows if row.targets]
  unused = [row for row in imported.rows if not row.targets]
  parameters = sum(len(row.targets) for row in used)
  values = sum(row.size * len(row.targets) for row in used)
  width = max(len(row.source) for row in imported.rows)
  lines = [
    f"{row.source:{width}}  {'x'.join(map(str, row.shape)):>12}  "
    + (" and ".join(row.targets) if row.targets else f"left out: {row.note}")
    for row in imported.rows
  ]
  lines += [
    f"{len(used)} tensors ({sum(row.size for row in used):,} numbers) became {parameters} "
    f"parameters ({values:,} numbers)",
    f"{len(unused)} tensors ({sum(row.size for row in unused):,} numbers) were left out",
    "Sizes: " + ", ".join(f"{key}={value!r}" for key, value in imported.sizes.items()),
    *imported.notes,
  ]
  if imported.vocabulary is not None:
    lines.append(f"VOCABULARY_PATH = {str(imported.vocabulary)!r}")
  return "\n".join([*lines, f"INITIAL_CHECKPOINT_PATH = {str(imported.checkpoint)!r}"])


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
  source: str, target: str, width: str = "emb_dim", *, bias: bool = True
) -> tuple[Rule, ...]:
  """Returns the rules of a normalization layer of PyTorch."""
  rules = (
    Rule(f"{source}.weight", f"{target}/scale", (width,)),
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
      rule, source=source + rule.source, target=target + rule.target, layers=layers
    )
    for rule in table
  )


def by_parameter(table: Table) -> tuple[Rule, ...]:
  """Returns the rules of files that have the parameters' names and layouts already."""
  return tuple(
    dataclasses.replace(
      rule,
      source=rule.target,
      axes=rule.axes[::-1] if rule.transposed else rule.axes,
      transposed=False,
    )
    for rule in table
  )


def infer_sizes(
  table: Table, stored: Mapping[str, tensors.StoredTensor], where: str, *, otherwise: str
) -> dict[str, int]:
  """Returns the sizes of all axes and the numbers of layers, as a file's tensors show them.

  Each size is read off the first tensor that has it; `check` finds out whether the others agree.

  Args:
    table: Rules of the format.
    stored: The file's tensors by name.
    where: The file, for messages.
    otherwise: What to tell the user if a tensor is missing.

  Raises:
    InputError: a tensor that shows a size is missing or has another number of axes.
  """
  sizes: dict[str, int] = {}
  for rule in table:
    if sizes.keys() >= set(rule.axes):
      continue
    name = rule.source.replace(_LAYER, "0")
    if name not in stored:
      raise errors.InputError(f"{where} lacks {name}: {otherwise}")
    shape = stored[name].shape
    if len(shape) != len(rule.axes) or 0 in shape:
      raise errors.InputError(
        f"{name} in {where} has shape {shape}; it must have {len(rule.axes)} axes, none of size 0"
      )
    sizes = dict(zip(rule.axes, shape, strict=True)) | sizes
  for rule in table:
    if rule.layers is not None and rule.layers not in sizes:
      number = re.compile(re.escape(rule.source.partition(_LAYER)[0]) + r"(\d+)")
      sizes[rule.layers] = len({found[1] for found in map(number.match, stored) if found})
  return sizes


def expand(table: Table, sizes: Mapping[str, Any]) -> list[Row]:
  """Returns the rows of a model of these sizes, layer by layer."""
  rows = []
  for layers, group in itertools.groupby(table, lambda rule: rule.layers):
    rules = tuple(group)
    for i in range(1 if layers is None else sizes[layers]):
      for rule in rules:
        rows.append(
          Row(
            rule.source.replace(_LAYER, str(i)),
            tuple(sizes[axis] for axis in rule.axes),
            (rule.target.replace(_LAYER, str(i)),),
            rule.transposed,
          )
        )
  return rows


def check(rows: Iterable[Row], stored: Mapping[str, tensors.StoredTensor], where: str) -> None:
  """Compares the tensors in a file with the rows of a model.

  Raises:
    InputError: a tensor is missing, has another shape or is not expected; the message names it.
  """
  expected = {row.source: row.shape for row in rows}
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
    if row.targets:
      array = stored[row.source].read()
      array = np.ascontiguousarray(array.T) if row.transposed else array
      params |= dict.fromkeys(row.targets, array)
  return params


def to_tensors(rows: Iterable[Row], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the tensors that become these parameters, by their names in the other library."""
  found = {}
  for row in rows:
    array = params[row.targets[0]]
    found[row.source] = np.ascontiguousarray(array.T if row.transposed else array)
  return found


def write_checkpoint(folder: pathlib.Path, params: Mapping[str, np.ndarray]) -> None:
  """Writes parameters as the checkpoint of a folder, with checksums.

  Raises:
    OSError: the checkpoint cannot be written.
  """
  from vmsst.checkpoints import t5x  # imports Orbax

  checkpoint = t5x.epath.Path(folder / CHECKPOINT)
  t5x.write_params(checkpoint, params)
  checksums.write(checkpoint, {"state": checkpoint / "state"})
