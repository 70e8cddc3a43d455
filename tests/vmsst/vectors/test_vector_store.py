import json
import pickle

import memory_store
import numpy as np
import pytest

from vmsst import errors
from vmsst.search import exact_search
from vmsst.vectors import shard_files, vector_store

VECTORS = np.random.default_rng(0).normal(size=[23, 3]).astype(np.float32)


def write_vectors(folder, vectors=VECTORS, *, chunk=4, **settings):
  """Appends a few rows at a time."""
  writer = vector_store.Writer(folder, vectors.shape[1], **{"shard_rows": 10, **settings})
  for start in range(0, len(vectors), chunk):
    writer.append(vectors[start : start + chunk])
  writer.finish()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("chunk", [1, 4, 23])
def test_what_was_written_is_read(tmp_path, dtype, chunk):
  write_vectors(tmp_path, chunk=chunk, dtype=dtype, settings={"encoder": "a", "ids": (1, 2)})
  vectors, expected = vector_store.open_vectors(tmp_path), VECTORS.astype(dtype)
  assert (vectors.shape, len(vectors), vectors.dtype) == ((23, 3), 23, np.dtype(dtype))
  assert vectors.settings == {"encoder": "a", "ids": [1, 2]}
  for rows in (slice(None), slice(2, 7), slice(8, 21), slice(10, 20), slice(20, 99), slice(5, 5)):
    np.testing.assert_array_equal(vectors[rows], expected[rows])
  assert [len(shard) for shard in vectors.shards()] == [10, 10, 3]
  # NumPy reads the files without this module.
  files = sorted(tmp_path.glob("*.npy"))
  np.testing.assert_array_equal(np.concatenate([np.load(path) for path in files]), expected)


def test_shards_of_any_size_are_written_in_any_order(tmp_path):
  kind, rows = shard_files.Kind(3), [3, 10, 1, 9]
  ends = np.cumsum(rows)
  sha256 = {}
  for round in range(2):  # An interrupted job does the same again.
    assert not vector_store.start(tmp_path, kind, rows, {"a": 1})
    with pytest.raises(errors.InputError, match="is not finished; rerun"):
      vector_store.open_vectors(tmp_path)
    for number in (2, 0, 3) if round == 0 else (1, 2):
      part = VECTORS[ends[number] - rows[number] : ends[number]]
      path = vector_store.shard_path(tmp_path, number)
      sha256[number] = shard_files.write(path, part, kind)
    if round == 0:
      with pytest.raises(errors.InputError, match=r"vectors-00001\.npy: cannot be read: No such"):
        vector_store.finish(tmp_path, kind, [])
  vector_store.finish(tmp_path, kind, [sha256[number] for number in range(4)])
  assert vector_store.start(tmp_path, kind, rows, {"a": 1})
  vectors = vector_store.open_vectors(tmp_path)
  assert [len(shard) for shard in vectors.shards()] == rows
  for part in (slice(None), slice(2, 14), slice(13, 14)):
    np.testing.assert_array_equal(vectors[part], VECTORS[part])


def test_nothing_is_left_of_a_folder_that_got_no_shard(tmp_path):
  kind = shard_files.Kind(3)
  vector_store.start(tmp_path / "v", kind, [2], {})
  vector_store.abandon(tmp_path / "v")
  assert not (tmp_path / "v").exists()
  vector_store.start(tmp_path / "v", kind, [2, 2], {})
  shard_files.write(vector_store.shard_path(tmp_path / "v", 1), VECTORS[:2], kind)
  vector_store.abandon(tmp_path / "v")
  assert len(list((tmp_path / "v").iterdir())) == 2


def write_old_folder(folder, vectors):
  """Writes a folder as earlier versions did: shards of one size, without their number of rows."""
  folder.mkdir(parents=True)
  for number, start in enumerate(range(0, len(vectors), 10)):
    np.save(folder / f"vectors-{number:05d}.npy", vectors[start : start + 10])
  state = {"dimension": 3, "dtype": "float32", "settings": {"a": 1}, "shard_rows": 10}
  state |= {"done": len(vectors), "count": len(vectors)}
  (folder / "vectors.json").write_text(json.dumps(state))


def test_folders_and_parts_of_earlier_versions_are_read(tmp_path):
  write_old_folder(tmp_path / "whole", VECTORS)
  vectors = vector_store.open_vectors(tmp_path / "whole")
  assert [len(shard) for shard in vectors.shards()] == [10, 10, 3]
  assert vectors.settings == {"a": 1}
  np.testing.assert_array_equal(vectors[:], VECTORS)
  assert vector_store.start(tmp_path / "whole", shard_files.Kind(3), [23], {"a": 1})
  for number, part in enumerate((VECTORS[:12], VECTORS[12:]), 1):
    with pytest.raises(errors.InputError):
      vector_store.open_vectors(tmp_path / "parts")
    write_old_folder(tmp_path / "parts" / f"part-{number}-of-2", part)
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path / "parts")[:], VECTORS)
  write_old_folder(tmp_path / "parts" / "part-1-of-3", VECTORS)
  with pytest.raises(errors.InputError, match="parts of 2 and of 3"):
    vector_store.open_vectors(tmp_path / "parts")


def test_no_vectors_and_full_files(tmp_path):
  write_vectors(tmp_path / "none", VECTORS[:0])
  assert vector_store.open_vectors(tmp_path / "none")[:].shape == (0, 3)
  write_vectors(tmp_path / "full", VECTORS[:20])
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path / "full")[:], VECTORS[:20])


def test_search_takes_them_as_they_lie_on_disk(tmp_path, monkeypatch):
  monkeypatch.setattr(exact_search, "_BLOCK_ROWS", 4)
  write_vectors(tmp_path)
  vectors = vector_store.open_vectors(tmp_path)
  query = VECTORS[::-1] + 0.1
  whole = exact_search.mutual_top_k(query, VECTORS, 3)
  for near, expected in zip(exact_search.mutual_top_k(query, vectors, 3), whole, strict=True):
    np.testing.assert_array_equal(near.index_NK, expected.index_NK)
  near = exact_search.nearest_in_blocks(query, vectors.shards(), 3)
  np.testing.assert_array_equal(near.index_NK, whole[0].index_NK)


def break_file(folder, name, change):
  path = folder / name
  path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
  ("name", "change", "message"),
  [
    ("vectors-00001.npy", lambda raw: raw[:-1], "truncated: it has fewer than 10 vectors"),
    ("vectors-00002.npy", lambda raw: raw[:100], "broken: its header is not"),
    ("vectors-00000.npy", lambda raw: b"x" + raw[1:], "broken: its header is not"),
    ("vectors.json", lambda raw: raw[:-5], "broken"),
    ("vectors.json", lambda raw: raw.replace(b"float32", b"float64"), "broken"),
    ("vectors.json", lambda raw: raw.replace(b'"count": 23', b'"count": 24'), "broken"),
    ("vectors.json", lambda raw: b"[]", "broken"),
  ],
)
def test_broken_files_are_named(tmp_path, name, change, message):
  write_vectors(tmp_path)
  break_file(tmp_path, name, change)
  kind = shard_files.Kind(3)
  for use in (vector_store.open_vectors, lambda folder: vector_store.start(folder, kind, [], {})):
    with pytest.raises(errors.InputError, match=f"{name}: {message}"):
      use(tmp_path)


def test_missing_files_and_other_vectors_are_an_error(tmp_path):
  with pytest.raises(errors.InputError, match=r"no vectors\.json: give a folder"):
    vector_store.open_vectors(tmp_path)
  write_vectors(tmp_path, settings={"encoder": "a"})
  for kind, encoder, message in (
    ({"dimension": 4}, "a", "dimension is 3, not 4"),
    ({"dimension": 3, "dtype": "float16"}, "a", 'dtype is "float32", not "float16"'),
    ({"dimension": 3}, "b", 'encoder is "a", not "b"'),
  ):
    with pytest.raises(errors.InputError, match=message):
      vector_store.start(tmp_path, shard_files.Kind(**kind), [23], {"encoder": encoder})
  with pytest.raises(errors.InputError, match="has vectors already"):
    vector_store.Writer(tmp_path, 3)
  with pytest.raises(errors.InputError, match="dtype is float64; choose float32, float16"):
    shard_files.Kind(3, "float64")
  (tmp_path / "vectors-00001.npy").unlink()
  with pytest.raises(errors.InputError, match=r"vectors-00001\.npy: cannot be read: No such file"):
    vector_store.start(tmp_path, shard_files.Kind(3), [23], {"encoder": "a"})


def test_what_cannot_be_kept_is_an_error_and_nothing_of_it_is_written(tmp_path):
  writer = vector_store.Writer(tmp_path, 3, dtype="float16")
  writer.append(VECTORS[:2])
  for value in (np.nan, 1e5):  # too large for float16
    with pytest.raises(ValueError, match="vector 3 contains a value that is not finite as float16"):
      writer.append([[1, 2, 3], [1, value, 3]])
  with pytest.raises(ValueError, match=r"the shape must be \[N, 3\], not \(2, 2\)"):
    writer.append(VECTORS[:2, :2])
  assert writer.done == 2
  assert not list(tmp_path.iterdir())


def test_rows_are_taken_in_any_order(tmp_path, monkeypatch):
  writer = vector_store.Writer(tmp_path, 3, shard_rows=5)
  writer.append(VECTORS)
  writer.finish()
  monkeypatch.chdir(tmp_path.parent)
  vectors = vector_store.open_vectors(tmp_path.name)
  row_N = np.array([22, 0, 5, 4, 5, 21])
  np.testing.assert_array_equal(vectors.take(row_N), VECTORS[row_N])
  saved = pickle.dumps(vectors)
  monkeypatch.chdir("/")
  np.testing.assert_array_equal(pickle.loads(saved).take(row_N), VECTORS[row_N])


def test_a_changed_byte_is_found(tmp_path):
  digests = set()
  for change in (0.0, 1e-6):
    writer = vector_store.Writer(tmp_path / f"{change}", 3, shard_rows=5)
    writer.append(VECTORS + change)
    writer.finish()
    digests.add(vector_store.open_vectors(tmp_path / f"{change}").digest)
  assert len(digests) == 2
  path = tmp_path / "0.0" / "vectors-00003.npy"
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  with pytest.raises(errors.InputError, match=r"vectors-00003\.npy: (damaged|broken)"):
    vector_store.open_vectors(tmp_path / "0.0")


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_without_a_checksum_are_finite(tmp_path, value):
  vectors = VECTORS.copy()
  vectors[12, 1] = value
  write_old_folder(tmp_path / "old", vectors)
  with pytest.raises(errors.InputError, match=r"vectors-00001\.npy: row 2 is not finite: delete"):
    vector_store.open_vectors(tmp_path / "old")


def test_vectors_of_earlier_versions_have_a_digest(tmp_path):
  write_old_folder(tmp_path / "old", VECTORS)
  assert len(vector_store.open_vectors(tmp_path / "old").digest) == 64


@pytest.mark.parametrize("dtype", ["float16", "binary"])
def test_vectors_in_a_store_are_those_of_a_folder(tmp_path, monkeypatch, dtype):
  store = memory_store.installed(monkeypatch)
  opened = []
  for folder in (tmp_path / "v", "gs://bucket/v"):
    writer = vector_store.Writer(folder, 3, dtype=dtype, shard_rows=5)
    writer.append(VECTORS)
    writer.finish()
    opened.append(vector_store.open_vectors(folder))
    with pytest.raises(errors.InputError, match="has vectors already"):
      vector_store.Writer(folder, 3)
  local, remote = opened
  assert local.digest == remote.digest
  row_N = np.array([22, 0, 5, 4, 5, 21])
  np.testing.assert_array_equal(remote.take(row_N), local.take(row_N))
  for rows in (slice(None), slice(3, 17), slice(7, 8)):
    np.testing.assert_array_equal(remote[rows], local[rows])
  for found, expected in zip(remote.shards(), local.shards(), strict=True):
    np.testing.assert_array_equal(found, expected)
  path = "gs://bucket/v/vectors-00002.npy"
  content = bytearray(store.cat_file(path))
  content[-1] ^= 1
  store.pipe_file(path, bytes(content))
  shard_files._downloaded.cache_clear()
  with pytest.raises(errors.InputError, match=r"gs://bucket/v/vectors-00002.*: (damaged|broken)"):
    vector_store.open_vectors("gs://bucket/v")[:]
  store.rm_file(path)
  with pytest.raises(errors.InputError, match=r"gs://bucket/v/vectors-00002"):
    vector_store.open_vectors("gs://bucket/v")


@pytest.mark.parametrize(
  "ranges",
  [
    None,
    3,
    [],
    [[0, 0, 0]],
    [[0, 0], [1, 1]],
    [["a"] * 3] * 2,
    [[None] * 3] * 2,
    [[10**400] * 3] * 2,
  ],
)
def test_int8_without_good_ranges_is_broken(tmp_path, ranges):
  kind = shard_files.Kind(3, "int8", ranges=((0.0,) * 3, (22.0,) * 3))
  vector_store.start(tmp_path, kind, [23], {})
  sha256 = shard_files.write(vector_store.shard_path(tmp_path, 0), VECTORS, kind)
  vector_store.finish(tmp_path, kind, [sha256])
  assert vector_store.open_vectors(tmp_path).shape == (23, 3)
  path = tmp_path / "vectors.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"ranges": ranges}))
  with pytest.raises(errors.InputError, match=r"vectors\.json: broken"):
    vector_store.open_vectors(tmp_path)
