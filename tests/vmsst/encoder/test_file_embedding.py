import hashlib

import fake_encoders
import line_files
import naive_search
import numpy as np
import pytest

from vmsst import errors
from vmsst.encoder import encoding, file_embedding
from vmsst.search import embedded_text, vector_store

LINES = [f"line {i}" if i % 5 else "" for i in range(23)]


def digest_vector(text):
  return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)[:3] / 100


def make_encoder(fail_at=None):
  return fake_encoders.FakeEncoder(digest_vector, fail_at)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
  monkeypatch.setattr(file_embedding, "_SHARD_LINES", 4)


@pytest.fixture
def text(tmp_path):
  return str(line_files.write_lines(tmp_path / "text.txt", LINES))


def embed(encoder, path, folder, **options):
  count, width = file_embedding.embed_file(encoder, path, folder, **{"name": "a", **options})
  assert vector_store.open_vectors(folder).shape == (count, width)
  return count


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_line_has_its_vector_empty_ones_too(text, tmp_path, dtype):
  assert embed(make_encoder(), text, tmp_path / "v", dtype=dtype, language="de") == 23
  found = embedded_text.open_text(text, tmp_path / "v")
  expected = np.array([digest_vector(line) for line in LINES]).astype(dtype)
  np.testing.assert_array_equal(found.vectors[:], expected)
  settings = found.vectors.settings
  assert settings["encoder"] == {"name": "a"}
  assert settings["language"] == "de"
  assert (settings["text"]["name"], settings["text"]["lines"]) == (text, 23)
  assert list(map(found.reader(), [22, 3, 0, 3])) == ["line 22", "line 3", "", "line 3"]


def test_the_first_dimensions_are_kept(text, tmp_path):
  embed(make_encoder(), text, tmp_path / "v", dimensions=2)
  expected_ND = np.float32([digest_vector(line) for line in LINES])[:, :2]
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path / "v")[:], expected_ND)
  with pytest.raises(errors.InputError, match=r"have 3; give 1 to 3"):
    embed(make_encoder(), text, tmp_path / "w", dimensions=4)
  with pytest.raises(errors.InputError, match=r"other vectors: .*dimension.* is 2, not 3"):
    embed(make_encoder(), text, tmp_path / "v")


def test_several_texts_are_one_whole(text, tmp_path):
  other = str(line_files.write_lines(tmp_path / "other.txt.gz", [f"other {i}" for i in range(9)]))
  folder = tmp_path / "v"
  assert embed(make_encoder(), [text, other, text], folder) == 23 + 9 + 23
  lines = [*LINES, *(f"other {i}" for i in range(9)), *LINES]
  whole = str(line_files.write_lines(tmp_path / "whole.txt", lines))
  found = embedded_text.open_text(whole, folder)
  expected = np.array([digest_vector(line) for line in lines]).astype(np.float32)
  for rows in (slice(None), slice(3, 40), slice(31, 33)):
    np.testing.assert_array_equal(found.vectors[rows], expected[rows])
  # No file has lines of two texts.
  assert [len(rows) for rows in found.vectors.shards()] == [4] * 5 + [3, 4, 4, 1] + [4] * 5 + [3]
  names = {path.name for path in folder.iterdir()}
  assert names == {"vectors.json", *(f"vectors-{n:05d}.npy" for n in range(15))}
  with pytest.raises(errors.InputError, match=r"text is .*text\.txt and 2 more .*give another"):
    embed(make_encoder(), [text, other], folder)


@pytest.mark.parametrize("fail_at", [1, 3, 6])
def test_an_interrupted_job_resumes_with_no_line_lost_or_doubled(text, tmp_path, fail_at):
  first, second, third = make_encoder(fail_at), make_encoder(), make_encoder()
  with pytest.raises(KeyboardInterrupt):
    embed(first, text, tmp_path / "v")
  with pytest.raises(errors.InputError, match=r"not finished|no vectors\.json"):
    embedded_text.open_text(text, tmp_path / "v")
  assert embed(second, text, tmp_path / "v") == embed(third, text, tmp_path / "v") == 23
  # The first text that an encoder receives only determines the width.
  assert [x for own in (first, second) for part in own.calls[1:] for x in part] == LINES
  assert third.calls == [[""]]
  found = vector_store.open_vectors(tmp_path / "v")[:]
  np.testing.assert_array_equal(found, np.float32([digest_vector(line) for line in LINES]))


def test_a_finished_shard_that_has_changed_is_computed_again(text, tmp_path):
  with pytest.raises(KeyboardInterrupt):
    embed(make_encoder(fail_at=4), text, tmp_path / "v")
  shard = tmp_path / "v" / "vectors-00000.npy"
  content = bytearray(shard.read_bytes())
  content[-1] ^= 1
  shard.write_bytes(content)
  embed(make_encoder(), text, tmp_path / "v")
  expected = np.array([digest_vector(line) for line in LINES]).astype(np.float32)
  found = embedded_text.open_text(text, tmp_path / "v")
  np.testing.assert_array_equal(found.vectors[:], expected)


def test_files_of_other_programs_stay(text, tmp_path):
  folder = tmp_path / "v"
  names = ["download.part", "vectors-00000.npy.part-0a", "below/calibration.npy", "lines-00000.txt"]
  for name in names:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("foreign")
  embed(make_encoder(), text, folder)
  assert {(folder / name).read_text() for name in names} == {"foreign"}
  other = tmp_path / "other"
  other.mkdir()
  (other / "vectors-00000.npy").write_text("foreign")
  with pytest.raises(errors.InputError, match=r"vectors-00000\.npy is not by `vmsst embed`"):
    embed(make_encoder(), text, other)
  assert [path.read_text() for path in other.iterdir()] == ["foreign"]


def test_vectors_of_something_else_are_not_resumed(text, tmp_path):
  folder = tmp_path / "v"
  embed(make_encoder(), text, folder)
  for options in ({"name": "b"}, {"language": "de"}, {"dtype": "float16"}):
    with pytest.raises(errors.InputError, match="give another folder"):
      embed(make_encoder(), text, folder, **options)
  zipped = line_files.write_lines(tmp_path / "moved.txt.gz", LINES)
  assert embed(make_encoder(), str(zipped), folder) == 23  # the same lines
  with open(text, "a", encoding="utf-8") as stream:
    stream.write("one more, without an end")
  with pytest.raises(errors.InputError, match="give another folder"):
    embed(make_encoder(), text, folder)
  with pytest.raises(errors.InputError, match=r"text\.txt has 24 lines and .*v has 23 vectors"):
    embedded_text.open_text(text, folder)
  with open(text, "w", encoding="utf-8") as stream:
    stream.writelines(f"{line}\n" for line in reversed(LINES))
  with pytest.raises(errors.InputError, match="vectors of another text than"):
    embedded_text.open_text(text, folder)
  naive_search.write_vectors(tmp_path / "foreign", np.ones([23, 3]))
  assert len(embedded_text.open_text(text, tmp_path / "foreign")) == 23


def test_broken_input_is_an_error(text, tmp_path):
  with pytest.raises(errors.InputError, match="dtype is 'float64'; known: float32, float16"):
    embed(make_encoder(), text, tmp_path / "x", dtype="float64")
  bad = tmp_path / "bad.txt"
  bad.write_bytes(b"a\nb\nc\xff\n")
  with pytest.raises(errors.InputError, match=r"bad\.txt:3: not UTF-8"):
    embed(make_encoder(), str(bad), tmp_path / "w")
  encoder = make_encoder()
  encoder.encode = lambda sentences: np.full([len(sentences), 3], 1e6)
  with pytest.raises(errors.InputError, match=r"text\.txt, lines 1 to 4: vector 0 .* as float16"):
    embed(encoder, text, tmp_path / "x", dtype="float16")

  calls = []

  def shrink(sentences):
    calls.append(sentences)
    if len(calls) < 2:  # The first call only determines the width.
      return np.zeros([1, 3])
    with open(text, "w", encoding="utf-8") as stream:
      stream.write("one\ntwo\n")
    return np.zeros([len(sentences), 3])

  encoder.encode = shrink
  with pytest.raises(errors.InputError, match=r"text\.txt has changed since"):
    embed(encoder, text, tmp_path / "y")


def test_encoders_get_what_they_know():
  class Knowing:
    def encode(self, sentences, *, language=None, batch_size=1, progress=None):
      self.got = language, batch_size, progress
      return [[1.0, 2.0]] * len(sentences)

  encoder = Knowing()
  found = encoding.encode(encoder, ("a", "b"), language="de", batch_size=7, progress=False)
  assert (found.tolist(), found.dtype) == ([[1, 2], [1, 2]], np.float32)
  assert encoder.got == ("de", 7, False)
  encoder.encode = lambda sentences: np.zeros([3, 2])
  with pytest.raises(ValueError, match=r"returned an array \(3, 2\) for 2 texts"):
    encoding.encode(encoder, ["a", "b"])


def test_a_process_loads_an_encoder_once_and_keeps_one_and_notices_another():
  loaded = []

  def load(digest):
    loaded.append(digest)
    encoder = make_encoder()
    encoder.digest = digest
    return "name", encoder

  first, second, changed = (
    encoding.EncoderSource("name", digest, lambda found=found: load(found))
    for digest, found in (("a", "a"), ("b", "b"), ("before", "after"))
  )
  assert first.open() is first.open()
  assert second.open().digest == "b"
  assert first.open().digest == "a"
  assert loaded == ["a", "b", "a"]
  with pytest.raises(errors.InputError, match="name has changed"):
    changed.open()


def test_an_encoder_in_memory_is_for_this_process_and_this_time():
  encoder = make_encoder()
  encoder.digest = "a"
  source = encoding.source_of(encoder, "name")
  assert (source.name, source.digest) == ("name", "a")
  with encoding.using(source, encoder):
    assert source.open() is encoder
  with pytest.raises(errors.InputError, match="name cannot be loaded in other processes"):
    source.open()
