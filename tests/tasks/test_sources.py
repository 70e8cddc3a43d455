import gzip
import json

import numpy as np
import pytest
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.bitext import readers
from vmsst.languages import language
from vmsst.tasks import sources
from vmsst.text import vocabularies

PAIRS = [("Hallo Welt", "hello world"), ("grün", "green"), ("", "empty"), ("ja  ja", "yes yes")]
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="de-DE"><seg>Hallo
 <bpt i="1">&lt;b&gt;</bpt>Welt<ept i="1">&lt;/b&gt;</ept></seg></tuv>
<tuv xml:lang="EN"><seg>hello <hi>world</hi></seg></tuv>
<tuv xml:lang="fr"><seg>salut</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>green &amp; blue</seg></tuv>
<tuv xml:lang="de"><seg>grün</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>rien</seg></tuv></tu>
<tu><tuv lang="de"><seg>allein</seg></tuv></tu>
</body></tmx>
"""


def _write(path, text, compress=False):
  data = text if isinstance(text, bytes) else text.encode()
  path.write_bytes(gzip.compress(data) if compress else data)
  return str(path)


def _read(path, **options):
  (bitext,) = readers.find_bitext(str(path), **options)
  return list(readers.read_pairs(bitext))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_format_gives_the_same_pairs(tmp_path, suffix):
  tsv = "\ufeff" + "".join(f"{a}\t{b}\r\n" for a, b in PAIRS)
  nested = "".join(json.dumps({"translation": {"en": b, "de": a}}) + "\n" for a, b in PAIRS)
  flat = "".join(json.dumps({"deu": a, "eng": b, "score": 1}) + "\n" for a, b in PAIRS)
  named = "".join(json.dumps({"src": a, "tgt": b}) + "\n" for a, b in PAIRS)
  for name, text in [("a.tsv", tsv), ("b.jsonl", nested), ("c.jsonl", flat), ("d.jsonl", named)]:
    path = tmp_path / name.replace(".", ".de-en.")
    path = _write(path.with_name(path.name + suffix), text, bool(suffix))
    assert _read(path, fields=("src", "tgt") if name[0] == "d" else None) == PAIRS
  for column, code in enumerate(("de", "en")):
    lines = "".join(f"{pair[column]}\n" for pair in PAIRS)
    path = _write(tmp_path / f"e.de-en.{code}{suffix}", lines, bool(suffix))
    # Either file stands for both.
    if column:
      assert _read(path) == PAIRS
      assert readers.find_bitext(str(tmp_path / "e.*")) == readers.find_bitext(path)
  tmx = _write(tmp_path / f"f.de-en.tmx{suffix}", TMX, bool(suffix))
  assert _read(tmx) == [("Hallo Welt", "hello world"), ("grün", "green & blue"), ("allein", "")]


def test_languages_come_from_the_name_or_are_given(tmp_path):
  for name, expected in {
    "deu-eng.tsv.gz": ("deu", "eng"),
    "swh-eng.lafand.tsv.gz": ("swh", "eng"),
    "Europarl.v8.fr-en.tsv": ("fra", "eng"),
    "x.zh-TW-en.tmx": ("cmn", "eng"),
    "OpenSubtitles.pt_BR-es.jsonl": ("por", "spa"),
  }.items():
    assert tuple(x.iso639_3 for x in readers.languages_of(name)) == expected
  assert readers.languages_of("x.zh-TW-en.tmx")[0] == language("zh-TW") != language("zh")
  for name in ("corpus.tsv", "train-dev.tsv", "de-en.fr-en.tsv"):
    with pytest.raises(errors.InputError, match="its name holds"):
      readers.languages_of(name)
  path = _write(tmp_path / "corpus.tsv", "ja\tyes\n")
  (bitext,) = readers.find_bitext(path, languages=("German", "en"))
  assert (bitext.source, bitext.target) == (language("de"), language("en"))


def test_moses_languages_without_a_pair_in_the_name(tmp_path):
  for code in ("de", "en"):
    _write(tmp_path / f"train.{code}", "a\n")
  (bitext,) = readers.find_bitext(str(tmp_path / "train.*"))
  assert (bitext.source, bitext.target) == (language("de"), language("en"))
  _write(tmp_path / "train.fr", "a\n")
  with pytest.raises(errors.InputError, match="files of 3 languages"):
    readers.find_bitext(str(tmp_path / "train.en"))
  (bitext,) = readers.find_bitext(str(tmp_path / "train.*"), languages=("fr", "de"))
  assert bitext.paths == (str(tmp_path / "train.fr"), str(tmp_path / "train.de"))


BROKEN = {
  "columns.de-en.tsv": (b"a\tb\nc\n", r"columns.de-en.tsv:2: 1 columns where 2"),
  "first.de-en.tsv": (b"a b\n", r"first.de-en.tsv:1: 1 columns where 2"),
  "utf8.de-en.tsv": (b"a\tb\nc\xff\td\n", r"utf8.de-en.tsv:2: not UTF-8: byte 0xff at byte 2"),
  "empty.de-en.tsv": (b"", r"empty.de-en.tsv: holds no pair of German and English"),
  "cut.de-en.tsv.gz": (gzip.compress(b"a\tb\n" * 99)[:-9], r"cut.de-en.tsv.gz: truncated gzip"),
  "not.de-en.tsv.gz": (b"a\tb\n", r"not.de-en.tsv.gz: corrupt gzip"),
  "a.de-en.jsonl": (b'{"de": "x", "en": "y"}\n{"de": \n', r"a.de-en.jsonl:2: not JSON"),
  "b.de-en.jsonl": (b'{"de": "x", "fr": "y"}\n', r"b.de-en.jsonl:1: 'English'.*\['de', 'fr'\]"),
  "c.de-en.jsonl": (b'{"de": "x", "en": 3}\n', r"c.de-en.jsonl:1: 'English'"),
  "d.de-en.jsonl": (b"[1]\n", r"d.de-en.jsonl:1: not a JSON object"),
  "e.de-en.jsonl": (b'{"de": "\\ud800", "en": "y"}\n', r"e.de-en.jsonl:1: .*surrogate"),
  "f.de-en.tmx": (b"<tmx><tu></tmx>", r"f.de-en.tmx:1: not well-formed XML"),
  "g.de-en.tmx": (b"<tmx></tmx>", r"g.de-en.tmx: holds no pair"),
  "h.de-en.tmx": (
    b'<!DOCTYPE t [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><t>&c;</t>',
    r"h.de-en.tmx:1: the file has a document type definition",
  ),
  "i.de-en.tmx": (b'<!DOCTYPE t SYSTEM "t.dtd">\n<t>&c;</t>', r"i.de-en.tmx:2: .*entity 'c'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named_with_the_line(tmp_path, name):
  content, message = BROKEN[name]
  (tmp_path / name).write_bytes(content)
  with pytest.raises(errors.InputError, match=message):
    _read(tmp_path / name)


def test_unequal_moses_files_tell_both_counts(tmp_path):
  _write(tmp_path / "x.de-en.de", "a\nb\nc\n")
  _write(tmp_path / "x.de-en.en", "a\nb\n")
  with pytest.raises(errors.InputError, match=r"en:2: ends here with 2 lines, but .*de has 3"):
    _read(tmp_path / "x.de-en.de")
  _write(tmp_path / "x.de-en.en", "a\nb\nc\nd\ne\n")
  with pytest.raises(errors.InputError, match=r"de:3: ends here with 3 lines, but .*en has 5"):
    _read(tmp_path / "x.de-en.de")


def test_missing_files_tell_what_is_nearby(tmp_path):
  _write(tmp_path / "x.de-en.de", "a\n")
  with pytest.raises(errors.InputError, match=r"no file matches .*nope.*x\.de-en\.de"):
    readers.find_bitext(str(tmp_path / "nope" / "*.tsv"))
  with pytest.raises(errors.InputError, match="counterpart in English is missing"):
    readers.find_bitext(str(tmp_path / "x.de-en.de"))
  with pytest.raises(errors.InputError, match="unknown format"):
    readers.find_bitext(_write(tmp_path / "x.zip", "a"))


def _source(count=10, eos_id=1, **options):
  rows, counts = sources.pair_rows(
    [(f"source {i}", f"t{i}") for i in range(count)] + [("", "x"), ("y" * 99, "z")],
    language("de"),
    language("en"),
    vocabularies.ByteVocabulary(),
    max_length=40,
  )
  assert (counts.kept, counts.empty, counts.too_long) == (count, 1, 1)
  return sources.InMemorySource({"train": lambda: rows}, eos_id=eos_id, **options)


def _targets(dataset):
  decode = vocabularies.ByteVocabulary().decode
  return [decode(row["targets"].tolist()) for row in dataset.as_numpy_iterator()]


def test_rows_in_memory_are_whole_and_in_order():
  source = _source()
  assert source.num_input_examples("train") == 10
  rows = list(source.get_dataset(shuffle=False).as_numpy_iterator())
  expected = vocabularies.ByteVocabulary().encode([f"source {i}" for i in range(10)], 99)
  assert [row["inputs"].tolist() for row in rows] == expected
  assert {int(row["input_language"][0]) for row in rows} == {language("de").index}
  assert {row["target_language"].dtype for row in rows} == {np.dtype("int32")}
  cut = next(source.get_dataset(shuffle=False, sequence_length={"inputs": 4}).as_numpy_iterator())
  assert cut["inputs"].tolist() == [*expected[0][:3], 1]
  assert cut["targets"].tolist() == rows[0]["targets"].tolist()


def test_every_epoch_is_a_new_order_of_all_rows():
  stream = _targets(_source().get_dataset(shuffle=True, seed=3, num_epochs=3))
  epochs = [stream[:10], stream[10:20], stream[20:]]
  assert all(sorted(epoch) == [f"t{i}" for i in range(10)] for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 3
  assert stream == _targets(_source().get_dataset(shuffle=True, seed=3, num_epochs=3))
  assert stream != _targets(_source().get_dataset(shuffle=True, seed=4, num_epochs=3))


def test_shards_partition_the_rows_by_number():
  shards = [seqio.ShardInfo(index=i, num_shards=3) for i in range(3)]
  ordered = [_targets(_source().get_dataset(shuffle=False, shard_info=x)) for x in shards]
  assert ordered[1] == ["t1", "t4", "t7"]
  mixed = [_targets(_source().get_dataset(shuffle=True, seed=1, shard_info=x)) for x in shards]
  assert [sorted(x) for x in mixed] == ordered


def test_both_directions_give_every_pair_turned_round_too():
  source = _source(both_directions=True)
  assert source.num_input_examples("train") == 20
  rows = list(source.get_dataset(shuffle=True, seed=0).as_numpy_iterator())
  seen = {(bytes(r["inputs"]), bytes(r["targets"]), int(r["input_language"][0])) for r in rows}
  assert len(seen) == 20
  other = {language("de").index: language("en").index, language("en").index: language("de").index}
  assert seen == {(target, source, other[code]) for source, target, code in seen}


def _streamed(tmp_path):
  _write(tmp_path / "a.de-en.tsv.gz", "".join(f"s{i}\tt{i}\n" for i in range(5)), True)
  _write(tmp_path / "b.de-en.de", "\ufeffs5\r\ns6\ns7")
  _write(tmp_path / "b.de-en.en", "t5\r\nt6\nt7")
  files = readers.find_bitext(str(tmp_path / "*.de-en.*"))
  assert len(files) == 2
  return sources.StreamSource({"train": files})


def test_streamed_files_give_their_lines_in_order(tmp_path):
  source = _streamed(tmp_path)
  assert source.num_input_examples("train") == 8
  rows = list(source.get_dataset(shuffle=False).as_numpy_iterator())
  assert [(x["inputs"], x["targets"]) for x in rows] == [
    (f"s{i}".encode(), f"t{i}".encode()) for i in range(8)
  ]
  assert int(rows[7]["target_language"][0]) == language("en").index
  mixed = source.get_dataset(shuffle=True, seed=0).as_numpy_iterator()
  assert sorted(x["inputs"] for x in mixed) == [f"s{i}".encode() for i in range(8)]
  shards = [seqio.ShardInfo(index=i, num_shards=2) for i in range(2)]
  parts = [source.get_dataset(shuffle=False, shard_info=shard) for shard in shards]
  assert sorted(x["inputs"] for part in parts for x in part.as_numpy_iterator()) == sorted(
    x["inputs"] for x in rows
  )


def test_streamed_files_are_checked_before_the_first_line(tmp_path):
  _write(tmp_path / "b.de-en.tsv", "a\tb\nc\n")
  source = sources.StreamSource({"train": readers.find_bitext(str(tmp_path / "b.*"))})
  with pytest.raises(errors.InputError, match=r"b\.de-en\.tsv:2"):
    source.get_dataset()


def test_iterators_continue_where_a_checkpoint_was_taken(tmp_path):
  def streams():
    yield _source().get_dataset(shuffle=True, seed=3, num_epochs=None)
    yield _streamed(tmp_path).get_dataset(shuffle=True, seed=3).repeat().shuffle(4, seed=1)

  for number, (first, second) in enumerate(zip(streams(), streams(), strict=True)):
    iterator = iter(first)
    for _ in range(13):
      next(iterator)
    path = tf.train.Checkpoint(it=iterator).save(str(tmp_path / f"checkpoint{number}"))
    expected = [next(iterator)["targets"].numpy() for _ in range(25)]
    restored = iter(second)
    tf.train.Checkpoint(it=restored).restore(path).assert_consumed()
    actual = [next(restored)["targets"].numpy() for _ in range(25)]
    assert all(np.array_equal(x, y) for x, y in zip(actual, expected, strict=True))
