import hashlib

import fake_encoders
import line_files
import memory_store
import naive_search
import numpy as np
import pytest

from vmsst import errors, storage
from vmsst.cli import vector_jobs
from vmsst.encoder import encoding
from vmsst.io import input_files
from vmsst.jobs import engines, job
from vmsst.mining import bitext_mining, text_search
from vmsst.search import device_search, exact_search, faiss_index, vector_store

LINES = [f"line {i}" if i % 5 else "" for i in range(23)]


def digest_vector(text):
  return np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)[:3] / 100


def make_encoder(fail_at=None):
  return fake_encoders.FakeEncoder(digest_vector, fail_at)


def vectors_of(lines):
  return np.float32([digest_vector(line) for line in lines])


@pytest.fixture(autouse=True)
def small_spans(monkeypatch):
  monkeypatch.setattr(vector_jobs, "_SPAN_LINES", 4)


@pytest.fixture
def text(tmp_path):
  return str(line_files.write_lines(tmp_path / "text.txt", LINES))


def embed(encoder, paths, folder, **options):
  paths = [paths] if isinstance(paths, str) else paths
  source = encoding.EncoderSource(encoder, options.pop("name", "a"), options.pop("load", None))
  count, width = vector_jobs.embed(source, paths, folder, **options)
  assert vector_store.open_vectors(folder).shape == (count, width)
  return count


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_lines_have_vectors_including_empty_lines(text, tmp_path, dtype):
  assert embed(make_encoder(), text, tmp_path / "v", dtype=dtype, language="de") == 23
  embedded = vector_store.open_text(text, tmp_path / "v")
  np.testing.assert_array_equal(embedded.vectors[:], vectors_of(LINES).astype(dtype))
  settings = embedded.vectors.settings
  assert settings["encoder"] == {"name": "a"}
  assert settings["language"] == "de"
  assert (settings["text"]["name"], settings["text"]["lines"]) == (text, 23)
  assert list(map(embedded.reader(), [22, 3, 0, 3])) == ["line 22", "line 3", "", "line 3"]


def test_only_the_first_dimensions_are_stored(text, tmp_path):
  embed(make_encoder(), text, tmp_path / "v", dimensions=2)
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path / "v"), vectors_of(LINES)[:, :2])
  with pytest.raises(errors.InputError, match=r"have 3 dimensions; give 1 to 3"):
    embed(make_encoder(), text, tmp_path / "w", dimensions=4)
  with pytest.raises(errors.InputError, match=r"to another job: dimensions is 2, not unset"):
    embed(make_encoder(), text, tmp_path / "v")


@pytest.mark.parametrize("place", ["folder", "store"])
def test_several_texts_are_read_in_order(text, tmp_path, monkeypatch, place):
  memory_store.installed(monkeypatch)
  folder = str(tmp_path / "v") if place == "folder" else "gs://bucket/v"
  other = str(line_files.write_lines(tmp_path / "other.txt.gz", [f"other {i}" for i in range(9)]))
  with pytest.raises(KeyboardInterrupt):
    embed(make_encoder(fail_at=9), [text, other, text], folder)
  assert embed(make_encoder(), [text, other, text], folder) == 23 + 9 + 23
  lines = [*LINES, *(f"other {i}" for i in range(9)), *LINES]
  whole = str(line_files.write_lines(tmp_path / "whole.txt", lines))
  np.testing.assert_array_equal(vector_store.open_text(whole, folder).vectors, vectors_of(lines))
  # No shard contains lines of two texts.
  assert storage.names(folder) == {"job.json", *(f"vectors-{n:05d}.npy" for n in range(15))}
  with pytest.raises(errors.InputError, match=r"text is .*text\.txt and 1 more .*give another"):
    embed(make_encoder(), [text, other], folder)


@pytest.mark.parametrize("fail_at", [1, 3, 6])
def test_an_interrupted_job_resumes_without_losing_or_repeating_lines(text, tmp_path, fail_at):
  first, second, third = make_encoder(fail_at), make_encoder(), make_encoder()
  with pytest.raises(KeyboardInterrupt):
    embed(first, text, tmp_path / "v")
  with pytest.raises(errors.InputError, match=r"not finished|no job\.json"):
    vector_store.open_text(text, tmp_path / "v")
  assert embed(second, text, tmp_path / "v") == embed(third, text, tmp_path / "v") == 23
  # The first call only determines the width.
  assert [x for encoder in (first, second) for call in encoder.calls[1:] for x in call] == LINES
  assert third.calls == [[""]]
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path / "v"), vectors_of(LINES))


def test_a_job_with_other_inputs_or_options_does_not_resume(text, tmp_path):
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
  message = r"the 23 vectors in \S*/v do not match the current text in \S*/text\.txt \(24 lines\)"
  with pytest.raises(errors.InputError, match=message):
    vector_store.open_text(text, folder)
  line_files.write_lines(tmp_path / "text.txt", reversed(LINES))
  with pytest.raises(errors.InputError, match="do not match the current text in"):
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


# --------------------------------------------------------------------------------------------
# Indexes


@pytest.fixture
def vectors(tmp_path, monkeypatch):
  monkeypatch.setattr(faiss_index, "SHARD_ROWS", 500)
  vectors_ND = np.random.default_rng(3).normal(size=[900, 8]).astype(np.float32)
  return naive_search.write_vectors(tmp_path / "vectors", vectors_ND, shard_rows=250)


def build(vectors, folder, factory="IVF8,SQ8"):
  return vector_jobs.build_index(vectors, folder, factory=factory)


def test_an_interrupted_index_resumes_to_the_same_bytes(vectors, folder, tmp_path, monkeypatch):
  build(vectors, tmp_path / "whole")
  fill, filled = faiss_index.fill, []

  def filling(index, rows, span):
    filled.append(span.start)
    if len(filled) == 2:
      raise KeyboardInterrupt
    fill(index, rows, span)

  monkeypatch.setattr(faiss_index, "fill", filling)
  with pytest.raises(KeyboardInterrupt):
    build(vectors, folder)
  with pytest.raises(errors.InputError, match="is not finished; rerun the same command"):
    faiss_index.open_index(folder, vectors)
  for _ in range(2):
    index = build(vectors, folder)
  assert filled == [0, 500, 500]
  content = input_files.read_bytes(f"{folder}/index.faiss")
  assert content == (tmp_path / "whole/index.faiss").read_bytes()
  assert storage.names(folder) == {"index.faiss", "job.json"}
  query_ND = exact_search.unit_rows(vectors[:9] + 0.1)
  expected = faiss_index.build_index(vectors, "IVF8,SQ8").nearest(query_ND, 4)
  np.testing.assert_array_equal(index.nearest(query_ND, 4).index_NK, expected.index_NK)


def test_another_index_is_refused(vectors, tmp_path):
  build(vectors, tmp_path / "index")
  with pytest.raises(errors.InputError, match=r'another job: factory is "IVF8,SQ8", not "SQ8"'):
    build(vectors, tmp_path / "index", "SQ8")
  with pytest.raises(errors.InputError, match="cannot be trained on 900 vectors"):
    build(vectors, tmp_path / "new", "IVF1000,Flat")
  build(vectors, tmp_path / "new", "Flat")


# --------------------------------------------------------------------------------------------
# Searches in blocks


@pytest.fixture
def small_blocks(monkeypatch):
  for name, rows in (
    ("_LEAST_SOURCES", 4), ("_BLOCK_SOURCES", 8), ("_BLOCK_TARGETS", 10), ("_SOURCE_ROWS", 4),
    ("_TARGET_ROWS", 5),
  ):  # fmt: skip
    monkeypatch.setattr(exact_search, name, rows)


def search(base, queries, output, **options):
  encoder = fake_encoders.FakeEncoder(naive_search.letters_vector)
  source = encoding.EncoderSource(encoder, "letters", options.pop("load", None))
  vector_jobs.search(source, str(queries), base, output, 5, **options)
  return encoder


def lines_of(base):
  searcher = text_search.Searcher(fake_encoders.FakeEncoder(naive_search.letters_vector), base)
  results = zip(
    naive_search.LETTER_QUERIES, searcher.search(naive_search.LETTER_QUERIES, 5), strict=True
  )
  return "".join(f"{text_search.as_line(query, hits)}\n" for query, hits in results)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_of_queries_resumes_to_the_same_bytes(folder, tmp_path, monkeypatch):
  base, queries = (
    naive_search.write_letters(tmp_path, naive_search.LETTERS),
    line_files.write_lines(tmp_path / "q.txt", naive_search.LETTER_QUERIES),
  )
  searched, output = [], f"{folder}/found"

  def failing(*sides):
    searched.append(sides)
    if len(searched) == 4:
      raise errors.InputError("no memory")
    return exact_search.search(*sides)

  monkeypatch.setattr(device_search, "search", failing)
  message = r"^search of block-00003\.npz: no memory; .* resume"
  with pytest.raises(errors.InputError, match=message):
    search(base, queries, output)
  assert storage.names(folder) == {".found.vmsst"}
  # The rerun encodes one text to determine the width, no queries, and repeats no finished block.
  assert search(base, queries, output).calls == [[""]]
  assert len(searched) == 4 + 9 - 3
  assert input_files.read_bytes(output).decode() == lines_of(base)
  assert storage.names(folder) == {"found"}


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_search_in_both_directions_resumes_and_a_damaged_block_is_repeated(
  tmp_path, monkeypatch
):
  rng = np.random.default_rng(0)
  sides = [exact_search.Selection(rng.normal(size=(n, 6)), np.arange(n)) for n in (30, 25)]
  searched = []

  def interrupted(*sides):
    searched.append(sides)
    if len(searched) == 4:
      raise KeyboardInterrupt
    return exact_search.search(*sides)

  monkeypatch.setattr(device_search, "search", interrupted)

  def mutual_top_k():
    with job.Job(tmp_path / "out", inputs={}, is_folder=False) as search_job:
      search = vector_jobs.resumable_search(search_job, engines.Local())
      return exact_search.mutual_top_k(*sides, 3, search=search)

  with pytest.raises(KeyboardInterrupt):
    mutual_top_k()
  broken = tmp_path / ".out.vmsst" / "block-00001.npz"
  broken.write_bytes(broken.read_bytes()[::-1])
  for near, expected in zip(mutual_top_k(), exact_search.mutual_top_k(*sides, 3), strict=True):
    np.testing.assert_array_equal(near.index_NK, expected.index_NK)
    np.testing.assert_array_equal(near.score_NK, expected.score_NK)
  assert len(searched) == 4 + 24 - 2


# --------------------------------------------------------------------------------------------
# Scores of pairs


def scorer(name, windows, texts, change=lambda: None):
  """Returns a scorer that returns the lengths of texts; Ctrl-C interrupts it after some windows."""

  def score(sources, targets, languages, on_cut):
    change()
    if len(texts) == windows:
      raise KeyboardInterrupt
    texts.append(sources)
    return np.array([[len(x), len(y)] for x, y in zip(sources, targets, strict=True)], float)

  return bitext_mining.Scorer({"scorer": name}, score)


def test_scores_resume_with_the_same_settings(folder, tmp_path, monkeypatch):
  monkeypatch.setattr(bitext_mining, "_WINDOW", 4)
  lines = ["x" * n for n in range(10)]
  text = bitext_mining.TextColumn(str(line_files.write_lines(tmp_path / "text", lines)))
  with pytest.raises(KeyboardInterrupt):
    vector_jobs.score(scorer("a", 2, []), text, text, f"{folder}/out")
  assert storage.names(folder) == {".out.vmsst"}
  for name in "ab":  # Scorer a resumes; scorer b has other settings and starts over.
    texts = []
    assert vector_jobs.score(scorer(name, None, texts), text, text, f"{folder}/out") == 10
    assert texts == ([lines[8:]] if name == "a" else [lines[:4], lines[4:8], lines[8:]])
    found = input_files.read_bytes(f"{folder}/out").decode()
    assert found == "".join(f"{n}.000000\t{n}.000000\n" for n in range(10))
    assert storage.names(folder) == {"out"}


def test_scores_of_a_changed_text_are_not_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(bitext_mining, "_WINDOW", 4)
  counts = range(100_000, 100_010)  # more than a buffer
  path = line_files.write_lines(tmp_path / "text", ["x" * n for n in counts])
  text, content = bitext_mining.TextColumn(str(path)), path.read_text()

  def change():
    with open(path, "r+") as stream:  # in place, between two windows
      stream.write(content.replace("\n", "x\n")[: len(content)])

  with pytest.raises(errors.InputError, match="text has changed since it was first read"):
    vector_jobs.score(scorer("a", None, [], change), text, text, tmp_path / "out")
  path.write_text(content)
  vector_jobs.score(scorer("a", None, []), text, text, tmp_path / "out")
  expected = "".join(f"{n}.000000\t{n}.000000\n" for n in counts)
  assert (tmp_path / "out").read_text() == expected
