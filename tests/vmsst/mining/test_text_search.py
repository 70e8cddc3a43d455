import gzip
import json

import fake_encoders
import line_files
import naive_search
import numpy as np
import pytest

from vmsst import errors, storage
from vmsst.cli import vector_jobs
from vmsst.encoder import encoding
from vmsst.mining import text_search
from vmsst.search import exact_search, vector_store


def make_encoder():
  return fake_encoders.FakeEncoder(naive_search.letters_vector)


def naive(query, count):
  """Returns (line, text) by a stable sort of exact cosines, squared and scaled by a constant."""
  x = naive_search.letters_vector(query)
  scores = []
  for line in naive_search.LETTERS:
    y = naive_search.letters_vector(line)
    product = sum(a * b for a, b in zip(x, y, strict=True))
    scores.append((-product * product * 1000000 // sum(b * b for b in y), product))
  order = sorted(
    filter(naive_search.LETTERS.__getitem__, range(len(naive_search.LETTERS))),
    key=lambda row: scores[row][0],
  )
  return [(row + 1, naive_search.LETTERS[row]) for row in order[:count]]


def test_cosines_are_at_most_1():
  near = exact_search.Neighbors(np.array([[0, 1]]), np.array([[1.0000001, -1.0000001]], "f4"))
  assert [hit.score for hit in text_search.hits(near, str)[0]] == [1, -1]


def test_a_searcher_reads_text_and_vectors_once(tmp_path, monkeypatch):
  """Later calls open no file, and neither hash nor check vectors of the corpus."""
  base = naive_search.write_letters(tmp_path, naive_search.LETTERS)
  lines = "".join(json.dumps({"t": line}) + "\n" for line in naive_search.LETTERS)
  (tmp_path / "base.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
  base = vector_store.open_text(str(tmp_path / "base.jsonl.gz"), base.vectors.folder)
  base.vectors.settings["field"] = "t"
  encoder = make_encoder()
  searcher = text_search.Searcher(encoder, base)
  first = searcher.search(naive_search.LETTER_QUERIES, 12)
  assert [[(hit.line, hit.text) for hit in hits] for hits in first] == [
    naive(query, 12) for query in naive_search.LETTER_QUERIES
  ]

  monkeypatch.setattr(storage, "open_binary", lambda path: 1 / 0)
  again = searcher.search(naive_search.LETTER_QUERIES[:4], 12)
  assert [[hit.line for hit in hits] for hits in again] == [
    [hit.line for hit in hits] for hits in first[:4]
  ]
  assert searcher.search([], 3) == []
  with pytest.raises(errors.InputError, match="count is 0"):
    searcher.search(["a"], 0)
  for wrong in ("one query", {"query": 1}, {"a"}, 3):
    with pytest.raises(TypeError, match="list of"):
      searcher.search(wrong, 3)


def test_queries_have_the_dimensions_of_the_vectors(tmp_path):
  path, encoder = line_files.write_lines(tmp_path / "base.txt", ["ab", "b", "aab"]), make_encoder()
  source = encoding.EncoderSource(encoder, "a")
  vector_jobs.embed(source, [str(path)], tmp_path / "v", dimensions=2)
  searcher = text_search.Searcher(encoder, vector_store.open_text(str(path), tmp_path / "v"))
  (hits,) = searcher.search(["aaabb"], 3)  # compared by the numbers of a and b alone
  assert [hit.line for hit in hits] == [3, 1, 2]
  assert hits[0].score == pytest.approx(8 / 65**0.5, abs=1e-6)


def test_broken_input_is_an_error(tmp_path):
  (tmp_path / "blank").mkdir()
  blank = naive_search.write_letters(tmp_path / "blank", ["", "\u200b\t"])
  with pytest.raises(errors.InputError, match=r"base\.txt contains no sentence"):
    text_search.Searcher(make_encoder(), blank)
  base, encoder = naive_search.write_letters(tmp_path, naive_search.LETTERS), make_encoder()
  searcher = text_search.Searcher(encoder, base)
  for vector, message in (
    ([1, 1], r"base has vectors of width 3, .* have width 2"),
    ([np.nan] * 3, "vector for 'a' contains a value that is not finite"),
  ):
    encoder.vector_of = lambda text, vector=vector: vector
    with pytest.raises(errors.InputError, match=message):
      searcher.search(["a"], 1)
  line_files.write_lines(tmp_path / "base.txt", [*naive_search.LETTERS[:-1], "other"])
  with pytest.raises(errors.InputError, match=r"base\.txt has changed"):
    text_search.Searcher(encoder, base)
