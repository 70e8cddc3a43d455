"""Registers your own bitext, or the sample corpus, as a seqio mixture; to be called from gin.

A gin file trains on your own files with

    MIXTURE_OR_TASK_NAME = @bitext.files()
    bitext.files.patterns = ["/data/corpus/*.tsv.gz", "/data/moses/Europarl.de-en.de"]
    bitext.files.vocabulary = %VOCABULARY
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from vmsst import errors, languages
from vmsst.bitext import readers
from vmsst.files import storage
from vmsst.languages import Language
from vmsst.tasks import features, seqio_vocabulary, sources, text_task
from vmsst.text import vocabularies, word_splitting
from vmsst.vectors import teacher_vectors

WEIGHTINGS = ("proportional", "uniform", "temperature")
# The arguments of all names from `unique_name`, by kind of name. This is global because the
# registries of seqio are: gin may call a function such as `files` several times, and the same
# arguments must name the same mixture, which is registered already.
_NAMES: dict[str, list[str]] = {}


def files(
  patterns: str | Sequence[str],
  vocabulary: vocabularies.Vocabulary,
  *,
  root: str = "",
  languages: tuple[str, str] | None = None,
  validation_patterns: str | Sequence[str] = (),
  weighting: str = "proportional",
  temperature: float | None = None,
  max_length: int | None = 512,
  fields: tuple[str, str] | None = None,
  negatives: int = 0,
  teacher: str | None = None,
  memory_limit: int = sources.MEMORY_LIMIT,
) -> str:
  """Returns the name of a mixture of bitext files, with one task per language pair.

  The same arguments give the same mixture. Files are opened when data is first read. Splits are
  `train` and, with `validation_patterns`, `validation`.

  Args:
    patterns: Files or shell patterns: Moses pairs, TSV, TMX, JSONL, each plain or `.gz`.
    vocabulary: Tokenizes both sides.
    root: Folder for relative patterns; "": the current one.
    languages: Codes of the source and the target side of every file; None reads them from each
      file name (`deu-eng.tsv.gz`, `Europarl.de-en.de`).
    validation_patterns: Files of the validation split.
    weighting: How often each language pair is sampled: "proportional" to its number of pairs n,
      "uniform", or "temperature": n ** (1 / temperature).
    temperature: 1 is proportional, infinity uniform.
    max_length: Pairs with a side of more tokens are dropped; None: no limit. Shorter sides are cut
      to TASK_FEATURE_LENGTHS, as in any task.
    fields: Names of the two fields of JSONL files, if not language codes.
    negatives: Number K of hard negatives of each pair, in TSV files of `vmsst data mine-negatives`:
      the feature `negatives`, int32 [K, T], in which a missing text is all 0.
    teacher: Folder with the vectors of all files, from `vmsst data embed`: the features
      `teacher_inputs` and `teacher_targets`, float32 [S].
    memory_limit: Language pairs with more bytes of text than this are streamed.

  Raises:
    InputError: a pattern matches nothing, or a file name does not show format or languages; vectors
      of a file are missing, or have several dimensions.
  """
  power = weight_power(weighting, temperature)
  if negatives < 0:
    raise errors.InputError(f"negatives is {negatives}; set it to at least 0")
  found = {"train": readers.find_bitext(_below(root, patterns), languages, fields)}
  if validation_patterns:
    found["validation"] = readers.find_bitext(_below(root, validation_patterns), languages, fields)
  (teacher,) = _below(root, teacher) if teacher else [None]
  of_rows = _features(vocabulary, found, negatives, teacher)
  name = unique_name(
    "bitext",
    found,
    vocabulary,
    power,
    max_length,
    negatives,
    teacher,
    memory_limit,
  )
  groups: dict[tuple[Language, Language], dict[str, list[readers.BitextFile]]] = {}
  for split, bitexts in found.items():
    for bitext in bitexts:
      groups.setdefault((bitext.source, bitext.target), {}).setdefault(split, []).append(bitext)

  def source(pair: tuple[Language, Language], task_name: str) -> sources.TextSource:
    splits = groups[pair]
    if not all(_fits(bitexts, memory_limit, teacher) for bitexts in splits.values()):
      return sources.StreamSource(splits, negatives=negatives, teacher=teacher)
    return sources.MemorySource(
      {
        split: functools.partial(
          _read_files,
          f"{task_name} {split}",
          bitexts,
          vocabulary,
          max_length,
          negatives=negatives,
          teacher=teacher,
        )
        for split, bitexts in splits.items()
      }
    )

  return add_mixture(name, list(groups), source, of_rows, vocabulary, max_length, power)


def file_languages(
  patterns: str | Sequence[str],
  *,
  root: str = "",
  languages: tuple[str, str] | None = None,
) -> list[str]:
  """Returns the codes of the languages of the bitext files that match patterns, each once.

  The arguments are those of `files`. No file is opened.

  Raises:
    InputError: a pattern matches nothing, or a file name does not show format or languages.
  """
  found = readers.find_bitext(_below(root, patterns), languages)
  return readers.codes_of(
    language for bitext in found for language in (bitext.source, bitext.target)
  )


def _below(root: str, patterns: str | Sequence[str]) -> list[str]:
  """Returns `patterns`, the relative ones below `root`."""
  listed = [patterns] if isinstance(patterns, str) else patterns
  return [x if storage.is_url(x) else os.path.join(root, x) for x in listed]


def _features(
  vocabulary: vocabularies.Vocabulary,
  found: Mapping[str, Sequence[readers.BitextFile]],
  negatives: int,
  teacher: str | None,
) -> dict[str, seqio.Feature]:
  """Returns the features of pairs, including hard negatives and teacher vectors."""
  of_rows = dict(features.pair_features(vocabulary))
  if negatives:
    of_rows["negatives"] = seqio.Feature(
      seqio_vocabulary.SeqioVocabulary(vocabulary),
      add_eos=False,
      required=False,
      dtype=tf.int32,
      rank=2,
    )
  if teacher:
    bitexts = [bitext for bitexts in found.values() for bitext in bitexts]
    of_rows |= features.teacher_features(teacher, bitexts)
  return of_rows


def sample(
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: Sequence[str] | None = None,
  num_meanings: int | None = None,
  max_length: int | None = 512,
) -> str:
  """Returns the name of a mixture of the package's sample corpus, each language to English.

  Args:
    vocabulary: Tokenizes both sides.
    languages: Codes of the languages other than English; None: all of the corpus.
    num_meanings: Number of meanings of each split; None: all.
    max_length: Pairs with a side of more tokens are dropped.
  """
  from vmsst.tasks import sample as corpus

  chosen = sample_pairs(languages)
  name = unique_name("sample", [code for code, _ in chosen], vocabulary, num_meanings, max_length)
  english = _english(corpus.LANGUAGES)

  own_code = {language: code for code, language in chosen}

  def load(split: str, pair: tuple[Language, Language], task_name: str) -> sources.Columns:
    total = corpus.num_meanings(split)
    code = own_code[pair[0]]
    texts = (
      (corpus.sentence(meaning, code, split), corpus.sentence(meaning, english[0], split))
      for meaning in range(total if num_meanings is None else min(total, num_meanings))
    )
    return _pair_columns(f"{task_name} {split}", texts, pair, vocabulary, max_length)[0]

  def source(pair: tuple[Language, Language], task_name: str) -> sources.TextSource:
    splits = ("train", "validation")
    return sources.MemorySource(
      {split: functools.partial(load, split, pair, task_name) for split in splits}
    )

  pairs = [(language, english[1]) for _, language in chosen]
  of_rows = features.pair_features(vocabulary)
  return add_mixture(name, pairs, source, of_rows, vocabulary, max_length, power=1.0)


def sample_languages(languages: Sequence[str] | None = None) -> list[str]:
  """Returns the codes of the languages of the sample corpus, English included.

  Args:
    languages: Codes of the languages other than English, as in `sample`; None: all.

  Raises:
    InputError: a language is not in the corpus.
  """
  from vmsst.tasks import sample as corpus

  chosen = [language for _, language in sample_pairs(languages)]
  return readers.codes_of([*chosen, _english(corpus.LANGUAGES)[1]])


def sample_pairs(codes: Sequence[str] | None = None) -> list[tuple[str, Language]]:
  """Returns the code in the sample corpus, and the language, of each language but English.

  Raises:
    InputError: a language is not in the corpus.
  """
  from vmsst.tasks import sample as corpus

  own = {languages.language(code): code for code in corpus.LANGUAGES}
  own.pop(_english(corpus.LANGUAGES)[1])
  if codes is None:
    return [(code, language) for language, code in own.items()]
  wanted = [languages.language(code) for code in codes]
  for language in wanted:
    if language not in own:
      raise errors.InputError(
        f"the sample corpus has no {language.name}; choose English or "
        f"{', '.join(language.name for language in own)}"
      )
  return [(own[language], language) for language in wanted]


def _english(codes: Iterable[str]) -> tuple[str, Language]:
  english = languages.language("eng")
  return next(code for code in codes if languages.language(code) == english), english


def weight_power(weighting: str, temperature: float | None) -> float:
  """Returns the exponent that turns the size of a language pair into its weight.

  Args:
    weighting: One of WEIGHTINGS; see `files`.
    temperature: Only for "temperature".

  Raises:
    InputError: one of them is wrong.
  """
  if weighting not in WEIGHTINGS:
    raise errors.InputError(f"weighting {weighting!r} is unknown; use {', '.join(WEIGHTINGS)}")
  if (weighting == "temperature") != (temperature is not None):
    raise errors.InputError('set a temperature with weighting = "temperature", and only then')
  if temperature is not None and not temperature > 0:
    raise errors.InputError(f"temperature is {temperature}; set it above 0")
  if temperature is not None:
    return 1 / temperature
  return 1.0 if weighting == "proportional" else 0.0


def _fits(bitexts: Sequence[readers.BitextFile], memory_limit: int, teacher: str | None) -> bool:
  """Returns whether to keep files in memory; always for formats that cannot be streamed."""
  streamable = all(bitext.format in ("moses", "tsv") for bitext in bitexts)
  text_bytes = sum(bitext.text_bytes for bitext in bitexts)
  vector_bytes = 0
  if teacher:
    vector_bytes = sum(teacher_vectors.open_vectors(teacher, bitext).nbytes for bitext in bitexts)
  return not streamable or (
    text_bytes <= memory_limit and vector_bytes <= sources.VECTOR_BYTES * memory_limit
  )


def _read_files(
  name: str,
  bitexts: Sequence[readers.BitextFile],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  *,
  negatives: int,
  teacher: str | None,
) -> sources.Columns:
  def rows() -> Iterator[tuple[str, ...]]:
    for bitext in bitexts:
      count = 0
      for row in readers.read_rows(bitext, negatives):
        count += 1
        yield row
      if teacher:
        teacher_vectors.check_count(teacher, bitext, count)

  pair = bitexts[0].source, bitexts[0].target
  columns, numbers_N = _pair_columns(name, rows(), pair, vocabulary, max_length)
  if not teacher:
    return columns
  vectors = [teacher_vectors.open_vectors(teacher, bitext) for bitext in bitexts]
  sides = enumerate(features.TEACHER_SIDES)
  return columns | {x: teacher_vectors.take(vectors, numbers_N, side) for side, x in sides}


def _pair_columns(
  name: str,
  rows: Iterable[Sequence[str]],
  pair: tuple[Language, Language],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Returns the columns of the rows that have both texts, split into words, and their numbers.

  Args:
    name: Of the task and split, for messages.
    rows: Source, target and hard negatives of each pair.
    pair: The languages of sources and of all other texts.
    vocabulary: Will tokenize the texts.
    max_length: Rows with a side of more tokens will be dropped.

  Raises:
    InputError: no row will be kept.
  """
  kept, numbers, count = [], [], 0
  for count, row in enumerate(rows, 1):
    if row[0].strip() and row[1].strip():
      kept.append(row)
      numbers.append(count - 1)
  logging.info("%s: %d pairs, and %d with an empty side", name, len(kept), count - len(kept))
  if not any(_fits_length(row, pair, vocabulary, max_length) for row in kept):
    raise errors.InputError(
      f"{name}: no pair is left: of {count} pairs, {count - len(kept)} have an empty side, and "
      f"{len(kept)} an over-long one; check the files and max_length ({max_length})"
    )
  texts = [list(column) for column in zip(*kept, strict=True)]
  if getattr(vocabulary, "pretokenize", False):
    source, target = pair
    texts = [
      word_splitting.split_words(column, target if number else source)
      for number, column in enumerate(texts)
    ]
  text_KN = np.array([[text.encode() for text in column] for column in texts], object)
  columns = {"inputs": text_KN[0], "targets": text_KN[1]}
  if len(texts) > 2:
    columns["negatives"] = text_KN[2:].T
  for side, language in zip(features.SIDES.values(), pair, strict=True):
    columns[side] = np.full([len(kept), 1], language.index, np.int32)
  return columns, np.array(numbers, np.int64)


def _fits_length(
  row: Sequence[str],
  pair: tuple[Language, Language],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
) -> bool:
  """Returns whether both sides of a pair have tokens, and at most `max_length`."""
  sides = [
    vocabulary.tokenize([text], language)[0] for text, language in zip(row, pair, strict=False)
  ]
  return all(0 < len(ids) <= (max_length or len(ids)) for ids in sides)


def unique_name(kind: str, *arguments: object) -> str:
  """Returns `kind`, with a number after it if other arguments have that name already.

  The same arguments always get the same name.
  """
  taken = _NAMES.setdefault(kind, [])
  key = repr(arguments)
  if key not in taken:
    taken.append(key)
  number = taken.index(key)
  return f"{kind}_{number + 1}" if number else kind


def add_mixture(
  name: str,
  pairs: Sequence[tuple[Language, Language]],
  source: Callable[[tuple[Language, Language], str], sources.TextSource],
  output_features: Mapping[str, seqio.Feature],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  power: float,
) -> str:
  """Registers a mixture and its tasks unless it is registered; returns its name.

  Args:
    name: Name of the mixture; its tasks are `NAME_deu_eng` and so on.
    pairs: The language pairs.
    source: Returns the source of a language pair, for a task of a given name.
    output_features: The features of the tasks.
    vocabulary: Tokenizes the texts.
    max_length: Pairs with a side of more tokens are dropped; None: no limit.
    power: Exponent of the weights; see `weight_power`.
  """
  if name not in seqio.MixtureRegistry.names():
    tasks = {pair: f"{name}_{readers.pair_name(*pair)}" for pair in pairs}
    for pair, task_name in tasks.items():
      if task_name not in seqio.TaskRegistry.names():
        task = text_task.TextTask(
          task_name,
          source(pair, task_name),
          output_features,
          vocabulary=vocabulary,
          max_length=max_length,
        )
        seqio.TaskRegistry.add_provider(task_name, task)
    rate = functools.partial(_rate, power=power)
    parts = [(task_name, rate) for task_name in tasks.values()]
    seqio.MixtureRegistry.add_provider(name, text_task.PairMixture(name, parts))
  return name


def _rate(task: seqio.Task, power: float) -> float:
  """Returns the weight of a task: a power of its number of pairs."""
  split = "train" if "train" in task.splits else "validation"
  return float(task.num_input_examples(split)) ** power
