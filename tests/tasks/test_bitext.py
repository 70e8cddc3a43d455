import line_files
import numpy as np
import pytest
import seqio
import tiny_tokenizers

from vmsst import errors
from vmsst.data import sample, vocabularies
from vmsst.tasks import bitext

BYTES = vocabularies.ByteVocabulary()
LENGTHS = {"inputs": 8, "targets": 6, "input_language": 1, "target_language": 1}


@pytest.fixture
def corpus(tmp_path):
  for name, count in {"a.de-en.tsv.gz": 30, "b.de-en.tsv.gz": 10, "c.fr-en.tsv.gz": 5}.items():
    rows = [(f"{name[0]}{i}", f"{name[0].upper()}{i}") for i in range(count)]
    line_files.write_tsv(tmp_path / name, [("", "no source"), *rows])
  line_files.write_tsv(tmp_path / "held.de-en.tsv", [("v1", "V1"), ("v2", "V2")])
  return tmp_path


def _files(corpus, **options):
  return bitext.files(str(corpus / "*.tsv.gz"), BYTES, **options)


def _texts(dataset, side="inputs"):
  return [BYTES.decode(row[side].tolist()) for row in dataset.as_numpy_iterator()]


def test_one_task_for_each_language_pair_registered_once(corpus):
  name = _files(corpus)
  assert _files(corpus) == name
  assert _files(corpus, max_length=9) != name
  mixture = seqio.MixtureRegistry.get(name)
  assert [task.name for task in mixture.tasks] == [f"{name}_deu_eng", f"{name}_fra_eng"]
  assert [task.num_input_examples("train") for task in mixture.tasks] == [40, 5]
  assert mixture.splits == ("train",)


def test_what_has_changed_is_read_again(tmp_path):
  path, model = tmp_path / "data" / "x.de-en.tsv", tmp_path / "pieces.model"

  def rows(pieces, pairs, value):
    line_files.write_tsv(path, pairs)
    model.write_bytes(tiny_tokenizers.sentencepiece_model([pieces]))
    np.save(f"{path}.npy", np.full((len(pairs), 2, 1), value, np.float32))
    vocabulary = vocabularies.SentencePieceVocabulary(str(model))
    name = bitext.files(str(path), vocabulary, teacher=str(tmp_path))
    (task,) = seqio.MixtureRegistry.get(name).tasks
    found = task.get_dataset(LENGTHS | {"teacher_inputs": 1}, shuffle=False).as_numpy_iterator()
    return [(vocabulary.decode(row["inputs"]), row["teacher_inputs"].item()) for row in found]

  assert rows("one two", [("one", "two")], 3) == [("one", 3)]
  assert rows("one two", [("two", "one")] * 2, 4) == [("two", 4)] * 2
  assert rows("one two", [("two", "one")] * 2, 5) == [("two", 5)] * 2
  assert rows("six two", [("six", "two")] * 2, 5) == [("six", 5)] * 2


def test_weights_of_language_pairs(corpus):
  for options, expected in (
    ({}, [40, 5]),
    ({"weighting": "uniform"}, [1, 1]),
    ({"weighting": "temperature", "temperature": 2.0}, [40**0.5, 5**0.5]),
  ):
    mixture = seqio.MixtureRegistry.get(_files(corpus, **options))
    assert [mixture.get_rate(task) for task in mixture.tasks] == pytest.approx(expected)
  for options, message in (
    ({"weighting": "even"}, "known: proportional, uniform, temperature"),
    ({"weighting": "temperature"}, "temperature is None; set it to a number above 0"),
    ({"temperature": 2.0}, "temperature is 2.0; set it to None"),
  ):
    with pytest.raises(errors.InputError, match=message):
      _files(corpus, **options)


def test_files_are_opened_only_when_data_is_asked_for(corpus):
  (corpus / "d.es-en.tsv.gz").write_bytes(b"broken")
  mixture = seqio.MixtureRegistry.get(_files(corpus))
  with pytest.raises(errors.InputError, match=r"d\.es-en\.tsv\.gz: cannot be read"):
    mixture.get_dataset(LENGTHS)


def test_a_pair_of_which_nothing_is_left_is_an_error(corpus):
  mixture = seqio.MixtureRegistry.get(_files(corpus, max_length=1))
  with pytest.raises(errors.InputError, match="is left: of 42 pairs, 2 have an empty side"):
    mixture.get_dataset(LENGTHS)


def test_validation_files_are_a_split_of_their_own(corpus):
  name = _files(corpus, validation_patterns=str(corpus / "held.*"))
  mixture = seqio.MixtureRegistry.get(name)
  dataset = mixture.get_dataset(LENGTHS, split="validation", shuffle=False, num_epochs=1)
  assert _texts(dataset, "targets") == ["V1", "V2"]


def test_the_sample_corpus_is_a_mixture_too():
  name = bitext.sample(BYTES, languages=["de", "tr"], num_meanings=20)
  assert bitext.sample(BYTES, languages=["de", "tr"], num_meanings=20) == name
  mixture = seqio.MixtureRegistry.get(name)
  assert [task.num_input_examples("train") for task in mixture.tasks] == [20, 20]
  german = mixture.tasks[0].get_dataset(split="validation", shuffle=False)
  for side, code in (("inputs", "de"), ("targets", "en")):
    assert _texts(german, side)[3] == sample.sentence(3, code, "validation")
  everything = seqio.MixtureRegistry.get(bitext.sample(BYTES, num_meanings=2))
  assert len(everything.tasks) == len(sample.LANGUAGES) - 1
  with pytest.raises(errors.InputError, match="no Swahili"):
    bitext.sample(BYTES, languages=["swh"])
