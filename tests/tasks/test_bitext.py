import line_files
import numpy as np
import pytest
import seqio

from vmsst import errors
from vmsst.data import sources, vocabularies
from vmsst.languages import language
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


@pytest.mark.parametrize(
  ("options", "expected"),
  [
    ({}, [40, 5]),
    ({"weighting": "uniform"}, [1, 1]),
    ({"weighting": "temperature", "temperature": 2.0}, [40**0.5, 5**0.5]),
  ],
)
def test_weights_of_language_pairs(corpus, options, expected):
  mixture = seqio.MixtureRegistry.get(_files(corpus, **options))
  assert [mixture.get_rate(task) for task in mixture.tasks] == pytest.approx(expected)


def test_wrong_weighting_is_refused(corpus):
  for options, message in (
    ({"weighting": "even"}, "use proportional, uniform, temperature"),
    ({"weighting": "temperature"}, "set a temperature with"),
    ({"temperature": 2.0}, "set a temperature with"),
    ({"weighting": "temperature", "temperature": 0.0}, "set it above 0"),
  ):
    with pytest.raises(errors.InputError, match=message):
      _files(corpus, **options)


def test_files_are_opened_only_when_data_is_asked_for(corpus):
  (corpus / "d.es-en.tsv.gz").write_bytes(b"broken")
  mixture = seqio.MixtureRegistry.get(_files(corpus))
  with pytest.raises(errors.InputError, match=r"d\.es-en\.tsv\.gz: corrupt gzip"):
    mixture.get_dataset(LENGTHS)


def test_a_pair_of_which_nothing_is_left_is_an_error(corpus):
  mixture = seqio.MixtureRegistry.get(_files(corpus, max_length=1))
  with pytest.raises(errors.InputError, match="no pair is left: of 42 pairs, 2 have an empty side"):
    mixture.get_dataset(LENGTHS)


def test_validation_files_are_a_split_of_their_own(corpus):
  name = _files(corpus, validation_patterns=str(corpus / "held.*"))
  mixture = seqio.MixtureRegistry.get(name)
  dataset = mixture.get_dataset(LENGTHS, split="validation", shuffle=False, num_epochs=1)
  assert _texts(dataset, "targets") == ["V1", "V2"]


@pytest.mark.parametrize("memory_limit", [sources.MEMORY_LIMIT, 0])
def test_a_mixture_samples_its_tasks_at_their_rates_and_ends_with_the_first(
  corpus, memory_limit, monkeypatch
):
  monkeypatch.setattr(sources.StreamSource, "shuffle_buffer", 10)
  name = _files(corpus, weighting="temperature", temperature=2.0, memory_limit=memory_limit)
  mixture = seqio.MixtureRegistry.get(name)
  rows = mixture.get_dataset(LENGTHS, shuffle=True, seed=7).take(3000).as_numpy_iterator()
  french = [row["input_language"][0] == language("fr").index for row in rows]
  assert np.mean(french) == pytest.approx(5**0.5 / (5**0.5 + 40**0.5), abs=0.03)
  for epochs in (1, 2):  # ends with the task that ends first: here the smaller one
    found = _texts(mixture.get_dataset(LENGTHS, shuffle=True, seed=7, num_epochs=epochs))
    assert sorted(text for text in found if text[0] == "c") == sorted(
      [f"c{i}" for i in range(5)] * epochs
    )


def test_the_sample_corpus_is_a_mixture_too():
  sample = pytest.importorskip("vmsst.data.sample")
  name = bitext.sample(BYTES, languages=["de", "tr"], num_meanings=20)
  assert bitext.sample(BYTES, languages=["de", "tr"], num_meanings=20) == name
  mixture = seqio.MixtureRegistry.get(name)
  assert [task.num_input_examples("train") for task in mixture.tasks] == [20, 20]
  german = mixture.tasks[0].get_dataset(split="validation", shuffle=False)
  assert _texts(german)[3] == sample.sentence(3, "de", "validation")
  assert _texts(german, "targets")[3] == sample.sentence(3, "en", "validation")
  everything = seqio.MixtureRegistry.get(bitext.sample(BYTES, num_meanings=2))
  assert len(everything.tasks) == len(sample.LANGUAGES) - 1
  with pytest.raises(errors.InputError, match="no Swahili"):
    bitext.sample(BYTES, languages=["swh"])
