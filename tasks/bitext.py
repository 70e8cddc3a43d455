"""Registers SeqIO mixtures for your own bitext, OPUS datasets (`opus`) and the sample corpus.

Call the functions in this module from gin files. To train on your own files, write

    MIXTURE_OR_TASK_NAME = @bitext.files()
    bitext.files.patterns = ["/data/corpus/*.tsv.gz", "/data/moses/Europarl.de-en.de"]
    bitext.files.vocabulary = %VOCABULARY

If a Python module must register the mixture, as T5X's `DatasetConfig.module` requires, call the
function in that module:

    # my_data.py: registers opus_vmsst and its tasks opus_vmsst_deu_eng ...
    bitext.opus("vmsst", vocabularies.SentencePieceVocabulary("/data/mt5.model"), "/data/tfds")
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow_datasets as tfds
from etils import epath

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.data import dataset_shards, readers, seqio_tasks, tables, training_sets, vocabularies
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
  """Registers a mixture of bitext files, with one task per language pair; returns its name.

  The name of the mixture depends only on the arguments and the files. The files are opened when
  data is first read. The mixture has the split `train`, and also the split `validation` if
  `validation_patterns` is set.

  Args:
    patterns: Files or shell patterns. The formats are Moses pairs, TSV, TMX and JSONL, plain or
      gzipped.
    vocabulary: Vocabulary that tokenizes sources and targets.
    root: Folder for relative patterns (default: the current folder).
    languages: Source and target language codes for all files (default: read from each file name,
      such as `deu-eng.tsv.gz` or `Europarl.de-en.de`).
    validation_patterns: Files or shell patterns for the validation split.
    weighting: How to weight a language pair with n examples: "proportional" (n), "uniform" (1) or
      "temperature" (n ** (1 / temperature)).
    temperature: Temperature for `weighting`; 1 gives "proportional", and infinity gives "uniform".
    max_length: Maximum tokens per text, or None for no limit. Pairs with a longer text are dropped.
      The remaining texts are truncated to TASK_FEATURE_LENGTHS, as in all tasks.
    negatives: Number of hard negatives per pair (K), in TSV files from `vmsst data mine-negatives`.
      The feature `negatives` contains the tokens, int32 [K, T]; missing negatives are all zeros.
    teacher: Folder with teacher vectors for all files, from `vmsst data embed`. The vectors are
      stored in the features `teacher_inputs` and `teacher_targets`, float32 [S].

  Raises:
    InputError: If a pattern matches no file, or if the format or the languages are not clear from a
      file name.
  """
  power = seqio_tasks.weight_power(weighting, temperature)
  errors.as_integer("negatives", negatives, minimum=0)
  by_split = {"train": readers.find_bitext(_below(root, patterns), languages)}
  if validation_patterns:
    by_split["validation"] = readers.find_bitext(_below(root, validation_patterns), languages)
  (teacher,) = _below(root, teacher) if teacher else [None]
  bitexts = [bitext for bitexts in by_split.values() for bitext in bitexts]
  features = seqio_tasks.pair_features(vocabulary, negatives=negatives, teacher=bool(teacher))
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
        _open, label, files, pair, negatives, teacher
      )
  sources = {pair: seqio_tasks.TableSource(tables) for pair, tables in splits.items()}
  return seqio_tasks.add(name, sources, features, vocabulary, max_length, power)


def _open(
  name: str,
  data: training_sets.Data,
  pair: tuple[Language, Language],
  negatives: int = 0,
  teacher: str | None = None,
) -> tables.Table:
  """Returns the table for a language pair; raises InputError if the pairs have scores."""
  codes = (readers.language_code(pair[0]), readers.language_code(pair[1]))
  settings = training_sets.TrainingSet(data, languages=codes, negatives=negatives)
  opened = training_sets.open_set(name, settings)
  if "scores" in opened.table.columns:
    raise errors.InputError(
      f"{name}: the pairs have scores or labels; train on them with gin/data/training_sets.gin"
    )
  if teacher:
    training_sets.add_file_vectors(opened, teacher)
  return opened.table


def _below(root: str, patterns: str | Sequence[str]) -> list[str]:
  """Returns the patterns, with relative patterns joined to `root`."""
  patterns = [patterns] if isinstance(patterns, str) else patterns
  return [x if storage.is_url(x) else os.path.join(root, x) for x in patterns]


def opus(
  config: str,
  vocabulary: vocabularies.Vocabulary,
  data_dir: str | None = None,
  *,
  languages: Sequence[str] | None = None,
  pivots: Sequence[str] | None = None,
  weighting: str = "proportional",
  temperature: float | None = None,
  max_length: int | None = 512,
  teacher: str | None = None,
) -> str:
  """Registers a mixture for a built dataset, with one task per language pair; returns its name.

  The name of the mixture is `opus_CONFIG`. If a mixture with different arguments already has this
  name, a number is appended to the name. The mixture has the split `train`, and also the split
  `validation` if the dataset has one.

  Args:
    config: Name of the dataset's recipe.
    vocabulary: Vocabulary that tokenizes sources and targets.
    data_dir: Output folder from `vmsst data build` (default: $TFDS_DATA_DIR, or else
      ~/tensorflow_datasets). The flag `t5x --tfds_data_dir` overrides this argument.
    languages: Codes of the languages to use (default: all languages in the dataset).
    pivots: Language codes; only pairs with one of these languages are used (default: all pairs).
    weighting: See `files`.
    temperature: See `files`.
    max_length: Maximum tokens per text, or None for no limit. Pairs with a longer text are dropped.
    teacher: Folder with teacher vectors for the dataset's files, from `vmsst data embed`; see
      `files`.

  Raises:
    InputError: If the dataset does not exist, or if no pair meets `languages` and `pivots`.
  """
  power = seqio_tasks.weight_power(weighting, temperature)
  name, folder = find(config, data_dir)
  splits = language_pairs(folder, languages, pivots)
  mixture = seqio_tasks.unique_name(
    name, str(folder), vocabulary, list(splits), power, max_length, teacher
  )
  output_features = seqio_tasks.pair_features(vocabulary, teacher=bool(teacher))

  sources = {
    pair: seqio_tasks.TableSource(
      {
        name: functools.partial(tables.open_records, split.files, split.counts, teacher)
        for name, split in by_split.items()
      }
    )
    for pair, by_split in splits.items()
  }
  return seqio_tasks.add(mixture, sources, output_features, vocabulary, max_length, power)


@dataclasses.dataclass(frozen=True)
class Split:
  """A split of one language pair.

  Attributes:
    files: The files.
    counts: Number of pairs in each file.
  """

  files: Sequence[readers.BitextFile]
  counts: Sequence[int]


def find(config: str, data_dir: str | None) -> tuple[str, epath.Path]:
  """Returns the mixture's name and the folder with the latest version of the dataset.

  Args:
    config: Name of the dataset's recipe.
    data_dir: See `opus`.

  Raises:
    InputError: If the dataset does not exist.
  """
  # `loader.data_dir` is the value of the flag `t5x --tfds_data_dir`, if this flag is set.
  loader = seqio.utils.LazyTfdsLoader(f"opus_bitext/{config}:1.0.0", data_dir=data_dir)
  root = epath.Path(loader.data_dir or tfds.core.constants.DATA_DIR).expanduser()
  folder = root / "opus_bitext" / config
  versions = tfds.core.utils.version.list_all_versions(folder)
  if not versions:
    raise errors.InputError(
      f"no dataset opus_bitext/{config} in {root}; build it with `vmsst data build --recipe "
      f"{config} --output {root}`, or set OPUS_DATA_DIR to its folder; for your own files, add "
      "--gin_file=data/files.gin after the run file"
    )
  return f"opus_{config}", folder / str(versions[-1])


def language_pairs(
  folder: epath.Path, languages: Sequence[str] | None, pivots: Sequence[str] | None
) -> dict[tuple[Language, Language], dict[str, Split]]:
  """Returns the splits for each language pair, by split name.

  Args:
    folder: Folder of the dataset.
    languages: See `opus`.
    pivots: See `opus`.

  Raises:
    InputError: If no pair in the dataset meets `languages` and `pivots`.
  """
  used, required = (
    {languages_lib.language(code) for code in ([codes] if isinstance(codes, str) else codes)}
    if codes is not None
    else {*languages_lib.LANGUAGES}
    for codes in (languages, pivots)
  )
  by_code = {readers.compact_code(language): language for language in languages_lib.LANGUAGES}
  info = tfds.builder_from_directory(folder).info
  pairs: dict[tuple[Language, Language], dict[str, Split]] = {}
  for name in sorted(info.splits):
    split, _, codes = name.partition("_")
    pair = [by_code[code] for code in codes.split("_") if code in by_code]
    if used.issuperset(pair) and required.intersection(pair) and info.splits[name].num_examples:
      paths = map(str, info.splits[name].filepaths)
      files = [readers.BitextFile((path,), "tfrecord", pair[0], pair[1]) for path in paths]
      counts = info.splits[name].shard_lengths
      pairs.setdefault((pair[0], pair[1]), {})[split] = Split(files, counts)
  if not pairs:
    raise errors.InputError(
      f"{folder} contains no pair of these languages; choose from {', '.join(sorted(info.splits))}"
    )
  return pairs


def validation_pairs(
  folder: epath.Path, splits: Mapping[tuple[Language, Language], Mapping[str, Split]], corpus: str
) -> dict[tuple[Language, Language], list[tuple[str, str]]]:
  """Returns the validation pairs from one corpus, for each language pair that has any.

  Args:
    folder: Folder of the dataset, for messages.
    splits: Splits of the dataset, from `language_pairs`.
    corpus: Name of an OPUS corpus.

  Raises:
    InputError: If the corpus contains no validation pairs, or a file is damaged.
  """
  pairs: dict[tuple[Language, Language], list[tuple[str, str]]] = {}
  present = set()
  for pair, by_name in splits.items():
    if "validation" not in by_name:
      continue
    paths = [path for file in by_name["validation"].files for path in file.paths]
    for records in map(dataset_shards.Records, paths):
      for number in range(len(records)):
        name = records.texts(number)["corpus"]
        present.add(name)
        if name == corpus:
          pairs.setdefault(pair, []).append(records.pair(number))
  if not pairs:
    raise errors.InputError(
      f"{folder}: no validation pairs from the corpus {corpus!r}; choose from "
      f"{', '.join(sorted(present)) or 'none'}, or build the dataset with validation pairs"
    )
  return pairs


def sample(
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: Sequence[str] | None = None,
  num_meanings: int | None = None,
  max_length: int | None = 512,
) -> str:
  """Registers a mixture of sample corpus pairs that include English; returns its name.

  Args:
    vocabulary: Vocabulary that tokenizes sources and targets.
    languages: Language codes, without English (default: all languages in the corpus).
    num_meanings: Number of sentences per language and split (default: all).
    max_length: Maximum tokens per text, or None for no limit. Pairs with a longer text are dropped.
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
    return _open(f"{readers.pair_name(*pair)} {split}", texts, pair)

  sources = {
    pair: seqio_tasks.TableSource(
      {split: functools.partial(load, split, pair) for split in ("train", "validation")}
    )
    for pair in ((language, english) for language in codes)
  }
  features = seqio_tasks.pair_features(vocabulary)
  return seqio_tasks.add(name, sources, features, vocabulary, max_length, power=1.0)
