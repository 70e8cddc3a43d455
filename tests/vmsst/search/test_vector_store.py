import os
import pickle
import resource

import jax.numpy as jnp
import memory_store
import naive_search
import numpy as np
import pytest

from vmsst import errors
from vmsst.io import npy_files
from vmsst.search import vector_store

VECTORS = np.random.default_rng(0).normal(size=[23, 3]).astype(np.float32)


def write_vectors(folder, vectors=VECTORS, **options):
  return naive_search.write_vectors(folder, vectors, **{"shard_rows": 10, **options})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_was_written_is_read(tmp_path, dtype):
  assert write_vectors(tmp_path / "none", VECTORS[:0])[:].shape == (0, 3)
  vectors = write_vectors(tmp_path, dtype=dtype, settings={"encoder": "a", "ids": (1, 2)})
  expected = VECTORS.astype(dtype)
  assert (vectors.shape, len(vectors), vectors.dtype) == ((23, 3), 23, np.dtype(dtype))
  assert vectors.settings == {"encoder": "a", "ids": [1, 2]}
  for rows in (slice(None), slice(2, 7), slice(8, 21), slice(10, 20), slice(20, 99), slice(5, 5)):
    np.testing.assert_array_equal(vectors[rows], expected[rows])
  np.testing.assert_array_equal(vectors, expected)
  np.testing.assert_array_equal(list(vectors), expected)
  np.testing.assert_array_equal(vectors[-1], expected[-1])
  assert [len(shard) for shard in vectors.shards()] == [10, 10, 3]
  # NumPy reads the files without this module.
  files = sorted(tmp_path.glob("*.npy"))
  np.testing.assert_array_equal(np.concatenate([np.load(path) for path in files]), expected)


def test_shards_of_any_size_are_written_in_any_order(tmp_path):
  rows = [3, 10, 1, 9]
  state = vector_store.State(3, "float32", rows, {"a": 1})
  ends = np.cumsum(rows)
  sha256 = {}
  for round in range(2):  # An interrupted job does the same again.
    assert not vector_store.start(tmp_path, state)
    with pytest.raises(errors.InputError, match="is not finished; rerun"):
      vector_store.open_vectors(tmp_path)
    for number in (2, 0, 3) if round == 0 else (1, 2):
      part = VECTORS[ends[number] - rows[number] : ends[number]]
      path = vector_store.shard_path(tmp_path, number)
      sha256[number] = npy_files.write_shard(path, part, 3, "float32")
    if round == 0:
      with pytest.raises(errors.InputError, match=r"vectors-00001\.npy: cannot be read: No such"):
        vector_store.finish(tmp_path, [])
  vector_store.finish(tmp_path, [sha256[number] for number in range(4)])
  assert vector_store.start(tmp_path, state)
  vectors = vector_store.open_vectors(tmp_path)
  assert [len(shard) for shard in vectors.shards()] == rows
  for part in (slice(None), slice(2, 14), slice(13, 14)):
    np.testing.assert_array_equal(vectors[part], VECTORS[part])


def test_nothing_is_left_of_a_folder_that_got_no_shard(tmp_path):
  state = vector_store.State(3, "float32", [2, 2], {})
  vector_store.start(tmp_path / "v", state)
  vector_store.abandon(tmp_path / "v")
  assert not (tmp_path / "v").exists()
  vector_store.start(tmp_path / "v", state)
  npy_files.write_shard(vector_store.shard_path(tmp_path / "v", 1), VECTORS[:2], 3, "float32")
  vector_store.abandon(tmp_path / "v")
  assert len(list((tmp_path / "v").iterdir())) == 2


@pytest.mark.parametrize(
  ("name", "change", "message"),
  [
    ("vectors-00001.npy", lambda raw: raw[:-1], "truncated: it has fewer than 10 vectors"),
    ("vectors-00002.npy", lambda raw: raw[:100], "broken: its header is not"),
    ("vectors-00000.npy", lambda raw: b"x" + raw[1:], "broken: its header is not"),
    ("vectors.json", lambda raw: raw[:-5], "broken"),
    ("vectors.json", lambda raw: raw.replace(b"float32", b"float64"), "broken: .*dtype"),
    (
      "vectors.json",
      lambda raw: raw.replace(b'"dimension": ', b'"dimension": 9' + b"0" * 20),
      "broken: .*dimension",
    ),
    ("vectors.json", lambda raw: raw.replace(b'"rows": [', b'"rows": [-1, '), "broken: .*rows"),
    ("vectors.json", lambda raw: raw.replace(b'"rows": [', b'"rows": [1, '), "broken: .*rows"),
    ("vectors.json", lambda raw: raw.replace(b"{", b'{"more": 1,', 1), "broken: .*more"),
    ("vectors.json", lambda raw: b"[]", "broken"),
    ("vectors.json", lambda raw: raw.replace(b'"encoder"', b'"field": 2, "x"'), "broken: .*text"),
    ("vectors.json", lambda raw: raw.replace(b'"a"', b'{"name": 5}'), "broken: .*text"),
  ],
)
def test_broken_files_are_named(tmp_path, name, change, message):
  write_vectors(tmp_path, settings={"encoder": "a"})
  path = tmp_path / name
  path.write_bytes(change(path.read_bytes()))
  state = vector_store.State(3, "float32", [], {"encoder": "a"})
  for use in (vector_store.open_vectors, lambda folder: vector_store.start(folder, state)):
    with pytest.raises(errors.InputError, match=f"{name}: {message}"):
      use(tmp_path)


def test_missing_files_and_other_vectors_are_an_error(tmp_path):
  with pytest.raises(errors.InputError, match=r"no vectors\.json: give a folder"):
    vector_store.open_vectors(tmp_path)
  write_vectors(tmp_path, settings={"encoder": "a"})
  for dimension, dtype, encoder, message in (
    (4, "float32", "a", "dimension is 3, not 4"),
    (3, "float16", "a", 'dtype is "float32", not "float16"'),
    (3, "float32", "b", 'encoder is "a", not "b"'),
  ):
    with pytest.raises(errors.InputError, match=message):
      vector_store.start(tmp_path, vector_store.State(dimension, dtype, [23], {"encoder": encoder}))
  (tmp_path / "vectors-00001.npy").unlink()
  with pytest.raises(errors.InputError, match=r"vectors-00001\.npy: cannot be read: No such file"):
    vector_store.start(tmp_path, vector_store.State(3, "float32", [23], {"encoder": "a"}))


def test_rows_are_taken_in_any_order(tmp_path, monkeypatch):
  write_vectors(tmp_path, shard_rows=5)
  monkeypatch.chdir(tmp_path.parent)
  vectors = vector_store.open_vectors(tmp_path.name)
  row_N = np.array([22, 0, 5, 4, 5, 21])
  np.testing.assert_array_equal(vectors.take(row_N), VECTORS[row_N])
  saved = pickle.dumps(vectors)
  monkeypatch.chdir("/")
  np.testing.assert_array_equal(pickle.loads(saved).take(row_N), VECTORS[row_N])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors on Linux")
def test_more_shards_than_a_process_may_open_files(tmp_path, monkeypatch):
  vectors_ND = np.random.default_rng(0).normal(size=[300, 8]).astype(np.float32)
  monkeypatch.setattr(vector_store, "_MAPS", 8)
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  used = max(map(int, os.listdir("/proc/self/fd")))
  resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, limits[1]))
  try:
    vectors = naive_search.write_vectors(tmp_path, vectors_ND, shard_rows=2)
    shards = np.concatenate([shard.copy() for shard in vectors.shards()])
    for found in (vectors[:], vectors.take(np.arange(300)), shards):
      np.testing.assert_array_equal(found, vectors_ND)
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_changed_byte_is_found(tmp_path):
  digests = set()
  for change in (0.0, 1e-6):
    digests.add(write_vectors(tmp_path / f"{change}", VECTORS + change, shard_rows=5).digest)
  assert len(digests) == 2
  path = tmp_path / "0.0" / "vectors-00003.npy"
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  with pytest.raises(errors.InputError, match=r"vectors-00003\.npy: (damaged|broken)"):
    vector_store.open_vectors(tmp_path / "0.0")


def test_vectors_in_a_store_are_those_of_a_folder(tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  local, remote = (
    write_vectors(folder, dtype="float16", shard_rows=5)
    for folder in (tmp_path / "v", "gs://bucket/v")
  )
  assert local.digest == remote.digest
  row_N = np.array([22, 0, 5, 4, 5, 21])
  np.testing.assert_array_equal(remote.take(row_N), local.take(row_N))
  for rows in (slice(None), slice(3, 17)):
    np.testing.assert_array_equal(remote[rows], local[rows])
  path = "gs://bucket/v/vectors-00002.npy"
  content = bytearray(store.cat_file(path))
  content[-1] ^= 1
  store.pipe_file(path, bytes(content))
  npy_files._downloaded.cache_clear()
  with pytest.raises(errors.InputError, match=r"gs://bucket/v/vectors-00002.*: (damaged|broken)"):
    vector_store.open_vectors("gs://bucket/v")[:]
  store.rm_file(path)
  with pytest.raises(errors.InputError, match=r"gs://bucket/v/vectors-00002"):
    vector_store.open_vectors("gs://bucket/v")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_arrays_and_npy_files_are_vectors(tmp_path, dtype, monkeypatch):
  expected = VECTORS.astype(dtype)
  np.save(tmp_path / "x.npy", expected)
  with open(tmp_path / "old.npy", "wb") as file:  # with another size of the header
    file.write(b"\x93NUMPY\x01\x00\x46\x00")
    file.write(f"{{'descr': '{expected.dtype.str}', 'fortran_order': False, ".encode())
    file.write(b"'shape': (23, 3)}".ljust(0x46 - file.tell() + 10) + expected.tobytes())
  np.save(tmp_path / "columns.npy", np.asfortranarray(expected))
  monkeypatch.chdir(tmp_path)
  row_N = np.array([22, 0, 5, 4, 5, 21])
  digests = set()
  for source in (
    expected,
    "x.npy",
    tmp_path / "x.npy",
    "old.npy",
    "columns.npy",
    jnp.array(expected),
  ):
    vectors = vector_store.open_vectors(source)
    assert vector_store.open_vectors(vectors) is vectors
    assert (vectors.shape, vectors.dtype, vectors.settings) == ((23, 3), np.dtype(dtype), {})
    for rows in (slice(None), slice(2, 7), slice(20, 99), slice(5, 5), -1):
      np.testing.assert_array_equal(vectors[rows], expected[rows])
    np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(vectors.take(row_N), expected[row_N])
    assert [len(shard) for shard in vectors.shards()] == vectors.shard_rows == [23]
    digests.add(vectors.digest)
  assert len(digests) == 1
  assert vector_store.open_vectors(expected * 2).digest not in digests
  saved = pickle.dumps(vector_store.open_vectors("x.npy"))
  assert len(saved) < 1000
  monkeypatch.chdir("/")
  np.testing.assert_array_equal(pickle.loads(saved).take(row_N), expected[row_N])
  copy = pickle.loads(pickle.dumps(vector_store.open_vectors(expected)))
  np.testing.assert_array_equal(copy[:], expected)


@pytest.mark.parametrize(
  ("array", "message"),
  [
    (VECTORS.astype(float), r"float64 of shape \(23, 3\); give vectors as rows, \[N, D\], of"),
    (VECTORS.astype(">f4"), "give vectors as rows"),
    (VECTORS[0], r"float32 of shape \(3,\)"),
    (np.array([[1, 2]]), "int64"),
    (np.where(np.eye(23, 3, -4), np.nan, VECTORS), "vector 4 contains a value that is not finite"),
    (np.array([["a"], [None]]), "object|not a NumPy file of vectors"),
  ],
)
def test_other_arrays_are_no_vectors(tmp_path, array, message):
  np.save(tmp_path / "x.npy", array)
  for source, name in ((array, "the array"), (tmp_path / "x.npy", r"x\.npy")):
    with pytest.raises(errors.InputError, match=f"{name}: .*({message})"):
      vector_store.open_vectors(source)
  (tmp_path / "x.npy").write_bytes(b"something else")
  with pytest.raises(errors.InputError, match=r"x\.npy: not a NumPy file of vectors"):
    vector_store.open_vectors(tmp_path / "x.npy")


def test_windows_become_the_file_that_numpy_would_write(tmp_path):
  array = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
  rows = array.reshape(8, 3)
  npy_files.write(tmp_path / "a.npy", array.shape, (rows[:5], rows[5:]))
  np.save(tmp_path / "b.npy", array)
  assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
  found = npy_files.open_mapped(tmp_path / "a.npy", (4, 2, "D"))
  assert isinstance(found, np.memmap)
  np.testing.assert_array_equal(found, array)
  with pytest.raises(ValueError, match="vector 2 contains a value that is not finite"):
    npy_files.write(tmp_path / "c.npy", (3, 3), (rows[:2], [[1, np.inf, 1]]))
  for shard, message in (
    ([[1, 2, 3], [1, np.nan, 3]], "vector 1 contains a value that is not finite as float16"),
    ([[1, 2, 1e5]], "vector 0 contains"),  # too large for float16
    (rows[:2, :2], r"the shape must be \[N, 3\], not \(2, 2\)"),
  ):
    with pytest.raises(ValueError, match=message):
      npy_files.write_shard(str(tmp_path / "d.npy"), shard, 3, "float16")
    assert not (tmp_path / "d.npy").exists()


@pytest.mark.parametrize(
  "array", [np.zeros([2, 3]), np.zeros([2, 4], "f4"), np.zeros([2, 3], "f4", "F")]
)
def test_other_arrays_and_files_are_an_error(array, tmp_path):
  np.save(tmp_path / "x.npy", array)
  with pytest.raises(errors.InputError, match=r"x\.npy: vectors must be float32 \[N, 3\] in C"):
    npy_files.open_mapped(tmp_path / "x.npy", ("N", 3))
  (tmp_path / "x.npy").write_bytes(b"something else")
  with pytest.raises(errors.InputError, match=r"x\.npy: not a NumPy file of vectors"):
    npy_files.open_mapped(tmp_path / "x.npy", ("N", 3))
