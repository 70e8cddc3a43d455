"""Units of queries: their results are those of one search in this process."""

import json

import fake_encoders
import line_files
import memory_store
import numpy as np
import pytest

from vmsst import errors
from vmsst.files import storage
from vmsst.mining import search_units, span_search, text_search
from vmsst.search import exact_search
from vmsst.units import kept_values, local
from vmsst.vectors import embedded_text, encoder_sources, vector_store

LINES = ["a" * (i * 7 % 4) + "b" * (i * 5 % 3) + "!" * (i % 2) for i in range(31)]
QUERIES = ["ab", "", "aaab", "b", "ab", "aa!", "bbb", "abab", "a"]


def letters_vector(text):
  return [text.count("a"), text.count("b"), 1]


@pytest.fixture
def corpus(tmp_path):
  path = line_files.write_lines(tmp_path / "lines.txt", LINES)
  writer = vector_store.Writer(tmp_path / "vectors", 3, shard_rows=10)
  writer.append(np.array([letters_vector(line) for line in LINES]))
  writer.finish()
  return embedded_text.open_text(str(path), tmp_path / "vectors")


class Encoder(fake_encoders.FakeEncoder):
  """Can fail, at a text."""

  failing = None

  def encode(self, texts, **options):
    if self.failing in texts:
      raise errors.InputError("no memory")
    return super().encode(texts, **options)


def search(corpus, encoder, output, compare=exact_search.compare):
  source = encoder_sources.of(encoder, "letters")
  searcher = search_units.source(
    source, corpus, index=None, language=None, batch_size=2, compare=compare
  )
  engine = local.Local()
  with encoder_sources.using(source, encoder):
    search_units.search_file(searcher, corpus, QUERIES, output, 5, engine=engine, progress=False)
  return searcher


def test_units_find_what_one_search_finds_and_resume(corpus, tmp_path, monkeypatch):
  monkeypatch.setattr(text_search, "WINDOW", 4)
  encoder, output = Encoder(letters_vector), tmp_path / "out" / "found.jsonl"
  encoder.failing = "a"  # in the last unit
  with pytest.raises(errors.InputError, match=r"^search of queries 9 to 9: no memory; .* resume"):
    search(corpus, encoder, output)
  assert [path.name for path in output.parent.iterdir()] == [".found.jsonl.vmsst"]
  encoder.failing = "b"  # in the first, which is not done again
  search(corpus, encoder, output)
  assert [path.name for path in output.parent.iterdir()] == ["found.jsonl"]
  encoder.failing = None
  expected = text_search.nearest_lines(encoder, QUERIES, corpus, 5, progress=False)
  lines = output.read_text(encoding="utf-8").splitlines()
  assert lines == [search_units.as_line(*found) for found in expected]
  assert json.loads(lines[0])["results"][0]["text"] == "ab!"


@pytest.mark.parametrize(("span_rows", "comparisons"), [(10, 12), (15, 13)])
def test_spans_of_a_large_corpus_are_units_too(
  corpus, tmp_path, monkeypatch, span_rows, comparisons
):
  encoder, output = Encoder(letters_vector), tmp_path / "out" / "found.jsonl"
  monkeypatch.setattr(text_search, "WINDOW", 4)
  expected = text_search.nearest_lines(encoder, QUERIES, corpus, 5, progress=False)
  expected = [search_units.as_line(*found) for found in expected]
  monkeypatch.setattr(span_search, "_SPAN_ROWS", span_rows)
  compared = []

  def failing(*sides):
    compared.append(sides)
    if len(compared) == 6:
      raise errors.InputError("no memory")
    exact_search.compare(*sides)

  message = r"^search of queries \d to \d in shards .*: no memory; .* resume"
  with pytest.raises(errors.InputError, match=message):
    search(corpus, encoder, output, failing)
  assert [path.name for path in output.parent.iterdir()] == [".found.jsonl.vmsst"]
  encoder.failing = "ab"  # Queries are not encoded again.
  search(corpus, encoder, output, failing)
  assert len(compared) == 1 + comparisons  # Unfinished spans are searched again.
  assert output.read_text(encoding="utf-8").splitlines() == expected
  assert [path.name for path in output.parent.iterdir()] == ["found.jsonl"]


@pytest.mark.parametrize("span_rows", [10, 1000])
def test_results_and_unfinished_work_in_an_object_store(corpus, tmp_path, monkeypatch, span_rows):
  store = memory_store.installed(monkeypatch)
  monkeypatch.setattr(text_search, "WINDOW", 4)
  monkeypatch.setattr(span_search, "_SPAN_ROWS", span_rows)
  encoder, url = Encoder(letters_vector), "gs://bucket/out/found"
  encoder.failing = "a"
  with pytest.raises(errors.InputError, match="of queries 9 to 9: no memory"):
    search(corpus, encoder, url)
  assert storage.names("gs://bucket/out") == {".found.vmsst"}
  encoder.failing = "b"  # in the first unit, which is not done again
  search(corpus, encoder, url)
  encoder.failing = None
  search(corpus, encoder, tmp_path / "found")
  assert store.cat_file(url) == (tmp_path / "found").read_bytes()
  assert storage.names("gs://bucket/out") == {"found"}


def test_vectors_in_an_object_store_are_found_there(corpus, monkeypatch):
  memory_store.installed(monkeypatch)
  vectors = "gs://bucket/vectors"
  writer = vector_store.Writer(vectors, 3)
  writer.append(np.array([letters_vector(line) for line in LINES]))
  writer.finish()
  stored = embedded_text.open_text(corpus.path, vectors)
  encoder = Encoder(letters_vector)
  source = encoder_sources.of(encoder, "letters")
  searcher = search_units.source(
    source, stored, index=None, language=None, batch_size=2, compare=exact_search.compare
  )
  assert searcher.vectors == vectors
  with encoder_sources.using(source, encoder):
    (hits,) = searcher.open().search(["ab!"], 1)
  assert hits[0].text == "ab!"


def test_a_corpus_that_changes_is_refused(corpus, tmp_path, monkeypatch):
  encoder = Encoder(letters_vector)
  searcher = search(corpus, encoder, tmp_path / "found.jsonl")
  line_files.write_lines(tmp_path / "lines.txt", [*LINES[:-1], "other"])
  monkeypatch.setattr(search_units, "_searchers", kept_values.LastOpened())
  with pytest.raises(errors.InputError, match=r"lines\.txt or its vectors have changed"):
    searcher.open()
