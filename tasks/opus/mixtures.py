"""SeqIO mixtures of the datasets that `vmsst data build` makes; meant to be called from gin.

    MIXTURE_OR_TASK_NAME = @mixtures.opus()
    mixtures.opus.config = 'vmsst'
    mixtures.opus.vocabulary = %VOCABULARY

Where a name has to be registered by a module of one's own, as for `seqio_cache_tasks` or T5X's
`DatasetConfig.module`, that module is one call:

    # my_data.py: registers opus_vmsst, and the tasks opus_vmsst_deu_eng ... of it
    mixtures.opus("vmsst", vocabularies.SentencePieceVocabulary("/data/mt5.model"), "/data/tfds")

    seqio_cache_tasks --module_import=my_data --tasks='opus_vmsst_.*' --output_cache_dir=/cache

What is cached are all token ids, before pairs are dropped for their length; a run that asks for the
cache (USE_CACHED_TASKS) with another vocabulary ends with an error.
"""

import hashlib
from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf
import tensorflow_datasets as tfds
from etils import epath
from google.protobuf import json_format

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.bitext import readers
from vmsst.bitext.tokenized_pairs import SIDES
from vmsst.languages import Language
from vmsst.tasks import bitext, preprocessors, streamed_tasks
from vmsst.text import vocabularies

DATASET = "opus_bitext"
SPLITS = ("train", "validation")
# Rows lie in a pseudo-random order already; this mixes what several files at a time give, and small
# language pairs anew in every epoch.
_SHUFFLE_BUFFER = 1000
_RECORDS = 64
_TEXTS = dict.fromkeys(("source", "target"), tf.io.FixedLenFeature([], tf.string))
_PROBE = (
  "In 1999 she'd read «it» twice - hadn't she?",
  "Zwölf Größen, déjà vu, mañana, žluťoučký kůň, İstanbul",
  "Она читала книгу. Διάβασε το βιβλίο. ספר قرأت الكتاب",
  "उसने किताब पढ़ी। เธออ่านหนังสือ 她读了一本书 彼女は本を読んだ 그녀는 책을 읽었다",
)


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
  both_directions: bool = False,
) -> str:
  """Name of a mixture of a built dataset, one task a language pair: "opus_" and the config's name.

  The same arguments give the same mixture, however often it is called; others get a number behind
  the name. The splits are `train` and, where the dataset has it, `validation`.

  Args:
    config: Name of the recipe that the dataset was built by.
    vocabulary: What tokenizes both sides.
    data_dir: The folder that was given to `vmsst data build` as its output. None is TFDS's own:
      $TFDS_DATA_DIR, or ~/tensorflow_datasets; `t5x --tfds_data_dir` goes before both.
    languages: Codes of the languages that are used; None is all of the dataset.
    pivots: Codes of languages of which each pair that is used has one; None takes all pairs.
    weighting: How often each language pair is drawn, as in `bitext.files`.
    temperature: As in `bitext.files`.
    max_length: Pairs with a side of more tokens are dropped (None: none is).
    both_directions: Whether each pair is also given with its sides exchanged.

  Raises:
    InputError: the dataset is not there, or it has no pair of what is asked for.
  """
  power = bitext.weight_power(weighting, temperature)
  name, folder, versioned = _find(config, data_dir)
  splits = _splits(folder, _languages(languages), _languages(pivots))
  mixture = bitext.unique_name(
    name, str(folder), vocabulary, list(splits), power, max_length, both_directions
  )

  def add_task(pair: tuple[Language, Language], task_name: str) -> None:
    task = streamed_tasks.StreamedTask(
      task_name,
      _Source(versioned, data_dir, splits[pair], pair),
      preprocessors.pair_features(vocabulary),
      vocabulary=vocabulary,
      pair=pair,
      max_length=max_length,
      both_directions=both_directions,
      shuffle_buffer_size=_SHUFFLE_BUFFER,
      fingerprint=_fingerprint(vocabulary, pair),
    )
    seqio.TaskRegistry.add_provider(task_name, task)

  return bitext.add_mixture(mixture, list(splits), add_task, power)


def opus_languages(
  config: str,
  data_dir: str | None = None,
  *,
  languages: Sequence[str] | None = None,
  pivots: Sequence[str] | None = None,
) -> list[str]:
  """Returns the codes of the languages of a built dataset; arguments and errors as of `opus`."""
  _, folder, _ = _find(config, data_dir)
  pairs = _splits(folder, _languages(languages), _languages(pivots))
  return readers.codes_of(language for pair in pairs for language in pair)


class _Source(seqio.TfdsDataSource):
  """The texts of one language pair, with its language ids; records are parsed dozens at a time."""

  def __init__(
    self,
    name: str,
    data_dir: str | None,
    splits: Mapping[str, str],
    pair: tuple[Language, Language],
  ):
    super().__init__(name, data_dir, splits, read_only=True)
    self._pair = pair

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    **unused,
  ) -> tf.data.Dataset:
    """As in seqio.TfdsDataSource: whole files for each shard."""
    del unused
    shard = shard_info or seqio.ShardInfo(index=0, num_shards=1)
    ids = {
      name: tf.constant([[language.index]], tf.int32)
      for name, language in zip(SIDES.values(), self._pair, strict=True)
    }

    def parse(records_B: tf.Tensor) -> dict[str, tf.Tensor]:
      found = tf.io.parse_example(records_B, _TEXTS)
      columns = {name: tf.tile(value, [tf.size(records_B), 1]) for name, value in ids.items()}
      return {"inputs": found["source"], "targets": found["target"], **columns}

    records = streamed_tasks.read_records(self.list_shards(split), shuffle, seed, shard)
    return records.batch(_RECORDS).map(parse).unbatch()


def _find(config: str, data_dir: str | None) -> tuple[str, epath.Path, str]:
  """The mixture's name, the folder of the dataset's newest version, and its name in TFDS."""
  # What seqio will read, with `t5x --tfds_data_dir` where that was given.
  chosen = seqio.utils.LazyTfdsLoader(f"{DATASET}/{config}:1.0.0", data_dir=data_dir).data_dir
  root = epath.Path(chosen or tfds.core.constants.DATA_DIR).expanduser()
  folder = root / DATASET / config
  versions = tfds.core.utils.version.list_all_versions(folder)
  if not versions:
    raise errors.InputError(
      f"no dataset {DATASET}/{config} in {root}: build it with `vmsst data build --recipe {config} "
      f"--output {root}`, or say where it is by OPUS_DATA_DIR; for files of one's own, give "
      "--gin_file=data/files.gin behind the run's file"
    )
  return f"opus_{config}", folder / str(versions[-1]), f"{DATASET}/{config}:{versions[-1]}"


def _languages(codes: Sequence[str] | None) -> frozenset[Language]:
  """The languages of codes; all where there are none."""
  if codes is None:
    return frozenset(languages_lib.LANGUAGES)
  listed = [codes] if isinstance(codes, str) else codes
  return frozenset(languages_lib.language(code) for code in listed)


def _splits(
  folder: epath.Path, used: frozenset[Language], pivots: frozenset[Language]
) -> dict[tuple[Language, Language], dict[str, str]]:
  """By language pair the dataset's own names of its splits, by SeqIO's names of them."""
  by_code = {readers.compact_code(language): language for language in languages_lib.LANGUAGES}
  try:
    info = tfds.builder_from_directory(folder).info
  except (OSError, ValueError, json_format.ParseError) as error:
    raise errors.InputError(f"{folder} is no whole TFDS dataset: {error}") from None
  found: dict[tuple[Language, Language], dict[str, str]] = {}
  for name in sorted(info.splits):
    split, _, codes = name.partition("_")
    pair = [by_code[code] for code in codes.split("_") if code in by_code]
    if split not in SPLITS or len(pair) != 2:
      raise errors.InputError(f"{folder}: split {name} is not one such as train_deu_eng")
    if used.issuperset(pair) and pivots.intersection(pair) and info.splits[name].num_examples:
      found.setdefault((pair[0], pair[1]), {})[split] = name
  if not found:
    raise errors.InputError(
      f"{folder} has no language pair of what is asked for; it has {', '.join(sorted(info.splits))}"
    )
  return found


def _fingerprint(vocabulary: vocabularies.Vocabulary, pair: Sequence[Language]) -> int:
  """A number that differs between vocabularies."""
  ids = [vocabulary.tokenize(list(_PROBE), language) for language in pair]
  digest = hashlib.blake2b(repr(ids).encode(), digest_size=4).digest()
  return int.from_bytes(digest) >> 1
