"""SeqIO mixtures of the datasets of `vmsst data build`, to be called from gin.

    MIXTURE_OR_TASK_NAME = @mixtures.opus()
    mixtures.opus.config = 'vmsst'
    mixtures.opus.vocabulary = %VOCABULARY

If your own module must register a name, as for T5X's `DatasetConfig.module`, that is one call:

    # my_data.py: registers opus_vmsst and its tasks opus_vmsst_deu_eng ...
    mixtures.opus("vmsst", vocabularies.SentencePieceVocabulary("/data/mt5.model"), "/data/tfds")
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import seqio
import tensorflow_datasets as tfds
from etils import epath

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.data import dataset_shards, readers, seqio_tasks, tables, vocabularies
from vmsst.languages import Language


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
  """Returns the name of a mixture of a built dataset, with one task per language pair.

  The name is "opus_" and the name of the config. The same arguments give the same mixture; others
  get a number after the name. The splits are `train` and, if the dataset has it, `validation`.

  Args:
    config: Name of the recipe of the dataset.
    vocabulary: Tokenizes both sides.
    data_dir: The output folder of `vmsst data build`. None: the default of TFDS, $TFDS_DATA_DIR or
      ~/tensorflow_datasets; `t5x --tfds_data_dir` has precedence over both.
    languages: Codes of the languages to use; None: all of the dataset.
    pivots: Codes of languages; pairs without one of them are not used. None: all pairs.
    weighting: How often each language pair is sampled, as in `bitext.files`.
    temperature: As in `bitext.files`.
    max_length: Pairs with a side of more tokens are dropped; None: no limit.
    teacher: Folder with the vectors of all files of the dataset, from `vmsst data embed`: the
      features `teacher_inputs` and `teacher_targets`, float32 [S].

  Raises:
    InputError: the dataset does not exist, or it has no pair of these languages.
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
  """The files of a language pair's split.

  Attributes:
    files: The files.
    counts: Number of pairs in each.
  """

  files: Sequence[readers.BitextFile]
  counts: Sequence[int]


def find(config: str, data_dir: str | None) -> tuple[str, epath.Path]:
  """Returns the mixture's name, and the folder of the dataset's last version.

  Args:
    config: Name of the recipe of the dataset.
    data_dir: See `opus`.

  Raises:
    InputError: there is no such dataset.
  """
  # The folder that seqio would read, with `t5x --tfds_data_dir` if given.
  chosen = seqio.utils.LazyTfdsLoader(f"opus_bitext/{config}:1.0.0", data_dir=data_dir).data_dir
  root = epath.Path(chosen or tfds.core.constants.DATA_DIR).expanduser()
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
  """Returns, by language pair, its splits by their names in SeqIO.

  Args:
    folder: Folder of the dataset.
    languages: Codes of the languages to use; None: all.
    pivots: Codes of languages; pairs without one of them are left out. None: all pairs.

  Raises:
    InputError: the dataset has no pair of these languages.
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
      f"{folder} has no language pair of these languages; choose among "
      f"{', '.join(sorted(info.splits))}"
    )
  return pairs


def validation_pairs(
  folder: epath.Path, splits: Mapping[tuple[Language, Language], Mapping[str, Split]], corpus: str
) -> dict[tuple[Language, Language], list[tuple[str, str]]]:
  """Returns the validation pairs of a corpus, by language pair, without those that have none.

  Args:
    folder: Folder of the dataset, for messages.
    splits: Its splits, from `language_pairs`.
    corpus: Name of the corpus in OPUS.

  Raises:
    InputError: no language pair is left, or a file is damaged.
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
      f"{folder}: no validation pairs of the corpus {corpus!r}; choose among "
      f"{', '.join(sorted(present)) or 'none'}, or build the dataset with validation pairs"
    )
  return pairs
