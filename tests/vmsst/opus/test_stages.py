import contextlib

import msgspec
import numpy as np
import opus_tree
import pyarrow as pa
import pytest

from vmsst import errors
from vmsst.data import dataset_shards
from vmsst.jobs import atomic_files, engines
from vmsst.opus import buckets, card, cleaning, decontamination, pipeline, recipes, stages

RECIPE = recipes.Recipe(
  "mine",
  corpora=(recipes.Corpus("Europarl"), recipes.Corpus("Tatoeba")),
  validation=recipes.Validation(share=0.2),
)

HELD_OUT = decontamination.EvaluationSentences.of(
  [("tatoeba", "Wer bist du?"), ("ntrex", "Who are you?")]
)

PLANTED = [
  ("Wer bist du?", "Who's that?"),
  ("wer BIST du", "Who goes there?"),
  ("Wer ist da?", "«Who are you!»"),
  ("Wer bist du?", "Who are you?"),
]


def _texts(numbers):
  return [(f"Satz Nummer {n} ist hier.", f"Sentence number {n} is here.") for n in numbers]


PARTS = [
  opus_tree.Part("Tatoeba", "v1", ("de", "en"), _texts(range(60, 140)), "tsv"),
  opus_tree.Part(
    "Europarl",
    "v8",
    ("de", "en"),
    [
      *_texts(range(100)),
      *_texts(range(3)),  # Again: duplicates.
      ("Satz nummer 5 ist hier!", "Sentence Number 5 is here"),  # A near duplicate.
      ("", "nothing"),
      ("gleich und gleich", "Gleich und gleich!"),
      *PLANTED,
    ],
  ),
  opus_tree.Part("Europarl", "v8", ("en", "tr"), [("one sentence", "bir cümle")] * 3, "tmx"),
  opus_tree.Part("Unwanted", "v1", ("de", "en"), _texts(range(5))),
]


@pytest.fixture
def tree(tmp_path, monkeypatch):
  # So little text in a bucket that there are several.
  monkeypatch.setattr(pipeline, "BUCKET_BYTES", 2000)
  opus_tree.write(tmp_path / "opus", PARTS)
  return tmp_path


def _build(tree, engine=None, work="work", recipe=RECIPE, held=HELD_OUT):
  engine = engine or engines.Local()
  return pipeline.build(recipe, str(tree / "opus"), held, str(tree / work), engine)


def _rows(report, split):
  shards = (dataset_shards.Records(shard["path"]) for shard in report.splits[split])
  return [records.pair(number) for records in shards for number in range(len(records))]


def test_rows_are_those_of_the_releases_without_duplicates_and_held_out_sentences(tree):
  report = _build(tree)
  assert len(report.splits["train_deu_eng"]) > 3
  train, validation = _rows(report, "train_deu_eng"), _rows(report, "validation_deu_eng")
  assert sorted(train + validation) == sorted(_texts(range(140)))
  assert len(validation) == 20 + 8  # A fifth of 100 and of 40.
  assert train != sorted(train)
  assert _rows(report, "train_eng_tur") == [("one sentence", "bir cümle")]
  counts = {"read": 104, "duplicate": 3, "near_duplicate": 1, "kept": 100}
  assert report.merged["deu_eng", "Europarl"] == counts
  assert report.merged["deu_eng", "Tatoeba"]["duplicate"] == 40
  made = report.cleaned["Europarl.v8.deu_eng"]
  assert made["counts"] == {"read": 110, "empty": 1, "copy": 1, "held_out": 4, "kept": 104}
  assert made["held_out"] == {"tatoeba": 3, "ntrex": 2}
  assert report.taken["deu_eng", "Tatoeba"] == [32, 8]


def test_the_data_do_not_depend_on_workers_nor_on_the_folder(tree):
  one = _build(tree)
  two = _build(tree, engines.Local(2), "other")
  assert two.content == one.content
  assert two.configuration == one.configuration
  assert card.text(two) == card.text(one)
  other_seed = _build(tree, work="third", recipe=msgspec.structs.replace(RECIPE, seed=1))
  assert other_seed.content != one.content


def _times(work):
  return {path: path.stat().st_mtime_ns for path in work.rglob("*.parquet")}


def test_only_what_is_not_there_or_was_made_of_other_input_is_made(tree):
  first = _build(tree)
  before = _times(tree / "work" / ".vmsst")
  assert _build(tree).content == first.content
  assert _times(tree / "work" / ".vmsst") == before
  # Without the result, or with half of the file, a unit was not done.
  (tree / "work" / ".vmsst" / "clean" / "Tatoeba.v1.deu_eng.parquet.json").write_text('{"key":')
  cut = tree / "work" / ".vmsst" / "merge" / "eng_tur" / "00000.parquet"
  cut.write_bytes(cut.read_bytes()[:-3])
  assert _build(tree).content == first.content
  again = {
    path.name for path, time in _times(tree / "work" / ".vmsst").items() if time != before[path]
  }
  assert again == {"Tatoeba.v1.deu_eng.parquet", "00000.parquet"}
  # One language pair gets another row.
  before = _times(tree / "work" / ".vmsst")
  opus_tree.write(tree / "opus", [opus_tree.Part("Tatoeba", "v1", ("en", "tr"), [("two", "iki")])])
  report = _build(tree)
  assert len(_rows(report, "train_eng_tur")) == 2
  again = {
    path.parent.name
    for path, time in _times(tree / "work" / ".vmsst").items()
    if time != before.get(path)
  }
  assert again == {"clean", "eng_tur"}


@pytest.mark.parametrize("stage", ["clean", "merge", "write"])
def test_a_full_disk_ends_the_build_and_the_same_call_resumes(tree, monkeypatch, stage):
  folder = {"clean": "clean", "merge": "merge", "write": "shards"}[stage]

  @contextlib.contextmanager
  def opening(path):
    full = folder in str(path) and "deu_eng" in str(path)
    with atomic_file(path) as stream, open("/dev/full", "wb", buffering=0) as nowhere:
      yield nowhere if full else stream

  atomic_file = atomic_files.atomic_file
  with monkeypatch.context() as patch:
    patch.setattr(atomic_files, "atomic_file", opening)
    with pytest.raises(errors.InputError, match=rf"{stage} of .*No space left.*deu_eng.*to resume"):
      _build(tree)
  assert not list(tree.rglob(".vmsst-part-*"))
  assert _build(tree).content == _build(tree, work="undisturbed").content


def test_faults_are_counted_and_placed_and_the_rest_is_kept(tree):
  rows = [("gut und schön", "well and good"), ("noch ein Satz", "another sentence")]
  part = opus_tree.Part("Tatoeba", "v1", ("de", "en"), rows, "tsv")
  (path,) = opus_tree.write(tree / "opus", [part])
  path.write_bytes(path.read_bytes()[:-6])  # Without the end, where gzip has its checksum.
  report = _build(tree)
  made = report.cleaned["Tatoeba.v1.deu_eng"]
  assert made["counts"]["kept"] == 2
  ((place, what),) = made["faults"]
  assert place.startswith(str(path))
  assert f": 1 × {what}" in card.text(report)
  assert str(tree) not in card.text(report)


def test_the_card_says_where_the_data_are_from_and_what_was_left_out(tree):
  text = card.text(_build(tree))
  assert "| Europarl | v8 | deu_eng | Europarl/v8/moses/de-en.txt.zip |" in text
  assert "CC BY 4.0: the license of Europarl v8" in text
  header, row = (
    next(line for line in text.splitlines() if line.startswith(start)).strip("| ").split(" | ")
    for start in ("| languages | corpus", "| deu_eng | Europarl")
  )
  assert dict(zip(header, row, strict=True)) == {
    "languages": "deu_eng", "corpus": "Europarl", "read": "110", "empty": "1", "copy": "1",
    "held out": "4", "duplicate": "3", "near duplicate": "1", "kept": "100", "training": "80",
    "validation": "20",
  }  # fmt: skip
  assert "| tatoeba | 1 | 3 |" in text
  assert '"name": "Europarl"' in text


def test_ranks_are_random_and_depend_on_key_corpus_and_seed_alone():
  keys_N = np.arange(4000, dtype=np.uint64)
  tags_N = np.arange(4000) % 2
  ranks_N = stages.ranks(keys_N, tags_N, ["a", "b"], 0)
  assert abs(ranks_N.astype(float).mean() / 2**64 - 0.5) < 0.02
  assert abs(np.corrcoef(keys_N, ranks_N.astype(float))[0, 1]) < 0.05
  last_N = stages.ranks(keys_N[-5:], tags_N[-5:] ^ 1, ["b", "a"], 0)
  np.testing.assert_array_equal(last_N, ranks_N[-5:])
  assert not np.any(stages.ranks(keys_N, tags_N, ["a", "b"], 1) == ranks_N)
  assert not np.any(stages.ranks(keys_N, tags_N ^ 1, ["a", "b"], 0) == ranks_N)


def test_nothing_to_build_is_an_error_that_says_why(tree):
  with pytest.raises(errors.InputError, match=r"uses none of the 4 releases .*Europarl\.v8"):
    _build(tree, recipe=recipes.Recipe("mine", corpora=(recipes.Corpus("UNPC"),)))
  strict = recipes.Recipe("mine", unlisted=True, cleaning=cleaning.Cleaning(max_characters=3))
  with pytest.raises(errors.InputError, match=r"no pair of texts is left: 198 read, .*too_long"):
    _build(tree, recipe=strict)


def _numbered(count):
  """Made-up rows: key, texts; keys of all 64 bits, empty and long texts."""
  for i in range(count):
    key = (i * 0x9E3779B97F4A7C15) % 2**64
    yield key, ("ä" * (i % 5)).encode(), ("文" * (i % 11) + str(i)).encode()


def _write_buckets(path, count=500):
  with buckets.writing(str(path), 4) as writer:
    for row in _numbered(count):
      writer.add(*row)


def _read_bucket(path, bucket):
  tables = list(buckets.read(str(path), buckets.CLEANED, bucket))
  names = ("key", "source", "target")
  return [
    row for table in tables for row in zip(*(table[x].to_pylist() for x in names), strict=True)
  ]


@pytest.mark.parametrize("memory_bytes", [1, 2000, buckets.MEMORY_BYTES])
def test_rows_come_back_by_bucket_in_their_order(tmp_path, monkeypatch, memory_bytes):
  monkeypatch.setattr(buckets, "MEMORY_BYTES", memory_bytes)
  path = tmp_path / "new" / "x.parquet"
  _write_buckets(path)
  for bucket in range(4):
    assert _read_bucket(path, bucket) == [row for row in _numbered(500) if row[0] % 4 == bucket]
  assert [entry.name for entry in path.parent.iterdir()] == ["x.parquet"]


def test_merged_tables_and_empty_files_come_back(tmp_path, monkeypatch):
  monkeypatch.setattr(buckets, "_GROUP_ROWS", 7)
  texts = [str(i).encode() for i in range(50)]
  rows = pa.table([np.arange(50), np.arange(50) % 3, texts, texts[::-1]], buckets.MERGED)
  buckets.write_table(str(tmp_path / "x"), rows)
  groups = list(buckets.read(str(tmp_path / "x"), buckets.MERGED))
  assert [len(group) for group in groups] == [7] * 7 + [1]
  assert pa.concat_tables(groups).to_pydict() == rows.to_pydict()
  _write_buckets(tmp_path / "y", 0)
  assert list(buckets.read(str(tmp_path / "y"), buckets.CLEANED, 2)) == []
  buckets.write_table(str(tmp_path / "z"), buckets.CLEANED.empty_table())
  assert [len(table) for table in buckets.read(str(tmp_path / "z"), buckets.CLEANED)] in ([], [0])


@pytest.mark.parametrize("damage", ["cut", "page"])
def test_damaged_files_are_named(tmp_path, damage):
  path = tmp_path / "x.parquet"
  _write_buckets(path)
  content = bytearray(path.read_bytes())
  if damage == "cut":
    content = content[:-7]
  else:
    content[100] ^= 1
  path.write_bytes(content)
  with pytest.raises(errors.InputError, match=r"x\.parquet: damaged .*delete it"):
    [list(buckets.read(str(path), buckets.CLEANED, bucket)) for bucket in range(4)]
