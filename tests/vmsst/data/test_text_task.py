import numpy as np
import pytest

from vmsst import languages
from vmsst.data import features, sample, sources, text_task, vocabularies

PAIR = tuple(languages.language(code) for code in ("de", "en"))
VOCABULARIES = {
  "bytes": vocabularies.ByteVocabulary(lowercase=True),
  "pieces": vocabularies.SentencePieceVocabulary(sample.vocabulary_path()),
}
LENGTHS = {"inputs": 9, "targets": 7, "input_language": 1, "target_language": 1}
MAX_LENGTH = 12
# Empty, short, cut and over-long sides, more than one call works on.
TEXTS = [("x " * (i % 17), f"Y{i} " * (i % 5)) for i in range(150)]


def make_task(vocabulary, **options):
  columns = {
    "inputs": np.array([source.encode() for source, _ in TEXTS], object),
    "targets": np.array([target.encode() for _, target in TEXTS], object),
    "input_language": np.full([len(TEXTS), 1], PAIR[0].index, np.int32),
    "target_language": np.full([len(TEXTS), 1], PAIR[1].index, np.int32),
  }
  return text_task.TextTask(
    "texts",
    sources.MemorySource({"train": lambda: columns}),
    features.pair_features(vocabulary),
    vocabulary=vocabulary,
    **{"max_length": MAX_LENGTH, **options},
  )


def expected(vocabulary):
  """Ids of both sides, with EOS tokens, by the vocabulary's own Python code."""
  for pair in TEXTS:
    if all(0 < len(ids) <= MAX_LENGTH for ids in vocabulary.tokenize(pair)):
      limits = (LENGTHS["inputs"], LENGTHS["targets"])
      yield [vocabulary.encode([text], limit)[0] for text, limit in zip(pair, limits)]  # noqa: B905


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_rows_are_those_of_the_vocabulary_padded_or_not(kind):
  vocabulary = VOCABULARIES[kind]
  task = make_task(vocabulary)
  wanted = list(expected(vocabulary))
  assert 20 < len(wanted) < 150
  padded = task.get_dataset(LENGTHS, shuffle=False)
  assert {name: spec.shape for name, spec in padded.element_spec.items()} == {
    name: [length] for name, length in LENGTHS.items()
  }
  for row, ids in zip(padded.as_numpy_iterator(), wanted, strict=True):
    for side, values in zip(("inputs", "targets"), ids, strict=True):
      np.testing.assert_array_equal(row[side], values + [0] * (LENGTHS[side] - len(values)))
  whole = task.get_dataset(LENGTHS, shuffle=False, trim_output_features=False)
  longest = max(len(row["inputs"]) for row in whole.as_numpy_iterator())
  assert longest == MAX_LENGTH + 1 if kind == "bytes" else longest > LENGTHS["inputs"]
  assert all(row["targets"].all() for row in whole.as_numpy_iterator())


def test_features_end_with_eos_only_if_the_vocabulary_has_one(data_root):
  path = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  without_end = features.pair_features(vocabularies.SentencePieceVocabulary(path))
  assert not without_end["inputs"].add_eos
  found = features.pair_features(VOCABULARIES["bytes"])
  assert found["inputs"].add_eos
  assert not found["input_language"].add_eos
  assert found["input_language"].vocabulary.vocab_size > len(languages.LANGUAGES)
