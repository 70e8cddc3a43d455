import pickle

import jax.numpy as jnp
import memory_store
import naive_search
import numpy as np
import pytest

from vmsst import errors
from vmsst.io import array_files
from vmsst.search import vector_store

VECTORS = np.random.default_rng(0).normal(size=[23, 3]).astype(np.float32)


def write_vectors(folder, vectors=VECTORS, **options):
  return naive_search.write_vectors(folder, vectors, **{"shard_rows": 10, **options})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_was_written_is_read(tmp_path, dtype):
  assert write_vectors(tmp_path / "none", VECTORS[:0])[:].shape == (0, 3)
  vectors = write_vectors(tmp_path / "v", dtype=dtype, inputs={"encoder": "a", "ids": (1, 2)})
  expected = VECTORS.astype(dtype)
  assert (vectors.shape, len(vectors), vectors.dtype) == ((23, 3), 23, np.dtype(dtype))
  assert vectors.settings == {"encoder": "a", "ids": [1, 2]}
  for rows in (slice(None), slice(2, 7), slice(8, 21), slice(10, 20), slice(20, 99), slice(5, 5)):
    np.testing.assert_array_equal(vectors[rows], expected[rows])
  np.testing.assert_array_equal(vectors, expected)
  np.testing.assert_array_equal(list(vectors), expected)
  np.testing.assert_array_equal(vectors[-1], expected[-1])
  # NumPy reads the files without this module.
  files = sorted(tmp_path.glob("v/*.npy"))
  np.testing.assert_array_equal(np.concatenate([np.load(path) for path in files]), expected)


@pytest.mark.parametrize("name", ["vectors-00001.npy", "job.json"])
def test_damaged_and_missing_files_are_named(tmp_path, name):
  with pytest.raises(errors.InputError, match=r"no job\.json; use a folder that `vmsst embed`"):
    vector_store.open_vectors(tmp_path)
  write_vectors(tmp_path)
  path = tmp_path / name
  content = path.read_bytes()
  for damaged in (content[:-5], b"x" + content[1:]):
    path.write_bytes(damaged)
    with pytest.raises(errors.InputError, match=f"{name} is damaged"):
      vector_store.open_vectors(tmp_path)
  path.unlink()
  with pytest.raises(
    errors.InputError, match=rf"{name}.*; use|{name}: cannot be read: No such file"
  ):
    vector_store.open_vectors(tmp_path)


def test_vectors_in_a_store_are_those_of_a_folder(tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  local, remote = (
    write_vectors(folder, dtype="float16", shard_rows=5)
    for folder in (tmp_path / "v", "gs://bucket/v")
  )
  assert local.digest == remote.digest
  assert local.digest != write_vectors(tmp_path / "w", VECTORS + 1e-6, dtype="float16").digest
  row_N = np.array([22, 0, 5, 4, 5, 21])
  np.testing.assert_array_equal(remote.take(row_N), local.take(row_N))
  for rows in (slice(None), slice(3, 17)):
    np.testing.assert_array_equal(remote[rows], local[rows])
  path = "gs://bucket/v/vectors-00002.npy"
  content = bytearray(store.cat_file(path))
  content[-1] ^= 1
  store.pipe_file(path, bytes(content))
  array_files._download.cache_clear()
  with pytest.raises(errors.InputError, match=r"gs://bucket/v/vectors-00002.* is damaged"):
    vector_store.open_vectors("gs://bucket/v")[:]
  store.rm_file(path)
  with pytest.raises(errors.InputError, match=r"gs://bucket/v/vectors-00002"):
    vector_store.open_vectors("gs://bucket/v")[:]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_arrays_and_npy_files_are_vectors(tmp_path, dtype, monkeypatch):
  expected = VECTORS.astype(dtype)
  np.save(tmp_path / "x.npy", expected)
  np.save(tmp_path / "columns.npy", np.asfortranarray(expected))
  monkeypatch.chdir(tmp_path)
  row_N = np.array([22, 0, 5, 4, 5, 21])
  digests = set()
  for source in (expected, "x.npy", tmp_path / "x.npy", "columns.npy", jnp.array(expected)):
    vectors = vector_store.open_vectors(source)
    assert vector_store.open_vectors(vectors) is vectors
    assert (vectors.shape, vectors.dtype, vectors.settings) == ((23, 3), np.dtype(dtype), {})
    for rows in (slice(None), slice(2, 7), slice(20, 99), slice(5, 5), -1):
      np.testing.assert_array_equal(vectors[rows], expected[rows])
    np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(vectors.take(row_N), expected[row_N])
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
    (VECTORS.astype(float), r"float64 of shape \(23, 3\); pass vectors as rows, \[N, D\], in"),
    (VECTORS[0], r"float32 of shape \(3,\)"),
    (np.where(np.eye(23, 3, -4), np.nan, VECTORS), "vector 4 contains a value that is not finite"),
    (np.array([["a"], [None]]), "object|not a NumPy file with vectors"),
  ],
)
def test_other_arrays_are_no_vectors(tmp_path, array, message):
  np.save(tmp_path / "x.npy", array)
  for source, name in ((array, "the array"), (tmp_path / "x.npy", r"x\.npy")):
    with pytest.raises(errors.InputError, match=f"{name}: .*({message})"):
      vector_store.open_vectors(source)
  (tmp_path / "x.npy").write_bytes(b"something else")
  with pytest.raises(errors.InputError, match=r"x\.npy: not a NumPy file with vectors"):
    vector_store.open_vectors(tmp_path / "x.npy")
