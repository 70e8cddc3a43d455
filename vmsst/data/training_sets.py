"""Sets of texts to train on or to evaluate with: pairs, hard negatives, scores, prompts, weights.

A set is a file, several files, or rows in Python such as a Hugging Face dataset. The names of its
columns choose the prompts: a query gets the encoder's prompt of queries, a passage the prompt of
documents. Nothing here imports TensorFlow or seqio.
"""

import array
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import grain
import jax
import numpy as np
from absl import logging

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.data import batches, formats, readers, tables, vocabularies
from vmsst.data.vocabularies import Role
from vmsst.io import input_files, manifest, text_files

File = str | os.PathLike[str]
Data = File | Sequence[File] | Iterable[Sequence[str] | Mapping[str, Any]]

_FILE = str | os.PathLike
_ROLES: Mapping[str, Role] = {
  "query": "query",
  "question": "query",
  "document": "document",
  "passage": "document",
  "answer": "document",
  "pos": "document",  # the positives of a query in FlagEmbedding's files
}
_SCORES = ("score", "label", "scores", "labels", "similarity_score", "teacher_scores")
# A TSV file has a header if all columns of its first line have such names.
_COLUMN = re.compile(
  rf"anchor|positive|negative(_\d+)?|sentence_?[12ab]|{'|'.join([*_ROLES, *_SCORES])}|id", re.I
)


@dataclasses.dataclass(frozen=True)
class TrainingSet:
  """Pairs of texts to train on or to evaluate with, and how to use them.

  Attributes:
    data: One or several files (TSV, JSONL, TMX, Moses; see docs/training.md), or rows: pairs of
      texts with any hard negatives after them, or dictionaries, such as a Hugging Face dataset.
    roles: What the two texts of a pair are: "query" and "document" get the encoder's prompts for
      them, None the prompt of `encode` (default: by the names of the columns).
    prompts: Texts before the first and the second text of a pair, instead of the encoder's.
    languages: Codes of the languages of the two texts.
    negatives: Most hard negatives of a pair (default: all).
    objective: Loss of this set (default: the loss of the run).
    weight: Share of the batches, relative to the weights of other sets (default: the number of
      pairs).
  """

  data: Data
  roles: tuple[Role | None, Role | None] | None = None
  prompts: tuple[str, str] | None = None
  languages: tuple[str, str] = ("und", "und")
  negatives: int | None = None
  objective: str | None = None
  weight: float | None = None


class Example(NamedTuple):
  """A row of a training set.

  Attributes:
    texts: The two texts of a pair, then its hard negatives.
    scores: The score of the pair, or a teacher's score of each text after the first; or nothing.
  """

  texts: Sequence[str]
  scores: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class OpenSet:
  """A training set that was read.

  Attributes:
    name: Name for metrics and messages.
    settings: How it is used.
    table: The texts, with their prompts; language ids; and `scores`, float32 [N, 1 + K], if any.
    prompts: The prompts of the two texts of a pair.
    roles: The roles of the two texts.
    files: The files, if it was read from files.
    line_N: Number of each pair in the files, from 0.
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
    """Names of the features of its batches."""
    return frozenset(self.table.rows(np.zeros(1, np.int64)))

  @functools.cached_property
  def digest(self) -> str:
    """Hash of the texts and scores, and of the settings."""
    settings = self.settings
    used = (settings.languages, settings.negatives, settings.objective, settings.weight)
    return manifest.digest(self.table.digest, self.prompts, used)


def by_name(data: Any, default: str, **options: Any) -> dict[str, TrainingSet]:
  """Returns training sets by name.

  Args:
    data: A set or its data, or a list or a dictionary of sets, files or rows. Each file of a list
      is a set, with the name of the file up to the first dot.
    default: Name of a set of rows.
    **options: Fields of the sets that are not `TrainingSet`s.

  Raises:
    InputError: two sets have one name.
  """
  if isinstance(data, Mapping):
    named = [*data.items()]
  else:
    is_list = isinstance(data, list | tuple) and data and isinstance(data[0], _FILE | TrainingSet)
    parts = enumerate(data, 1) if is_list else [("", data)]
    named = [(_name(part, f"{default}{number}"), part) for number, part in parts]
  if len(dict(named)) < len(named):
    raise errors.InputError(
      f"the sets have the names {[name for name, _ in named]}; give a dictionary with other names"
    )
  return {
    str(name): part if isinstance(part, TrainingSet) else TrainingSet(part, **options)
    for name, part in named
  }


def _name(data: Any, default: str) -> str:
  paths = _paths(data.data if isinstance(data, TrainingSet) else data)
  return os.path.basename(paths[0]).partition(".")[0] if paths else default


def _paths(data: Any) -> list[str]:
  """Returns the files of a set; nothing if the data are rows."""
  paths = [data] if isinstance(data, _FILE) else data
  if isinstance(paths, list | tuple) and paths and isinstance(paths[0], _FILE):
    return [storage.absolute(path) for path in paths]
  return []


def open_set(
  name: str, settings: TrainingSet, prompts: Mapping[Role | None, str] | None = None
) -> OpenSet:
  """Reads and checks a set; leaves out pairs without one of the texts.

  Args:
    name: Name for messages.
    settings: The set.
    prompts: The encoder's prompts by role; None is the role of texts without one.

  Raises:
    InputError: a file or a row cannot be read, or there is no pair.
  """
  paths = _paths(settings.data)
  files = readers.find_bitext(paths, settings.languages) if paths else []
  if files:
    parts = [_of_file(file, settings) for file in files]
    named = parts[0][0]
    examples: Iterator[Example] = itertools.chain.from_iterable(part for _, part in parts)
  else:
    records = ((f"row {n} of {name}", row) for n, row in enumerate(cast(Any, settings.data), 1))
    named, examples = _of_records(records, settings)
  roles = settings.roles or (_ROLES.get(named[0].lower()), _ROLES.get(named[1].lower()))
  by_role = prompts or {}
  before = settings.prompts or (by_role.get(roles[0], ""), by_role.get(roles[1], ""))
  scores: list[Sequence[float]] = []
  lines = array.array("q")
  total = 0

  def texts() -> Iterator[Sequence[str]]:
    nonlocal total
    count = settings.negatives
    for total, example in enumerate(examples, 1):
      if text_files.is_blank(example.texts[0]) or text_files.is_blank(example.texts[1]):
        continue
      lines.append(total - 1)
      scores.append(example.scores if count is None else example.scores[: 1 + count])
      yield example.texts if count is None else example.texts[: 2 + count]

  languages = map(languages_lib.language, settings.languages)
  table = tables.TextTable(texts(), {}, before)
  columns = table.columns
  table.dropped = total - len(table)
  if not len(table):
    raise errors.InputError(f"{name} has no pair of two texts; check that it is not empty")
  for column, language in zip(tables.SIDES.values(), languages, strict=True):
    columns[column] = np.broadcast_to(np.int32(language.index), [len(table), 1])
  width_N = np.fromiter(map(len, scores), int, len(scores))
  if width_N.any():
    columns["scores"] = np.zeros((len(table), width_N.max()), np.float32)
    columns["scores"][np.arange(width_N.max()) < width_N[:, None]] = [*itertools.chain(*scores)]
    texts_N = table.count_N if width_N.max() > 1 else 2
    if (wrong_N := np.flatnonzero(width_N != texts_N - 1)).size:
      raise errors.InputError(
        f"{name}: pair {wrong_N[0] + 1} has {width_N[wrong_N[0]]} scores; give each pair one, or "
        "one for the positive and for each of its hard negatives"
      )
  if settings.objective is not None:
    columns[tables.OBJECTIVE + settings.objective] = np.zeros((len(table), 0), np.float32)
  return OpenSet(name, settings, table, before, roles, files, np.frombuffer(lines, np.int64))


def _of_file(
  file: readers.BitextFile, settings: TrainingSet
) -> tuple[Sequence[str], Iterator[Example]]:
  """Returns the names of the first two columns of a file, and its examples."""
  path = file.paths[0]
  if file.format == "jsonl":
    return _of_records(formats.require(formats.json_lines(path)), settings)
  header = next(text_files.read_lines(path), "").split("\t") if file.format == "tsv" else []
  if len(header) > 1 and all(map(_COLUMN.fullmatch, header)):
    return _of_records(_table_records(path, header), settings)
  first = next(readers.read_rows(file))
  if first.grade is not None and not first.further:
    logging.warning("%s: numbers in column 1 do not count; all pairs are positive", file)
  return ("", ""), _of_columns(file, readers.read_rows(file, first.further))


def _table_records(path: str, header: Sequence[str]) -> Iterator[tuple[str, Any]]:
  for number, line in enumerate(itertools.islice(text_files.read_lines(path), 1, None), 2):
    columns = line.split("\t")
    if len(columns) != len(header):
      raise errors.InputError(
        f"{path}:{number}: {len(columns)} columns, not the {len(header)} of the header; add or "
        "remove a TAB"
      )
    yield f"{path}:{number}", dict(zip(header, columns, strict=True))


def _of_columns(file: readers.BitextFile, rows: Iterator[formats.Row]) -> Iterator[Example]:
  """Yields the examples of a file without column names; scores before the pairs do not count."""
  for row in rows:
    if any(map(text_files.is_number, row.texts[2:])):
      raise errors.InputError(
        f"{file}:{row.number}: a number after the pair; write a header, such as "
        "'anchor TAB positive TAB score'"
      )
    yield Example([*row.texts[:2], *filter(None, row.texts[2:])])


def _of_records(
  records: Iterator[tuple[str, Any]], settings: TrainingSet
) -> tuple[Sequence[str], Iterator[Example]]:
  """Returns the names of the first columns of records, and their examples.

  Args:
    records: The place of each record, for messages, and a dictionary or a sequence of texts.
    settings: The set; its languages name the columns, if they are known.
  """
  place, first = next(records, ("", None))
  if first is None:
    return ("", ""), iter(())
  records = itertools.chain([(place, first)], records)
  if not isinstance(first, Mapping):
    return ("", ""), (Example(_texts(place, record)) for place, record in records)
  first = _flat(first)
  names = [
    name for name, x in first.items() if _is_texts(x) and name not in (*_SCORES, *formats.IDS)
  ]
  if "pos" in first:  # FlagEmbedding's; the list of negatives may be empty
    names = ["query", "pos", "neg"]
  if settings.languages != ("und", "und"):
    codes = {formats.language_or_none(name): name for name in names}
    names = [codes.get(languages_lib.language(code), code) for code in settings.languages]
  if len(names) < 2:
    raise errors.InputError(f"{place}: the text fields are {names}; a pair has two")
  return names, itertools.chain.from_iterable(
    _of_record(place, record, names) for place, record in records
  )


def _flat(record: Any) -> Any:
  """Returns a record without the level of Hugging Face's translation datasets."""
  inner = record.get("translation") if isinstance(record, Mapping) else None
  return {**record, **inner} if isinstance(inner, Mapping) else record


def _is_texts(value: Any) -> bool:
  return isinstance(value, str) or (isinstance(value, list) and isinstance([*value, 0][0], str))


def _of_record(place: str, record: Any, names: Sequence[str]) -> Iterator[Example]:
  """Yields an example for each positive of a record."""
  if not isinstance(record, Mapping):
    raise errors.InputError(f"{place}: not a JSON object; write one object per line")
  record = _flat(record)
  anchor, positives, *negatives = (record.get(name) or "" for name in names)
  _texts(place, [anchor])
  positives = _texts(place, [positives] if isinstance(positives, str) else positives)
  of_columns = ([x] if isinstance(x, str) else x for x in negatives)
  rivals = _texts(place, [text for texts in of_columns for text in texts if text])
  if unnamed := formats.grades_of(record).keys() - {*_SCORES}:
    raise errors.InputError(
      f"{place}: {sorted(unnamed)} may grade the pair; name scores 'score', remove other numbers"
    )
  scores = next((record[name] for name in _SCORES if record.get(name) is not None), ())
  scores = [*scores] if isinstance(scores, Sequence) and not isinstance(scores, str) else [scores]
  of_positives, of_negatives = record.get("pos_scores") or (), record.get("neg_scores") or ()
  try:
    for number, positive in enumerate(positives):
      if len(of_positives) > number:
        scores = [of_positives[number], *of_negatives]
      yield Example([anchor, positive, *rivals], [float(score) for score in scores])
  except (TypeError, ValueError):
    raise errors.InputError(f"{place}: {input_files.shown(scores)} are not numbers") from None


def _texts(place: str, texts: Any) -> Sequence[str]:
  """Returns texts; raises InputError if one of them is not a text, or they are not a sequence."""
  if not isinstance(texts, list | tuple) or not all(map(input_files.is_text, texts)):
    raise errors.InputError(f"{place}: {input_files.shown(texts)}; give texts in UTF-8")
  return texts


def add_vectors(
  opened: OpenSet, vectors: Sequence[np.ndarray], line_N: np.ndarray | None = None
) -> None:
  """Adds a teacher's vectors to a set, as the columns `teacher_inputs` and `teacher_targets`.

  Args:
    opened: The set.
    vectors: Arrays [lines, 2, S].
    line_N: The line of each pair, counted through all arrays (default: each pair has a line).
  """
  for side, name in enumerate(tables.TEACHER_SIDES):
    opened.table.columns[name] = tables.VectorColumn(vectors, side, line_N)


def training_batches(
  sets: Sequence[OpenSet],
  vocabulary: vocabularies.Vocabulary,
  *,
  batch_size: int,
  max_length: int,
  seed: int = 0,
  shard: tuple[int, int] = (0, 1),
  power: float = 1.0,
  mixed: bool = False,
) -> batches.BatchIterator:
  """Returns endless batches of texts of similar length, each of one set.

  The features of a batch are `inputs` and `targets`, int32 [B, T]; language ids; and, if the set
  has them, `negatives`, int32 [B, K, T], with zeros for missing ones; `scores`, float32 [B, 1 + K];
  and a teacher's vectors.

  Args:
    sets: The sets.
    vocabulary: Tokenizes the texts; it adds no prompt.
    batch_size: Pairs of a batch.
    max_length: Tokens of a text; longer ones are cut.
    seed: Seed of the order.
    shard: Number of this process's share of the rows, and number of shares.
    power: Sets without a weight are sampled in proportion to this power of their size.
    mixed: Whether a batch has rows of all sets, sampled at the same rates.

  Raises:
    InputError: a weight is not positive, or sets cannot be mixed, because they have other columns.
  """
  tokenizer = batches.Tokenizer(vocabulary, max_length=None, keep_all=False)
  texts = [batches.Texts(x.name, x.table, tokenizer) for x in sets]
  rates = [len(x.table) ** power if x.settings.weight is None else x.settings.weight for x in sets]
  for rate in rates:
    errors.check_number("weight", rate, "(0, inf)")
  lengths = [_feature_lengths(x.table, max_length) for x in sets]
  for part, part_lengths in zip(texts, lengths, strict=True):
    batches.check_texts([part], part_lengths)
  if mixed and any(each != lengths[0] for each in lengths):
    raise errors.InputError(
      f"the sets {[x.name for x in sets]} have other columns or numbers of hard negatives; set "
      "mixed=False"
    )
  size = batch_size // shard[1]
  groups = [(texts, rates)] if mixed else [([part], [1.0]) for part in texts]
  # Several sets have one thread each.
  reading = batches.READING if len(groups) == 1 else grain.ReadOptions(1, 2)
  streams = [
    batches.length_batches(
      batches.read_rows(
        group,
        shares,
        lengths[number],
        shuffle=True,
        seed=seed + number,
        shard=shard,
        reading=reading,
      ),
      size,
      lengths[number],
      seed=seed % 2**63,
    )
    for number, (group, shares) in enumerate(groups)
  ]
  dataset = streams[0] if len(streams) == 1 else grain.IterDataset.mix(streams, rates)
  spec = texts[0].spec(lengths[0])
  columns = {
    name: jax.ShapeDtypeStruct((size, *spec[name].shape), spec[name].dtype) for name in lengths[0]
  }
  return batches.BatchIterator(dataset, columns, shard)


def _feature_lengths(table: tables.TextTable, max_length: int) -> dict[str, Any]:
  """Returns the length of each column of a batch, as SeqIO has them."""
  lengths: dict[str, Any] = {}
  for name, column in table.rows(np.zeros(1, np.int64)).items():
    if name in tables.SIDES:
      lengths[name] = max_length
    else:
      lengths[name] = (len(column[0]), max_length) if name == "negatives" else column.shape[1]
  return lengths
