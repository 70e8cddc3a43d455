"""Registers your own bitext, or the sample corpus, as a seqio mixture; to be called from gin.

A gin file trains on your own files with

    MIXTURE_OR_TASK_NAME = @bitext.files()
    bitext.files.patterns = ["/data/corpus/*.tsv.gz", "/data/moses/Europarl.de-en.de"]
    bitext.files.vocabulary = %VOCABULARY
"""

import functools
import os
from collections.abc import Callable, Sequence

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.data import readers, seqio_tasks, tables, vocabularies
from vmsst.formats import encoder_json
from vmsst.languages import Language


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
  negatives: int = 0,
  teacher: str | None = None,
) -> str:
  """Returns the name of a mixture of bitext files, with one task per language pair.

  The same arguments give the same mixture, until a file changes. Files are opened when data is
  first read. Splits are `train` and, with `validation_patterns`, `validation`.

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
    negatives: Number K of hard negatives of each pair, in TSV files of `vmsst data mine-negatives`:
      the feature `negatives`, int32 [K, T], in which a missing text is all 0.
    teacher: Folder with the vectors of all files, from `vmsst data embed`: the features
      `teacher_inputs` and `teacher_targets`, float32 [S].

  Raises:
    InputError: a pattern matches nothing, or a file name does not show format or languages.
  """
  power = seqio_tasks.weight_power(weighting, temperature)
  errors.as_integer("negatives", negatives, minimum=0)
  by_split = {"train": readers.find_bitext(_below(root, patterns), languages)}
  if validation_patterns:
    by_split["validation"] = readers.find_bitext(_below(root, validation_patterns), languages)
  (teacher,) = _below(root, teacher) if teacher else [None]
  bitexts = [bitext for bitexts in by_split.values() for bitext in bitexts]
  of_rows = seqio_tasks.pair_features(vocabulary, negatives=negatives, teacher=bool(teacher))
  paths = [path for bitext in bitexts for path in bitext.paths]
  if teacher:
    paths += [tables.vectors_path(teacher, bitext) for bitext in bitexts]
  name = seqio_tasks.unique_name(
    "bitext",
    by_split,
    vocabulary,
    encoder_json.vocabulary_digest(vocabulary),
    power,
    max_length,
    negatives,
    teacher,
    [storage.version(path) for path in paths],
  )
  splits: dict[tuple[Language, Language], dict[str, Callable[[], tables.Table]]] = {}
  for split, bitexts in by_split.items():
    for pair, files in readers.by_pair(bitexts).items():
      label = f"{readers.pair_name(*pair)} {split}"
      splits.setdefault(pair, {})[split] = functools.partial(
        tables.open_files, label, files, negatives=negatives, teacher=teacher
      )
  sources = {pair: seqio_tasks.TableSource(tables) for pair, tables in splits.items()}
  return seqio_tasks.add(name, sources, of_rows, vocabulary, max_length, power)


def _below(root: str, patterns: str | Sequence[str]) -> list[str]:
  """Returns `patterns`, the relative ones below `root`."""
  listed = [patterns] if isinstance(patterns, str) else patterns
  return [x if storage.is_url(x) else os.path.join(root, x) for x in listed]


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
  from vmsst.data import sample as corpus

  codes = {languages_lib.language(code): code for code in corpus.other_codes(languages)}
  digest = encoder_json.vocabulary_digest(vocabulary)
  name = seqio_tasks.unique_name(
    "sample", list(codes.values()), vocabulary, digest, num_meanings, max_length
  )
  english = languages_lib.language("en")

  def load(split: str, pair: tuple[Language, Language]) -> tables.Table:
    total = corpus.num_meanings(split)
    texts = (
      (corpus.sentence(meaning, codes[pair[0]], split), corpus.sentence(meaning, "en", split))
      for meaning in range(total if num_meanings is None else min(total, num_meanings))
    )
    return tables.pair_table(f"{readers.pair_name(*pair)} {split}", texts, pair)

  sources = {
    pair: seqio_tasks.TableSource(
      {split: functools.partial(load, split, pair) for split in ("train", "validation")}
    )
    for pair in ((language, english) for language in codes)
  }
  of_rows = seqio_tasks.pair_features(vocabulary)
  return seqio_tasks.add(name, sources, of_rows, vocabulary, max_length, power=1.0)
