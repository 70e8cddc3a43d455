"""SeqIO tasks of texts, their features, and mixtures of language pairs.

A task has a table of texts, a vocabulary and features. `TextTask.get_dataset` returns the rows of
`batches.read_rows` to SeqIO and T5X. `BitextFeatureConverter` converts them to the inputs of a
sentence encoder in training and evaluation.
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
# The arguments of all names from `unique_name`, by kind of name. The dict is global, like
# the registries of seqio: gin may call a function such as `files` several times, and the same
# arguments must name the same registered mixture.
_NAMES: dict[str, list[str]] = {}

EXTRA_FEATURES = ("negatives", *TEACHER_SIDES)
"""Optional features, left out if they have no length: hard negatives of a pair's source, and a
teacher's vectors of both sides."""
_TOKENS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)
_VECTOR = seqio.FeatureConverter.FeatureSpec(dtype=tf.float32)


class TableSource(seqio.DataSource):
  """The tables of a task's splits, for `TextTask`.

  Args:
    splits: For each split, a function that opens its table.

  Attributes:
    table: Returns the table of a split, and opens it when it is first needed.
  """

  def __init__(self, splits: Mapping[str, Callable[[], tables.Table]]):
    super().__init__(splits=tuple(splits))
    self.table = functools.cache(lambda split: splits[split]())

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True: shard i of n has rows i, i + n, i + 2n ... of the order of all epochs."""
    return True

  def list_shards(self, split: str) -> Sequence[str]:
    """Returns one shard, the split itself."""
    return [split]

  def num_input_examples(self, split: str) -> int:
    """Returns the number of rows of a split."""
    return len(self.table(split))

  def get_dataset(self, *arguments: Any, **options: Any) -> tf.data.Dataset:
    """Raises NotImplementedError: `TextTask` reads the rows."""
    raise NotImplementedError("read the rows of the task")


class TextTask(seqio.Task):
  """A seqio task of a table of texts that are tokenized while they are read.

  Args:
    name: Name of the task.
    source: The tables.
    output_features: The features.
    vocabulary: Tokenizes all texts.
    max_length: Maximum number of tokens of a text, or None for no limit. Rows with a longer text
      are dropped, and so are rows with a text without tokens; negatives do not count.
    keep_all: Whether to keep all rows instead, and to cut longer texts to `max_length`.
    pair: The language pair, or None if rows have several or it is unknown.
    **options: More arguments of seqio.Task.
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
    """Returns the texts of a split."""
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
    """Returns rows like seqio.Task, padded to the requested lengths, in the order of `read_rows`.

    `EXTRA_FEATURES` are included if `sequence_length` has their length.

    Raises:
      InputError: see `check_texts`.
    """
    # Texts are tokenized and cut while they are read, so a cache has no use.
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
    # Sides without a fixed length are padded to the longest of their chunk: remove the padding.
    for name in SIDES:
      if name in lengths and not lengths[name]:
        dataset = dataset.map(
          lambda row, name=name: {**row, name: row[name][: tf.math.count_nonzero(row[name])]}
        )
    return dataset.prefetch(tf.data.AUTOTUNE)


class SeqioVocabulary(seqio.Vocabulary):
  """A `vmsst.data.vocabularies` vocabulary as a seqio vocabulary, with the same ids.

  Without an EOS token, `eos_id` is None. In seqio's class it is -1, and preprocessors would append
  this id.
  """

  def __init__(self, vocabulary: vocabularies.Vocabulary):
    super().__init__()
    self.wrapped = vocabulary

  @property
  def bos_id(self) -> None:
    """None, because seqio must not add a BOS token."""

  @property
  def eos_id(self) -> int | None:
    """Id of the EOS token, or None."""
    return self.wrapped.eos_id

  @property
  def unk_id(self) -> int | None:
    """Id of unknown pieces."""
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
  """Returns the seqio feature of token ids, with an EOS token if the vocabulary has one."""
  return seqio.Feature(
    SeqioVocabulary(vocabulary),
    add_eos=vocabulary.eos_id is not None,
    dtype=tf.int32,
  )


def pair_features(
  vocabulary: vocabularies.Vocabulary,
  *,
  negatives: int = 0,
  teacher: bool = False,
) -> Mapping[str, seqio.Feature]:
  """Returns the seqio features of a pair: two texts, two language ids, and extra features.

  Args:
    vocabulary: Tokenizes the texts.
    negatives: Number of hard negatives of a pair.
    teacher: Whether pairs have a teacher's vectors, from `vmsst data embed`.
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
  """Raises InputError if `task_feature_lengths` do not fit the data.

  Args:
    shapes: Shape of each column of a row.
    lengths: `task_feature_lengths`; see `BitextFeatureConverter`.
    passed_through: Further columns that may have a length.
  """
  possible = {*(BitextFeatureConverter.TASK_FEATURES.keys() & shapes.keys()), *passed_through}
  if "inputs" not in lengths or not possible.issuperset(lengths):
    raise errors.InputError(
      f"task_feature_lengths has {sorted(lengths)}; it needs 'inputs', and the data only has "
      f"{sorted(possible)} (negatives and teacher of bitext.files add more)"
    )
  for name in lengths.keys() & TEACHER_SIDES:
    requirement = f"{shapes[name][0]}, as the teacher's vectors have"
    same = lengths[name] == shapes[name][0]
    errors.check(same, f"task_feature_lengths[{name!r}]", lengths[name], requirement)


class BitextFeatureConverter(seqio.FeatureConverter):
  """Pads every feature to its length; model features have the names of task features.

  The length of `negatives`, a matrix, is (number of texts, length of each text). The length of
  `teacher_inputs` and `teacher_targets` is the dimension of the vectors.

  Works for pairs and single texts: the features of a call are the keys of its
  `task_feature_lengths`, e.g. only `inputs` in evaluation.
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
    """Takes the arguments of seqio.FeatureConverter; it refuses `pack`."""
    # Padding gives every row its length; checking it again would cost as much.
    super().__init__(
      pack=pack,
      use_custom_packing_ops=use_custom_packing_ops,
      **{"apply_length_check": False, **options},
    )

  def __call__(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, Any]
  ) -> tf.data.Dataset:
    """Returns the features that have a length, padded to it, and drops all others.

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
      return ds  # Padded already; another step per row would cost more than all steps so far.

    narrow = ds.map(lambda row: {name: row[name] for name in features})
    return seqio.trim_and_pad_dataset(narrow, task_feature_lengths)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the lengths of the task, unchanged."""
    return task_feature_lengths


def weight_power(weighting: str, temperature: float | None) -> float:
  """Returns the exponent that turns the size of a language pair into its weight.

  Args:
    weighting: One of WEIGHTINGS; see `files`.
    temperature: Only for "temperature".

  Raises:
    InputError: an argument is invalid.
  """
  errors.check_choice("weighting", weighting, WEIGHTINGS)
  if weighting == "temperature" and temperature is not None and temperature > 0:
    return 1 / temperature
  valid = temperature is None and weighting != "temperature"
  errors.check(valid, "temperature", temperature, "a number above 0 with 'temperature', else None")
  return 1.0 if weighting == "proportional" else 0.0


def unique_name(kind: str, *arguments: object) -> str:
  """Returns `kind`, with a number after it if other arguments have that name already.

  The same arguments always get the same name.
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
  """Registers a mixture and its tasks, unless they exist already. Returns the mixture's name.

  Args:
    name: Name of the mixture; its tasks are `NAME_deu_eng` and so on.
    sources: The texts of each language pair.
    output_features: The features of the tasks.
    vocabulary: Tokenizes the texts.
    max_length: Maximum number of tokens of a side, or None for no limit; pairs with a longer side
      are dropped.
    power: Exponent of the weights; see `weight_power`.
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
  """Returns the codes of the languages that a mixture trains on; None if they are unknown.

  Args:
    mixture_or_task_name: As in T5X's `DatasetConfig`. Only tasks of this package show their
      languages.
  """
  provider = mixture_or_task_name
  if isinstance(provider, str):
    try:
      provider = seqio.get_mixture_or_task(provider)
    except ValueError:  # `DatasetConfig.module` may register it later.
      return None
  tasks = seqio.get_subtasks(provider)
  pairs = (x.pair for x in tasks if isinstance(x, TextTask) and x.pair and "train" in x.splits)
  return readers.language_codes(language for pair in pairs for language in pair) or None


def _rate(task: seqio.Task, power: float) -> float:
  """Returns the weight of a task: a power of its number of pairs."""
  split = "train" if "train" in task.splits else "validation"
  return float(task.num_input_examples(split)) ** power
