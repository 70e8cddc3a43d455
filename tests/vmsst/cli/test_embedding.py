import hashlib

import fake_encoders
import line_files
import memory_store
import naive_search
import numpy as np
import pytest

from vmsst import errors, storage
from vmsst.cli import embedding
from vmsst.search import vector_store

LINES = [f"line {i}" if i % 5 else "" for i in range(23)]


def digest_vector(text):
  return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)[:3] / 100


def make_encoder(fail_at=None):
  return fake_encoders.FakeEncoder(digest_vector, fail_at)


def vectors_of(lines):
  return np.float32([digest_vector(line) for line in lines])


@pytest.fixture(autouse=True)
def small_spans(monkeypatch):
  monkeypatch.setattr(embedding, "_SPAN_LINES", 4)


@pytest.fixture
def text(tmp_path):
  return str(line_files.write_lines(tmp_path / "text.txt", LINES))


def embed(encoder, paths, folder, **options):
  paths = [paths] if isinstance(paths, str) else paths
  count, width = embedding.embed(encoder, paths, folder, **{"name": "a", **options})
  assert vector_store.open_vectors(folder).shape == (count, width)
  return count


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_line_has_its_vector_empty_ones_too(text, tmp_path, dtype):
  assert embed(make_encoder(), text, tmp_path / "v", dtype=dtype, language="de") == 23
  embedded = vector_store.open_text(text, tmp_path / "v")
  np.testing.assert_array_equal(embedded.vectors[:], vectors_of(LINES).astype(dtype))
  settings = embedded.vectors.settings
  assert settings["encoder"] == {"name": "a"}
  assert settings["language"] == "de"
  assert (settings["text"]["name"], settings["text"]["lines"]) == (text, 23)
  assert list(map(embedded.reader(), [22, 3, 0, 3])) == ["line 22", "line 3", "", "line 3"]


def test_the_first_dimensions_are_kept(text, tmp_path):
  embed(make_encoder(), text, tmp_path / "v", dimensions=2)
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path / "v"), vectors_of(LINES)[:, :2])
  with pytest.raises(errors.InputError, match=r"have 3; give 1 to 3"):
    embed(make_encoder(), text, tmp_path / "w", dimensions=4)
  with pytest.raises(errors.InputError, match=r"of another job: dimensions is 2, not unset"):
    embed(make_encoder(), text, tmp_path / "v")


@pytest.mark.parametrize("place", ["folder", "store"])
def test_several_texts_are_one_whole(text, tmp_path, monkeypatch, place):
  memory_store.installed(monkeypatch)
  folder = str(tmp_path / "v") if place == "folder" else "gs://bucket/v"
  other = str(line_files.write_lines(tmp_path / "other.txt.gz", [f"other {i}" for i in range(9)]))
  with pytest.raises(KeyboardInterrupt):
    embed(make_encoder(fail_at=9), [text, other, text], folder)
  assert embed(make_encoder(), [text, other, text], folder) == 23 + 9 + 23
  lines = [*LINES, *(f"other {i}" for i in range(9)), *LINES]
  whole = str(line_files.write_lines(tmp_path / "whole.txt", lines))
  np.testing.assert_array_equal(vector_store.open_text(whole, folder).vectors, vectors_of(lines))
  # No file has lines of two texts.
  assert storage.names(folder) == {"job.json", *(f"vectors-{n:05d}.npy" for n in range(15))}
  with pytest.raises(errors.InputError, match=r"text is .*text\.txt and 1 more .*give another"):
    embed(make_encoder(), [text, other], folder)


@pytest.mark.parametrize("fail_at", [1, 3, 6])
def test_an_interrupted_job_resumes_with_no_line_lost_or_doubled(text, tmp_path, fail_at):
  first, second, third = make_encoder(fail_at), make_encoder(), make_encoder()
  with pytest.raises(KeyboardInterrupt):
    embed(first, text, tmp_path / "v")
  with pytest.raises(errors.InputError, match=r"not finished|no job\.json"):
    vector_store.open_text(text, tmp_path / "v")
  assert embed(second, text, tmp_path / "v") == embed(third, text, tmp_path / "v") == 23
  # The first text that an encoder receives only determines the width.
  assert [x for own in (first, second) for part in own.calls[1:] for x in part] == LINES
  assert third.calls == [[""]]
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path / "v"), vectors_of(LINES))


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
  with pytest.raises(errors.InputError, match=r"v has 23 vectors of .*text\.txt with 24"):
    vector_store.open_text(text, folder)
  line_files.write_lines(tmp_path / "text.txt", reversed(LINES))
  with pytest.raises(errors.InputError, match="vectors of another text than"):
    vector_store.open_text(text, folder)
  naive_search.write_vectors(tmp_path / "foreign", np.ones([23, 3]))
  assert len(vector_store.open_text(text, tmp_path / "foreign").vectors) == 23


def test_broken_input_is_an_error(text, tmp_path):
  bad = tmp_path / "bad.txt"
  bad.write_bytes(b"a\nb\nc\xff\n")
  with pytest.raises(errors.InputError, match=r"bad\.txt:3: not UTF-8"):
    embed(make_encoder(), str(bad), tmp_path / "w")
  encoder = make_encoder()
  encoder.encode = lambda sentences: np.full([len(sentences), 3], 1e6)
  with pytest.raises(errors.InputError, match=r"text\.txt, lines 1 to 4: vector 0 .* as float16"):
    embed(encoder, text, tmp_path / "x", dtype="float16")
  assert not (tmp_path / "x").exists()
