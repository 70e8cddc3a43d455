import collections

import numpy as np
import opus_tree
import pytest
import seqio

from vmsst import errors, languages
from vmsst.data import readers, seqio_tasks, tables, vocabularies
from vmsst.tasks import mixtures

BYTES = vocabularies.ByteVocabulary()
LENGTHS = {"inputs": 12, "targets": 12, "input_language": 1, "target_language": 1}

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


def texts(rows):
  """Both sides of rows, with the names of their languages."""
  found = collections.Counter()
  by_index = {language.index: language.name for language in languages.LANGUAGES}
  for row in rows.as_numpy_iterator():
    sides = [BYTES.decode(row[side].tolist()) for side in ("inputs", "targets")]
    ids = (int(row[side][0]) for side in ("input_language", "target_language"))
    found[(*sides, *(by_index[number] for number in ids))] += 1
  return found


def test_one_task_a_language_pair_with_its_splits_weights_and_languages(data_dir):
  name = mixtures.opus("vmsst", BYTES, data_dir)
  assert name == mixtures.opus("vmsst", BYTES, data_dir) == "opus_vmsst"
  assert mixtures.opus("vmsst", BYTES, data_dir, max_length=9) == "opus_vmsst_2"
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
    found = texts(registered.get_dataset(LENGTHS, "train", shuffle=True, seed=3))
    found.update(texts(registered.get_dataset(LENGTHS, "validation", shuffle=False)))
    assert found == collections.Counter((*row, *names) for row in rows)


def test_weights_by_temperature_chosen_languages_and_lengths(data_dir, monkeypatch):
  def tasks(**options):
    mixture = seqio.MixtureRegistry.get(mixtures.opus("vmsst", BYTES, **options))
    return {task.name.split("_", 2)[2]: mixture.get_rate(task) for task in mixture.tasks}

  # What `t5x --tfds_data_dir` does.
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", data_dir)
  roots = tasks(weighting="temperature", temperature=2.0)
  assert sorted(roots.values()) == pytest.approx(sorted([5**0.5, 30**0.5, 10**0.5]))
  assert {name[-7:] for name in tasks(pivots=["en"])} == {"deu_eng", "eng_fra"}
  assert len(tasks(languages=("de", "en", "es"))) == 1
  # Longer pairs are dropped.
  name = mixtures.opus("vmsst", BYTES, data_dir, max_length=7, languages=["de", "en"])
  mixture = seqio.MixtureRegistry.get(name)
  rows = texts(mixture.get_dataset(LENGTHS, "train", shuffle=False, seed=1, num_epochs=1))
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
  name = mixtures.opus("mine", BYTES, **options, teacher=str(tmp_path / "vectors"))
  assert name != mixtures.opus("mine", BYTES, **options)
  (task,) = seqio.MixtureRegistry.get(name).tasks
  lengths = LENGTHS | dict.fromkeys(("teacher_inputs", "teacher_targets"), 3)
  seen = []
  for index in range(2):  # Hosts that read whole files would have 2 and 1.
    rows = task.get_dataset(lengths, "train", seed=1, shard_info=seqio.ShardInfo(index, 2))
    for row in rows.as_numpy_iterator():
      pair = tuple(BYTES.decode(row[side].tolist()) for side in ("inputs", "targets"))
      assert [row[f"teacher_{side}"].tolist() for side in ("inputs", "targets")] == vectors[pair]
      seen.append(pair)
    assert len(seen) == 15 * (index + 1)
  assert len(set(seen)) == 30


TAGGED_PAIRS = {
  ("de", "en"): [("a", "b", "Europarl"), ("c", "d", "Tatoeba"), ("e", "f", "Europarl")],
  ("zh_TW", "es"): [("g", "h", "Tatoeba"), ("i", "j", "Tatoeba")],
}
GERMAN, TAIWAN = (
  (languages.language("de"), languages.language("en")),
  (languages.language("zh_TW"), languages.language("es")),
)


def test_a_dataset_is_found_with_its_language_pairs(tmp_path, monkeypatch):
  folder = opus_tree.write_dataset(tmp_path, "mine", TAGGED_PAIRS)
  name, path = mixtures.find("mine", str(tmp_path))
  assert (name, str(path)) == ("opus_mine", str(folder))
  # What `t5x --tfds_data_dir` does.
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", str(tmp_path))
  assert mixtures.find("mine", None) == (name, path)
  splits = mixtures.language_pairs(path, None, None)
  assert {pair: {x: [*y.counts] for x, y in z.items()} for pair, z in splits.items()} == {
    GERMAN: {"train": [2], "validation": [1]},
    TAIWAN: {"train": [1], "validation": [1]},
  }
  assert [*mixtures.language_pairs(path, ["de", "en", "fr"], None)] == [GERMAN]
  assert [*mixtures.language_pairs(path, None, ["es"])] == [TAIWAN]
  with pytest.raises(errors.InputError, match="no language pair of these languages; choose among"):
    mixtures.language_pairs(path, None, ["tr"])
  pairs = mixtures.validation_pairs(path, splits, "Europarl")
  assert pairs == {GERMAN: [("a", "b")]}
  with pytest.raises(errors.InputError, match="corpus 'X'; choose among Europarl, Tatoeba"):
    mixtures.validation_pairs(path, splits, "X")


def test_a_missing_dataset_is_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"no dataset opus_bitext/mine in .*--recipe mine"):
    mixtures.find("mine", str(tmp_path))
