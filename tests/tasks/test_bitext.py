import collections

import line_files
import numpy as np
import opus_tree
import pytest
import seqio
import tiny_tokenizers

from vmsst import errors, languages
from vmsst.data import readers, sample, seqio_tasks, tables, vocabularies
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


def _texts(dataset, feature="inputs"):
  return [BYTES.decode(row[feature].tolist()) for row in dataset.as_numpy_iterator()]


def test_one_task_for_each_language_pair_registered_once(corpus):
  name = _files(corpus)
  assert _files(corpus) == name
  assert _files(corpus, max_length=9) != name
  mixture = seqio.MixtureRegistry.get(name)
  assert [task.name for task in mixture.tasks] == [f"{name}_deu_eng", f"{name}_fra_eng"]
  assert [task.num_input_examples("train") for task in mixture.tasks] == [40, 5]
  assert mixture.splits == ("train",)


def test_changed_files_are_read_again(tmp_path):
  path, model = tmp_path / "data" / "x.de-en.tsv", tmp_path / "pieces.model"

  def rows(pieces, pairs, value):
    line_files.write_tsv(path, pairs)
    model.write_bytes(tiny_tokenizers.sentencepiece_model([pieces]))
    np.save(f"{path}.npy", np.full((len(pairs), 2, 1), value, np.float32))
    vocabulary = vocabularies.SentencePieceVocabulary(str(model))
    name = bitext.files(str(path), vocabulary, teacher=str(tmp_path))
    (task,) = seqio.MixtureRegistry.get(name).tasks
    dataset = task.get_dataset(LENGTHS | {"teacher_inputs": 1}, shuffle=False)
    return [
      (vocabulary.decode(row["inputs"]), row["teacher_inputs"].item())
      for row in dataset.as_numpy_iterator()
    ]

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
  with pytest.raises(errors.InputError, match="known: proportional, uniform, temperature"):
    _files(corpus, weighting="even")


def test_files_are_opened_when_data_is_read(corpus):
  (corpus / "d.es-en.tsv.gz").write_bytes(b"broken")
  mixture = seqio.MixtureRegistry.get(_files(corpus))
  with pytest.raises(errors.InputError, match=r"d\.es-en\.tsv\.gz:1: the compressed data"):
    mixture.get_dataset(LENGTHS)


def test_a_language_pair_without_usable_pairs_is_an_error(corpus):
  mixture = seqio.MixtureRegistry.get(_files(corpus, max_length=1))
  with pytest.raises(errors.InputError, match="are left: 2 of 42 pairs have an empty text"):
    mixture.get_dataset(LENGTHS)


def test_validation_files_are_a_separate_split(corpus):
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
  for feature, code in (("inputs", "de"), ("targets", "en")):
    assert _texts(german, feature)[3] == sample.sentence(3, code, "validation")
  everything = seqio.MixtureRegistry.get(bitext.sample(BYTES, num_meanings=2))
  assert len(everything.tasks) == len(sample.LANGUAGES) - 1
  with pytest.raises(errors.InputError, match="does not include Swahili"):
    bitext.sample(BYTES, languages=["swh"])


# --------------------------------------------------------------------------------------------
# Datasets of `vmsst data build`

PAIR_LENGTHS = {"inputs": 12, "targets": 12, "input_language": 1, "target_language": 1}
PAIRS = {
  ("de", "en"): [(f"Haus {i}", f"house {i}") for i in range(31)],
  ("fr", "en"): [(f"maison {i}", f"house {i}") for i in range(11)],
  ("zh_TW", "es"): [(f"房子 {i}", f"casa {i}") for i in range(6)],
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  opus_tree.write_dataset(folder, "vmsst", PAIRS)
  return str(folder)


def language_texts(rows):
  """Returns the counts of pairs, as both texts and the names of their languages."""
  counts = collections.Counter()
  by_index = {language.index: language.name for language in languages.LANGUAGES}
  for row in rows.as_numpy_iterator():
    texts = [BYTES.decode(row[name].tolist()) for name in ("inputs", "targets")]
    ids = (int(row[name][0]) for name in ("input_language", "target_language"))
    counts[(*texts, *(by_index[number] for number in ids))] += 1
  return counts


def test_one_task_a_language_pair_with_its_splits_weights_and_languages(data_dir):
  name = bitext.opus("vmsst", BYTES, data_dir)
  assert name == bitext.opus("vmsst", BYTES, data_dir) == "opus_vmsst"
  assert bitext.opus("vmsst", BYTES, data_dir, max_length=9) == "opus_vmsst_2"
  mixture = seqio.MixtureRegistry.get(name)
  assert {task.name: mixture.get_rate(task) for task in mixture.tasks} == {
    "opus_vmsst_cmnHant_spa": 5,
    "opus_vmsst_deu_eng": 30,
    "opus_vmsst_eng_fra": 10,
  }
  assert set(mixture.splits) == {"train", "validation"}
  codes = seqio_tasks.languages(name)
  assert codes == ["cmn_Hant", "deu", "eng", "fra", "spa"]
  for task, names, rows in (
    ("deu_eng", ("German", "English"), PAIRS["de", "en"]),
    ("eng_fra", ("English", "French"), [row[::-1] for row in PAIRS["fr", "en"]]),
    ("cmnHant_spa", ("Chinese (traditional)", "Spanish"), PAIRS["zh_TW", "es"]),
  ):
    registered = seqio.TaskRegistry.get(f"{name}_{task}")
    counts = language_texts(registered.get_dataset(PAIR_LENGTHS, "train", shuffle=True, seed=3))
    counts += language_texts(registered.get_dataset(PAIR_LENGTHS, "validation", shuffle=False))
    assert counts == collections.Counter((*row, *names) for row in rows)


def test_temperature_languages_pivots_and_maximum_length(data_dir, monkeypatch):
  def tasks(**options):
    mixture = seqio.MixtureRegistry.get(bitext.opus("vmsst", BYTES, **options))
    return {task.name.split("_", 2)[2]: mixture.get_rate(task) for task in mixture.tasks}

  # `t5x --tfds_data_dir` sets this.
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", data_dir)
  roots = tasks(weighting="temperature", temperature=2.0)
  assert sorted(roots.values()) == pytest.approx(sorted([5**0.5, 30**0.5, 10**0.5]))
  assert {name[-7:] for name in tasks(pivots=["en"])} == {"deu_eng", "eng_fra"}
  assert len(tasks(languages=("de", "en", "es"))) == 1
  # Longer pairs are dropped.
  name = bitext.opus("vmsst", BYTES, data_dir, max_length=7, languages=["de", "en"])
  mixture = seqio.MixtureRegistry.get(name)
  rows = language_texts(
    mixture.get_dataset(PAIR_LENGTHS, "train", shuffle=False, seed=1, num_epochs=1)
  )
  assert rows == collections.Counter(
    (f"Haus {i}", f"house {i}", "German", "English") for i in range(1, 10)
  )


def test_vectors_of_a_teacher_stay_with_their_pairs(tmp_path):
  pairs_in_batch = {("de", "en"): PAIRS["de", "en"]}
  folder = opus_tree.write_dataset(tmp_path, "mine", pairs_in_batch, shards=3)
  vectors = {}
  for file in readers.find_bitext(f"{folder}/*.tfrecord*"):
    pairs = list(readers.read_pairs(file))
    array_N2S = np.array([[[len(x), hash(x) % 997, i] for i, x in enumerate(y)] for y in pairs])
    path = tmp_path / tables.vectors_path("vectors", file)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array_N2S.astype(np.float32))
    vectors |= dict(zip(pairs, array_N2S.tolist(), strict=True))
  options = {"data_dir": str(tmp_path)}
  name = bitext.opus("mine", BYTES, **options, teacher=str(tmp_path / "vectors"))
  assert name != bitext.opus("mine", BYTES, **options)
  (task,) = seqio.MixtureRegistry.get(name).tasks
  lengths = PAIR_LENGTHS | dict.fromkeys(("teacher_inputs", "teacher_targets"), 3)
  seen = []
  for index in range(2):  # Three files cannot be divided evenly among two hosts.
    rows = task.get_dataset(lengths, "train", seed=1, shard_info=seqio.ShardInfo(index, 2))
    for row in rows.as_numpy_iterator():
      pair = tuple(BYTES.decode(row[name].tolist()) for name in ("inputs", "targets"))
      assert [row[f"teacher_{name}"].tolist() for name in ("inputs", "targets")] == vectors[pair]
      seen.append(pair)
    assert len(seen) == 15 * (index + 1)
  assert len(set(seen)) == 30


def test_missing_datasets_languages_and_corpora_are_errors(data_dir, tmp_path):
  with pytest.raises(errors.InputError, match=r"no dataset opus_bitext/mine in .*--recipe mine"):
    bitext.find("mine", str(tmp_path))
  _, folder = bitext.find("vmsst", data_dir)
  with pytest.raises(errors.InputError, match="no pair of these languages; choose from"):
    bitext.language_pairs(folder, None, ["tr"])
  splits = bitext.language_pairs(folder, None, None)
  with pytest.raises(errors.InputError, match="no validation pairs from the corpus 'X'; choose"):
    bitext.validation_pairs(folder, splits, "X")
