"""SeqIO tasks for text tables, their features, and mixtures of language pairs.

A task consists of text tables, a vocabulary and features. `TextTask.get_dataset` passes the rows
from `batches.read_rows` to SeqIO and T5X. `BitextFeatureConverter` pads these rows to a sentence
encoder's input lengths, in training and evaluation.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.data import batches, readers, tables, vocabularies
from vmsst.data.tables import SIDES, TEACHER_SIDES
from vmsst.languages import Language

WEIGHTINGS = ("proportional", "uniform", "temperature")
# The arguments of earlier `unique_name` calls, by kind. The dict is global, like SeqIO's
# registries, because gin may call a function such as `tasks.bitext.files` several times, and calls
# with the same arguments must return the same registered mixture.
_NAMES: dict[str, list[str]] = {}

EXTRA_FEATURES = ("negatives", *TEACHER_SIDES)
"""Optional features, omitted if no length is set for them: hard negatives of the source text, and
teacher vectors for both texts."""
_TOKENS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)
_VECTOR = seqio.FeatureConverter.FeatureSpec(dtype=tf.float32)


class TableSource(seqio.DataSource):
  """Opens the table for each split of a `TextTask`.

  Args:
    splits: For each split, a function that opens the table.

  Attributes:
    table: Function that returns the table for a split and opens the table on first use.
  """

  def __init__(self, splits: Mapping[str, Callable[[], tables.Table]]):
    super().__init__(splits=tuple(splits))
    self.table = functools.cache(lambda split: splits[split]())

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True, because `batches.read_rows` can split the rows into any number of shards."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns a single shard, named after the split."""
    return [split]

  def num_input_examples(self, split: str) -> int:
    """Returns the number of rows in a split."""
    return len(self.table(split))

  def get_dataset(self, *arguments: Any, **options: Any) -> tf.data.Dataset:
    """Raises NotImplementedError, because `TextTask` reads the rows."""
    raise NotImplementedError("call get_dataset on the task, not on its source")


class TextTask(seqio.Task):
  """A SeqIO task that tokenizes the texts in a table while reading them.

  Args:
    name: Name of the task.
    source: The table for each split.
    output_features: The features.
    vocabulary: Tokenizes all texts.
    max_length: Maximum number of tokens per text, or None for no limit. A row is dropped if the
      source or target is longer or has no tokens. Hard negatives are not checked.
    keep_all: Whether to keep every row and truncate longer texts to `max_length` tokens.
    pair: The language pair, or None if it is unknown or differs between rows.
    **options: Further arguments for seqio.Task.
  """

  def __init__(
    self,
    name: str,
    source: TableSource,
    output_features: Mapping[str, seqio.Feature],
    *,
    vocabulary: vocabularies.Vocabulary,
    max_length: int | None,
    keep_all: bool = False,
    pair: tuple[Language, Language] | None = None,
    **options: Any,
  ):
    super().__init__(name, source, output_features, **options)
    self.tokenizer = batches.Tokenizer(vocabulary, max_length, keep_all)
    self.pair = pair

  def texts(self, split: str) -> batches.Texts:
    """Returns the texts in a split and their tokenizer."""
    return batches.Texts(f"{self.name} {split}", self.source.table(split), self.tokenizer)

  def get_dataset(
    self,
    sequence_length: Mapping[str, Any] | None = None,
    split: str = "train",
    use_cached: bool = False,
    shuffle: bool = True,
    shuffle_buffer_size: int | None = None,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    num_epochs: int | None = 1,
    trim_output_features: bool = True,
    try_in_mem_cache: bool = True,
  ) -> tf.data.Dataset:
    """Returns the rows from `read_rows` as a tf.data dataset, padded to the requested lengths.

    If `sequence_length` is set, it must contain a length for each of the `EXTRA_FEATURES` to
    include.

    Raises:
      InputError: see `check_texts`.
    """
    # Texts are tokenized and truncated while they are read, so caching would not help.
    del shuffle_buffer_size, use_cached, try_in_mem_cache, trim_output_features
    requested = sequence_length or {}
    texts = self.texts(split)
    if not self.tokenizer.keep_all:
      batches.check_texts([texts], requested, warn=shuffle)
    spec = texts.spec(requested)
    for name in EXTRA_FEATURES:
      if sequence_length is not None and not requested.get(name):
        spec.pop(name, None)
    lengths = {name: requested.get(name) for name in spec}
    shard = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
    chunks = batches.read_rows(
      [texts], [1.0], lengths, shuffle=shuffle, seed=seed, shard=shard, num_epochs=num_epochs
    )
    signature = {name: tf.TensorSpec([None, *x.shape], x.dtype) for name, x in spec.items()}
    dataset = tf.data.Dataset.from_generator(lambda: chunks, output_signature=signature).unbatch()
    # Texts without a fixed length were padded to the longest text in their chunk. Remove the
    # padding.
    for name in SIDES:
      if name in lengths and not lengths[name]:
        dataset = dataset.map(
          lambda row, name=name: {**row, name: row[name][: tf.math.count_nonzero(row[name])]}
        )
    return dataset.prefetch(tf.data.AUTOTUNE)


class SeqioVocabulary(seqio.Vocabulary):
  """Wraps a `vmsst.data.vocabularies` vocabulary as a SeqIO vocabulary with the same ids.

  If the vocabulary has no EOS token, `eos_id` is None. SeqIO's own class returns -1 in this case,
  and preprocessors would append this -1 to the ids.
  """

  def __init__(self, vocabulary: vocabularies.Vocabulary):
    super().__init__()
    self.wrapped = vocabulary

  @property
  def bos_id(self) -> None:
    """None, so that SeqIO never adds a BOS token."""

  @property
  def eos_id(self) -> int | None:
    """Id of the EOS token, or None."""
    return self.wrapped.eos_id

  @property
  def unk_id(self) -> int | None:
    """Id for unknown pieces, or None."""
    return self.wrapped.unk_id

  @property
  def _base_vocab_size(self) -> int:
    return self.wrapped.size

  def _encode(self, s: str) -> Sequence[int]:
    return self.wrapped.tokenize([s])[0]

  def _decode(self, ids: Iterable[int]) -> str:
    return self.wrapped.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    def encode(text: tf.Tensor) -> np.ndarray:
      return np.array(self._encode(text.numpy().decode()), np.int32)

    return tf.ensure_shape(tf.py_function(encode, [s], tf.int32), [None])

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda x: self._decode(x.numpy().tolist()), [ids], tf.string)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, SeqioVocabulary) and self.wrapped == other.wrapped

  def __hash__(self) -> int:
    return hash(self.wrapped)


def text_feature(vocabulary: vocabularies.Vocabulary) -> seqio.Feature:
  """Returns a SeqIO feature for token ids, with an EOS token if the vocabulary has one."""
  return seqio.Feature(
    SeqioVocabulary(vocabulary), add_eos=vocabulary.eos_id is not None, dtype=tf.int32
  )


def pair_features(
  vocabulary: vocabularies.Vocabulary, *, negatives: int = 0, teacher: bool = False
) -> Mapping[str, seqio.Feature]:
  """Returns a pair's SeqIO features: two texts, two language ids, and any extra features.

  Args:
    vocabulary: Tokenizes the texts.
    negatives: Number of hard negatives per pair.
    teacher: Whether pairs include teacher vectors from `vmsst data embed`.
  """
  size = 1 + max(language.index for language in languages_lib.LANGUAGES)
  language = seqio.Feature(seqio.PassThroughVocabulary(size=size), add_eos=False, dtype=tf.int32)
  text = text_feature(vocabulary)
  features = {
    "inputs": text,
    "targets": text,
    "input_language": language,
    "target_language": language,
  }
  if negatives:
    features["negatives"] = seqio.Feature(
      text.vocabulary, add_eos=False, required=False, dtype=tf.int32, rank=2
    )
  if teacher:
    vector = seqio.ContinuousFeature(required=False, dtype=tf.float32)
    features |= dict.fromkeys(TEACHER_SIDES, vector)
  return features


def check_lengths(
  shapes: Mapping[str, Sequence[int | None]],
  lengths: Mapping[str, Any],
  passed_through: Iterable[str] = (),
) -> None:
  """Raises InputError if `task_feature_lengths` does not match the data.

  Args:
    shapes: Shape of each column in one row.
    lengths: `task_feature_lengths`; see `BitextFeatureConverter`.
    passed_through: The converter's passthrough features. They may have lengths, too.
  """
  possible = {*(BitextFeatureConverter.TASK_FEATURES.keys() & shapes.keys()), *passed_through}
  if "inputs" not in lengths or not possible.issuperset(lengths):
    raise errors.InputError(
      f"task_feature_lengths contains {sorted(lengths)}; include 'inputs', and use only "
      f"features from {sorted(possible)} (to add features, set bitext.files.negatives or "
      "bitext.files.teacher)"
    )
  for name in lengths.keys() & TEACHER_SIDES:
    requirement = f"{shapes[name][0]}, the dimension of the teacher's vectors"
    same = lengths[name] == shapes[name][0]
    errors.check(same, f"task_feature_lengths[{name!r}]", lengths[name], requirement)


class BitextFeatureConverter(seqio.FeatureConverter):
  """Pads every feature to its length. Model features have the same names as task features.

  The length of the matrix feature `negatives` is a tuple: the number of texts and the length of
  each text. The length of `teacher_inputs` and `teacher_targets` is the vectors' dimension.

  Each call converts only the features in its `task_feature_lengths`. Single texts are therefore
  supported, too. For example, evaluation passes only `inputs`.
  """

  TASK_FEATURES: Mapping[str, seqio.FeatureConverter.FeatureSpec] = {
    "inputs": _TOKENS,
    "targets": _TOKENS,
    "input_language": _TOKENS,
    "target_language": _TOKENS,
    "negatives": seqio.FeatureConverter.FeatureSpec(dtype=tf.int32, rank=2, sequence_dim=1),
    **dict.fromkeys(TEACHER_SIDES, _VECTOR),
  }
  MODEL_FEATURES = TASK_FEATURES
  PACKING_FEATURE_DTYPES = None

  def __init__(self, pack: bool = False, use_custom_packing_ops: bool = False, **options):
    """Accepts the arguments of seqio.FeatureConverter, except that `pack` must be False."""
    # Padding already guarantees the lengths, and checking them would take as long as padding.
    super().__init__(
      pack=pack,
      use_custom_packing_ops=use_custom_packing_ops,
      **{"apply_length_check": False, **options},
    )

  def __call__(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, Any]
  ) -> tf.data.Dataset:
    """Pads each feature in `task_feature_lengths` to its length, and drops all other features.

    Raises:
      InputError: see `check_lengths`.
    """
    shapes = {name: spec.shape for name, spec in ds.element_spec.items()}
    check_lengths(shapes, task_feature_lengths, self._passthrough_features)
    narrowed = copy.copy(self)
    narrowed.TASK_FEATURES = {
      name: spec for name, spec in self.TASK_FEATURES.items() if name in task_feature_lengths
    }
    narrowed.MODEL_FEATURES = narrowed.TASK_FEATURES
    return super(BitextFeatureConverter, narrowed).__call__(ds, task_feature_lengths)

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, Any]
  ) -> tf.data.Dataset:
    features = {**self.TASK_FEATURES, **self._passthrough_features}
    spec = ds.element_spec

    def is_padded(name: str) -> bool:
      lengths = np.atleast_1d(task_feature_lengths[name]).tolist()
      return spec[name].shape[: len(lengths)].as_list() == lengths

    if set(spec) == set(features) and all(map(is_padded, features)):
      # The rows are already padded, and mapping a function over them would be slow.
      return ds

    narrow = ds.map(lambda row: {name: row[name] for name in features})
    return seqio.trim_and_pad_dataset(narrow, task_feature_lengths)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the task feature lengths unchanged."""
    return task_feature_lengths


def weight_power(weighting: str, temperature: float | None) -> float:
  """Returns the exponent that converts a language pair's size to its sampling weight.

  Args:
    weighting: One of WEIGHTINGS; see `tasks.bitext.files`.
    temperature: The temperature. Required for the weighting "temperature", otherwise None.

  Raises:
    InputError: If an argument is invalid.
  """
  errors.check_choice("weighting", weighting, WEIGHTINGS)
  if weighting == "temperature" and temperature is not None and temperature > 0:
    return 1 / temperature
  valid = temperature is None and weighting != "temperature"
  errors.check(
    valid, "temperature", temperature, "a positive number if weighting='temperature', else None"
  )
  return 1.0 if weighting == "proportional" else 0.0


def unique_name(kind: str, *arguments: object) -> str:
  """Returns `kind`, with a number appended if the name already refers to different arguments.

  Calls with the same arguments always return the same name.
  """
  keys = _NAMES.setdefault(kind, [])
  key = repr(arguments)
  if key not in keys:
    keys.append(key)
  number = keys.index(key)
  return f"{kind}_{number + 1}" if number else kind


def add(
  name: str,
  sources: Mapping[tuple[Language, Language], TableSource],
  output_features: Mapping[str, seqio.Feature],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  power: float,
) -> str:
  """Registers a mixture and its tasks unless they already exist, and returns the mixture's name.

  Args:
    name: Name for the mixture. The tasks are named `NAME_deu_eng` and so on.
    sources: The tables for each language pair.
    output_features: The features of the tasks.
    vocabulary: Tokenizes the texts.
    max_length: Maximum number of tokens per text, or None for no limit. Pairs with a longer text
      are dropped.
    power: Exponent for the sampling weights; see `weight_power`.
  """
  if name not in seqio.MixtureRegistry.names():
    tasks = []
    for pair, source in sources.items():
      task = TextTask(
        f"{name}_{readers.pair_name(*pair)}",
        source,
        output_features,
        vocabulary=vocabulary,
        max_length=max_length,
        pair=pair,
      )
      seqio.TaskRegistry.add_provider(task.name, task)
      tasks.append((task.name, functools.partial(_rate, power=power)))
    seqio.MixtureRegistry.add_provider(name, seqio.Mixture(name, tasks))
  return name


def languages(mixture_or_task_name: Any) -> list[str] | None:
  """Returns the language codes in a mixture's training data, or None if they are unknown.

  Args:
    mixture_or_task_name: As in T5X's `DatasetConfig`. Languages are known only for tasks from this
      package.
  """
  provider = mixture_or_task_name
  if isinstance(provider, str):
    try:
      provider = seqio.get_mixture_or_task(provider)
    except ValueError:  # `DatasetConfig.module` may register the mixture later.
      return None
  tasks = seqio.get_subtasks(provider)
  pairs = (x.pair for x in tasks if isinstance(x, TextTask) and x.pair and "train" in x.splits)
  return readers.language_codes(language for pair in pairs for language in pair) or None


def _rate(task: seqio.Task, power: float) -> float:
  """Returns a task's sampling weight, a power of the task's number of pairs."""
  split = "train" if "train" in task.splits else "validation"
  return float(task.num_input_examples(split)) ** power
