import contextlib
import errno
import hashlib
import os

import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import errors
from vmsst.files import text_files
from vmsst.vectors import embedded_text, encoding, file_embedding, vector_store

LINES = [f"line {i}" if i % 5 else "" for i in range(23)]


def digest_vector(text):
  """Returns a vector unique to the text."""
  return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)[:3] / 100


def make_encoder(fail_at=None):
  return fake_encoders.FakeEncoder(digest_vector, fail_at)


@pytest.fixture
def text(tmp_path, monkeypatch):
  monkeypatch.setattr(file_embedding, "_WINDOW", 4)
  return str(line_files.write_lines(tmp_path / "text.txt", LINES))


def embed(encoder, path, folder, **options):
  options = {"name": "a", "progress": False, **options}
  return file_embedding.embed_file(encoder, path, folder, **options)


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
  assert found.lines([22, 3, 0, 3]) == {0: "", 3: "line 3", 22: "line 22"}
  assert found.lines([]) == {}


@pytest.mark.parametrize("parts", [2, 4, 30])
def test_parts_of_several_processes_are_one_whole(text, tmp_path, parts):
  folder, counts = tmp_path / "v", []
  for part in reversed(range(1, parts + 1)):
    with pytest.raises(errors.InputError):
      vector_store.open_vectors(folder)
    for fail_at in (1, None):  # those of more than a window are interrupted
      with contextlib.suppress(KeyboardInterrupt):
        count = embed(make_encoder(fail_at), text, folder, part=(part, parts))
    counts.append(count)
  assert sum(counts) == 23
  assert max(counts) - min(counts) <= 1
  found = embedded_text.open_text(text, folder)
  expected = np.array([digest_vector(line) for line in LINES]).astype(np.float32)
  for rows in (slice(None), slice(3, 17), slice(22, 23)):
    np.testing.assert_array_equal(found.vectors[rows], expected[rows])
  np.testing.assert_array_equal(np.concatenate(list(found.vectors.shards())), expected)


def test_parts_that_do_not_make_a_whole_are_an_error(text, tmp_path):
  folder = tmp_path / "v"
  with pytest.raises(errors.InputError, match="no part 3 of 2"):
    embed(make_encoder(), text, folder, part=(3, 2))
  embed(make_encoder(), text, folder, part=(1, 2))
  with pytest.raises(errors.InputError, match="lacks part-2-of-2"):
    vector_store.open_vectors(folder)
  embed(make_encoder(), text, folder, part=(2, 2), name="b")
  with pytest.raises(errors.InputError, match=r"part-2-of-2 .* encoder is b, not a"):
    vector_store.open_vectors(folder)
  embed(make_encoder(), text, folder, part=(1, 3))
  with pytest.raises(errors.InputError, match="parts of 2 and of 3"):
    vector_store.open_vectors(folder)


def test_lines_are_read_when_they_are_embedded(text, tmp_path, monkeypatch):
  read = []

  def read_lines(path):
    for line in read_file(path):
      read.append(line)
      yield line

  read_file = text_files.read_lines
  monkeypatch.setattr(text_files, "read_lines", read_lines)
  ahead = []
  encoder = make_encoder()
  encode = encoder.encode
  encoder.dimension = 3

  def watched(sentences):
    ahead.append(len(read) - sum(encoder.sizes))
    return encode(sentences)

  encoder.encode = watched
  embed(encoder, text, tmp_path / "v")
  assert ahead == [4, 4, 4, 4, 4, 3]


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
  writer = vector_store.Writer(tmp_path / "foreign", 3)
  writer.append(np.ones([23, 3]))
  writer.finish()
  assert len(embedded_text.open_text(text, tmp_path / "foreign")) == 23


def test_texts_without_lines_and_lines_without_ends(tmp_path):
  for content, count in (("", 0), ("\n", 1), ("a\nb", 2), ("a\nb\n", 2)):
    path = tmp_path / f"{len(content)}.txt"
    path.write_text(content, encoding="utf-8")
    assert embed(make_encoder(), str(path), tmp_path / f"{len(content)}") == count


def test_broken_input_is_an_error(text, tmp_path):
  with pytest.raises(errors.InputError, match=r"none\.txt: cannot be opened"):
    embed(make_encoder(), str(tmp_path / "none.txt"), tmp_path / "v")
  bad = tmp_path / "bad.txt"
  bad.write_bytes(b"a\nb\nc\xff\n")
  with pytest.raises(errors.InputError, match=r"bad\.txt:3: not UTF-8"):
    embed(make_encoder(), str(bad), tmp_path / "w")
  encoder = make_encoder()
  encoder.encode = lambda sentences: np.full([len(sentences), 3], 1e6)
  with pytest.raises(
    errors.InputError, match=r"text\.txt: vector 0 contains .* not finite as float16"
  ):
    embed(encoder, text, tmp_path / "x", dtype="float16")

  def shrink(sentences):
    with open(text, "w", encoding="utf-8") as stream:
      stream.write("one\ntwo\n")
    return np.zeros([len(sentences), 3])

  encoder.encode = shrink
  with pytest.raises(errors.InputError, match="has changed: delete"):
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


def test_a_full_disk_is_reported_and_the_job_resumes(text, tmp_path, monkeypatch):
  written = []

  def full(file):
    written.append(file)
    if len(written) == 3:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with monkeypatch.context() as patched:
    patched.setattr(vector_store, "_sync", full)
    # The command line reports an OSError in one line, like an InputError.
    with pytest.raises(OSError, match=r"No space left on device: .*vectors-00000\.npy"):
      embed(make_encoder(), text, tmp_path / "v")
  encoder = make_encoder()
  assert embed(encoder, text, tmp_path / "v") == 23
  assert sum(encoder.sizes) < 23
  expected = np.array([digest_vector(line) for line in LINES]).astype(np.float32)
  found = embedded_text.open_text(text, tmp_path / "v")
  np.testing.assert_array_equal(found.vectors[:], expected)
