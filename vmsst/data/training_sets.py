"""Training and evaluation sets: text pairs with hard negatives, scores, prompts and weights.

A set can be read from one file, several files, or Python rows such as a Hugging Face dataset.
Column names select the prompts: texts in a column `query` get the encoder's query prompt, and texts
in a column `passage` get its document prompt. Nothing here imports TensorFlow or seqio.
"""

import array
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.data import batches, formats, packing, readers, tables, vocabularies
from vmsst.data.vocabularies import Role
from vmsst.io import manifest, text_files

File = str | os.PathLike[str]
Data = (
  File | Sequence[File] | Sequence[readers.BitextFile] | Iterable[Sequence[str] | Mapping[str, Any]]
)

_FILE = str | os.PathLike


@dataclasses.dataclass(frozen=True)
class TrainingSet:
  """Text pairs for training or evaluation, with the settings for using them.

  Attributes:
    data: One or several files (TSV, JSONL, TMX or Moses; see docs/training.md), or Python rows.
      Each row is a sequence (source, target, and any hard negatives) or a dictionary, as in a
      Hugging Face dataset.
    roles: Roles of the two texts in a pair. "query" and "document" select the encoder's query and
      document prompts. None selects the prompt that `encode` uses. By default, the column names
      determine the roles.
    prompts: Prompts for the first and the second text in each pair, instead of the encoder's
      prompts.
    languages: Language codes of the two texts.
    negatives: Maximum number of hard negatives per pair (default: all).
    objective: Loss for this set (default: the run's loss).
    weight: Sampling weight, relative to the weights of the other sets (default: the number of
      pairs, raised to the power `sampling_power`).
  """

  data: Data
  roles: tuple[Role | None, Role | None] | None = None
  prompts: tuple[str, str] | None = None
  languages: tuple[str, str] = ("und", "und")
  negatives: int | None = None
  objective: str | None = None
  weight: float | None = None


@dataclasses.dataclass(frozen=True)
class OpenSet:
  """A training set after its data has been read.

  Attributes:
    name: Name to show in metrics and messages.
    settings: The training set as the caller specified it.
    table: The texts with their prompts, the language ids, and, if the data contains scores,
      `scores`, float32 [N, 1 + K].
    prompts: The prompts for the two texts in a pair.
    roles: The roles of the two texts in a pair.
    files: The files. Empty if the set was read from Python rows.
    line_N: Line number of each pair, starting at 0 and counted across all files.
  """

  name: str
  settings: TrainingSet
  table: tables.TextTable
  prompts: tuple[str, str]
  roles: tuple[Role | None, Role | None]
  files: Sequence[readers.BitextFile]
  line_N: np.ndarray

  @property
  def features(self) -> frozenset[str]:
    """Feature names in this set's batches."""
    return frozenset(self.table.rows(np.zeros(1, np.int64)))

  @functools.cached_property
  def digest(self) -> str:
    """Hash of the texts, the scores and the settings."""
    settings = self.settings
    used = (settings.languages, settings.negatives, settings.objective, settings.weight)
    return manifest.digest(self.table.digest, self.prompts, used)


def by_name(data: Any, default: str, **options: Any) -> dict[str, TrainingSet]:
  """Converts any accepted form of `data` to training sets, by name.

  Args:
    data: A set, a file or Python rows, or a list or dictionary of sets, files or rows. Each file in
      a list becomes a separate set, named after the part of the file name before the first dot.
    default: Name for a set without files.
    **options: `TrainingSet` fields for entries that are not a `TrainingSet` yet.

  Raises:
    InputError: If two sets have the same name.
  """
  if isinstance(data, Mapping):
    sets = [*data.items()]
  else:
    is_list = isinstance(data, list | tuple) and data and isinstance(data[0], _FILE | TrainingSet)
    entries = enumerate(data, 1) if is_list else [("", data)]
    sets = [(_name(entry, f"{default}{number}"), entry) for number, entry in entries]
  if len(dict(sets)) < len(sets):
    raise errors.InputError(
      f"set names must differ, but are {[name for name, _ in sets]}; pass a dictionary with a "
      "unique name for each set"
    )
  return {
    str(name): entry if isinstance(entry, TrainingSet) else TrainingSet(entry, **options)
    for name, entry in sets
  }


def _name(data: Any, default: str) -> str:
  paths = _paths(data.data if isinstance(data, TrainingSet) else data)
  return os.path.basename(paths[0]).partition(".")[0] if paths else default


def _paths(data: Any) -> list[str]:
  """Returns a set's files, or an empty list if the data consists of Python rows."""
  paths = [data] if isinstance(data, _FILE) else data
  if isinstance(paths, list | tuple) and paths and isinstance(paths[0], _FILE):
    return [storage.absolute(path) for path in paths]
  return []


def open_set(
  name: str, settings: TrainingSet, prompts: Mapping[Role | None, str] | None = None
) -> OpenSet:
  """Reads and checks a set. Pairs with a missing text are skipped.

  Args:
    name: Name to show in messages.
    settings: The set to read, with its settings.
    prompts: The encoder's prompts by role. The key None is for texts without a role.

  Raises:
    InputError: If a file or a row cannot be read, or the set contains no pairs.
  """
  data: Any = settings.data
  codes = settings.languages
  pair = (languages_lib.language(codes[0]), languages_lib.language(codes[1]))
  if isinstance(data, Sequence) and data and isinstance(data[0], readers.BitextFile):
    files = [*data]
  else:
    files = readers.find_bitext(paths, codes) if (paths := _paths(data)) else []
  if files:
    rows: Iterator[formats.Row] = itertools.chain.from_iterable(map(_rows, files))
  else:
    records = ((number, f"row {number} of {name}", row) for number, row in enumerate(data, 1))
    rows = formats.require(formats.record_rows(records, pair))
  first = next(rows, None)
  if first is None:
    raise errors.InputError(f"{name} has no pair of two texts; check that the data is not empty")
  names = first.names[:2] or ("", "")
  roles: Any = settings.roles or tuple(formats.ROLES.get(column.lower()) for column in names)
  by_role = prompts or {}
  pair_prompts = settings.prompts or (by_role.get(roles[0], ""), by_role.get(roles[1], ""))
  count = None if settings.negatives is None else 1 + settings.negatives
  scores: list[Sequence[float]] = []
  lines = array.array("q")
  total = 0

  def texts() -> Iterator[Sequence[str]]:
    nonlocal total
    for total, row in enumerate(itertools.chain([first], rows), 1):
      source, target, *negatives = row.texts
      if text_files.is_blank(source) or text_files.is_blank(target):
        continue
      lines.append(total - 1)
      scores.append(row.scores[:count] if row.names else ())
      yield [source, target, *negatives][: count and 1 + count]

  table = tables.TextTable(texts(), {}, pair_prompts)
  columns = table.columns
  table.dropped = total - len(table)
  if not len(table):
    raise errors.InputError(f"{name} has no pair of two texts; check that the data is not empty")
  for column, language in zip(tables.SIDES.values(), pair, strict=True):
    columns[column] = np.broadcast_to(np.int32(language.index), [len(table), 1])
  width_N = np.fromiter(map(len, scores), int, len(scores))
  if width_N.any():
    columns["scores"] = np.zeros((len(table), width_N.max()), np.float32)
    columns["scores"][np.arange(width_N.max()) < width_N[:, None]] = [*itertools.chain(*scores)]
    texts_N = table.count_N if width_N.max() > 1 else 2
    if (wrong_N := np.flatnonzero(width_N != texts_N - 1)).size:
      raise errors.InputError(
        f"{name}: pair {wrong_N[0] + 1} has {width_N[wrong_N[0]]} scores; give each pair a single "
        "score, or one score for the positive and one for each hard negative"
      )
  if settings.objective is not None:
    columns[tables.OBJECTIVE + settings.objective] = np.zeros((len(table), 0), np.float32)
  return OpenSet(name, settings, table, pair_prompts, roles, files, np.frombuffer(lines, np.int64))


def _rows(file: readers.BitextFile) -> Iterator[formats.Row]:
  """Yields a file's rows. Raises InputError if the file contains numbers with unknown meaning."""
  for number, row in enumerate(readers.read_rows(file, graded=True)):
    if not row.names and any(map(text_files.is_number, row.texts[2:])):
      raise errors.InputError(
        f"{file}:{row.number}: unexpected number after the pair; add a header, such as 'anchor TAB "
        "positive TAB score'"
      )
    if not row.names and row.scores and not number:
      logging.warning("%s: ignoring the scores in column 1; all pairs are used as positives", file)
    yield row


def add_file_vectors(opened: OpenSet, folder: str) -> None:
  """Adds the teacher vectors that `vmsst data embed` wrote for a set's files.

  Raises:
    InputError: If the vectors do not match the files.
  """
  arrays = [tables.open_vectors(folder, file) for file in opened.files]
  if not arrays or sum(map(len, arrays)) != len(opened.table) + opened.table.dropped:
    raise errors.InputError(
      f"{folder} does not match the lines in {opened.name}; recompute the vectors with `vmsst "
      "data embed`"
    )
  tables.check_vectors(folder, dict(zip(opened.files, map(len, arrays), strict=True)))
  add_vectors(opened, arrays, opened.line_N)


def add_vectors(
  opened: OpenSet, vectors: Sequence[np.ndarray], line_N: np.ndarray | None = None
) -> None:
  """Adds teacher vectors to a set, as the columns `teacher_inputs` and `teacher_targets`.

  Args:
    opened: The set.
    vectors: Arrays [lines, 2, S].
    line_N: The line number of each pair, counted across all arrays. By default, pair i corresponds
      to line i.
  """
  for index, name in enumerate(tables.TEACHER_SIDES):
    opened.table.columns[name] = tables.VectorColumn(vectors, index, line_N)


def get_batches(
  cfg: Any,
  shard_id: int = 0,
  num_shards: int = 1,
  converter: Any = None,
  *,
  sets: Sequence[OpenSet],
  vocabulary: vocabularies.Vocabulary,
  max_length: int,
  sampling_power: float = 1.0,
  mixed: bool = False,
  packed_slices: int = 0,
) -> batches.BatchIterator:
  """Returns endless batches for `get_dataset_fn`.

  Each batch contains texts of similar length, unless the texts are packed or graded.

  Every batch contains the features `inputs` and `targets`, int32 [B, T], and language ids.
  Depending on the data, batches also contain `negatives`, int32 [B, K, T], where missing negatives
  are all zeros; `scores`, float32 [B, 1 + K]; and teacher vectors.

  Args:
    cfg: A `DatasetConfig`. Only `batch_size` and `seed` are used.
    shard_id: Index of this process's shard of the rows.
    num_shards: Number of shards.
    converter: Not used.
    sets: The sets.
    vocabulary: Tokenizes the texts. It must not add a prompt.
    max_length: Maximum number of tokens per text. Longer texts are truncated.
    sampling_power: A set without a weight is sampled in proportion to its size raised to this
      power.
    mixed: Whether each batch mixes rows from all sets. If false, all rows in a batch come from one
      set. The sampling rates of the sets are the same either way.
    packed_slices: If not 0, batches are random and have the feature `packing`, for this number of
      gradient-caching slices (see `vmsst.data.packing.pack`). Requires a transformer, a single
      device, and training without microbatches.

  Raises:
    InputError: If a weight is not positive, or `mixed` is set and the sets have different columns.
  """
  del converter
  tokenizer = batches.Tokenizer(vocabulary, max_length=None, keep_all=False)
  texts = [batches.Texts(x.name, x.table, tokenizer) for x in sets]
  rates = [
    len(x.table) ** sampling_power if x.settings.weight is None else x.settings.weight for x in sets
  ]
  for rate in rates:
    errors.check_number("weight", rate, "(0, inf)")
  lengths: list[dict[str, Any]] = [
    {
      name: max_length
      if name in tables.SIDES
      else (len(column[0]), max_length)
      if name == "negatives"
      else column.shape[1]
      for name, column in x.table.rows(np.zeros(1, np.int64)).items()
    }
    for x in sets
  ]
  for source, source_lengths in zip(texts, lengths, strict=True):
    batches.check_texts([source], source_lengths)
  if mixed and any(x != lengths[0] for x in lengths):
    raise errors.InputError(
      f"the sets {[x.name for x in sets]} differ in their columns or numbers of hard negatives; "
      "set mixed=False"
    )
  groups = [(texts, rates)] if mixed else [([source], [1.0]) for source in texts]
  # Several threads read a single set. If there are several sets, one thread reads each set.
  reading = batches.READING if len(groups) == 1 else batches.READING_ONE_OF_MANY
  shard = (shard_id, num_shards)
  options: Any = {"shuffle": True, "shard": shard, "reading": reading}
  rows = [
    batches.read_rows(*group, lengths[number], seed=cfg.seed + number, **options)
    for number, group in enumerate(groups)
  ]
  spec = texts[0].spec(lengths[0])
  size = cfg.batch_size // num_shards
  pack = functools.partial(packing.pack, slices=packed_slices)
  grouping: Any = {"boundaries": None, "transform": pack} if packed_slices else {}
  return batches.batched(rows, rates, spec, size, shard, seed=cfg.seed, **grouping)
