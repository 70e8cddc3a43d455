import json

import numpy as np
import pytest
import safetensors.numpy

from vmsst import errors
from vmsst.search import exact_search
from vmsst.vectors import vector_store

VECTORS = np.random.default_rng(0).normal(size=[23, 3]).astype(np.float32)


def write_vectors(folder, vectors=VECTORS, *, chunk=4, finish=True, **settings):
  """Appends what is missing, a few rows at a time, as an embedding job does."""
  with_defaults = {"shard_rows": 10, **settings}
  writer = vector_store.Writer(folder, vectors.shape[1], **with_defaults)
  for start in range(writer.done, len(vectors), chunk):
    writer.append(vectors[start : start + chunk])
  if finish:
    writer.finish()
  return writer


def read_safetensors(path):
  return safetensors.numpy.load_file(path)["vectors"]


def read_parquet(path):
  column = pytest.importorskip("pyarrow.parquet").read_table(path).column("vector")
  return np.array([row.as_py() for row in column])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
  ("file_format", "read"), [("safetensors", read_safetensors), ("parquet", read_parquet)]
)
def test_other_formats_are_read_by_their_own_libraries(tmp_path, file_format, read, dtype):
  if file_format == "parquet":
    pytest.importorskip("pyarrow")
  expected = VECTORS.astype(dtype)
  # Interruptions before and after a full shard is converted to its format.
  write_vectors(tmp_path, VECTORS[:7], finish=False, file_format=file_format, dtype=dtype)
  writer = vector_store.Writer(tmp_path, 3, file_format=file_format, dtype=dtype)
  writer._seal = lambda: None
  writer.append(VECTORS[7:13])
  write_vectors(tmp_path, file_format=file_format, dtype=dtype)
  files = sorted(path.name for path in tmp_path.glob("vectors-*"))
  assert files == [f"vectors-0000{number}.{file_format}" for number in range(3)]
  parts = [read(tmp_path / name) for name in files]
  np.testing.assert_array_equal(np.concatenate(parts), expected)
  vectors = vector_store.open_vectors(tmp_path)
  assert (vectors.dtype, vectors[:].dtype) == (np.dtype(dtype), np.dtype(dtype))
  for rows in (slice(None), slice(2, 7), slice(8, 21), slice(5, 5)):
    np.testing.assert_array_equal(vectors[rows], expected[rows])
  with pytest.raises(errors.InputError, match=r'format is .*, not "npy"'):
    vector_store.Writer(tmp_path, 3, dtype=dtype)
  path = tmp_path / files[1]
  path.write_bytes(path.read_bytes()[:60])
  with pytest.raises(errors.InputError, match=rf"{files[1]}: broken"):
    vector_store.open_vectors(tmp_path)


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


@pytest.mark.parametrize("before", [0, 1, 9, 10, 11, 20, 22])
def test_after_an_interruption_no_row_is_lost_or_doubled(tmp_path, before, monkeypatch):
  write_vectors(tmp_path, VECTORS[:before], chunk=7, finish=False)
  # The process ends while rows are written, before they count.
  writer = vector_store.Writer(tmp_path, 3)
  with monkeypatch.context() as patch:
    patch.setattr(writer, "_commit", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      writer.append(-VECTORS[before : before + 13])
  with pytest.raises(errors.InputError, match=r"not finished|no vectors\.json"):
    vector_store.open_vectors(tmp_path)
  assert write_vectors(tmp_path).finished
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path)[:], VECTORS)
  assert write_vectors(tmp_path, shard_rows=5, finish=False).done == 23  # nothing is left to write


def test_an_interruption_at_the_end_can_be_resumed(tmp_path, monkeypatch):
  writer = write_vectors(tmp_path, VECTORS[:14], finish=False)
  with monkeypatch.context() as patch:
    patch.setattr(writer, "_commit", lambda **_: None)
    writer.finish()
  write_vectors(tmp_path)
  np.testing.assert_array_equal(vector_store.open_vectors(tmp_path)[:], VECTORS)
  with pytest.raises(ValueError, match="finished: nothing"):
    vector_store.Writer(tmp_path, 3).append(VECTORS)


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
  for use in (vector_store.open_vectors, lambda folder: vector_store.Writer(folder, 3)):
    with pytest.raises(errors.InputError, match=f"{name}: {message}"):
      use(tmp_path)


def test_missing_files_and_other_vectors_are_an_error(tmp_path):
  with pytest.raises(errors.InputError, match=r"no vectors\.json: give a folder"):
    vector_store.open_vectors(tmp_path)
  write_vectors(tmp_path, settings={"encoder": "a"}, finish=False)
  for arguments, message in (
    ({"dimension": 4}, "dimension is 3, not 4"),
    ({"dtype": "float16"}, 'dtype is "float32", not "float16"'),
    ({"settings": {"encoder": "b"}}, 'encoder is "a", not "b"'),
  ):
    with pytest.raises(errors.InputError, match=message):
      vector_store.Writer(tmp_path, **{"dimension": 3, "settings": {"encoder": "a"}, **arguments})
  with pytest.raises(errors.InputError, match="format is csv; choose npy, safetensors"):
    vector_store.Writer(tmp_path, 3, file_format="csv")
  with pytest.raises(errors.InputError, match="dtype is float64; choose float32 or float16"):
    vector_store.Writer(tmp_path, 3, dtype="float64")
  (tmp_path / "vectors-00001.npy").unlink()
  with pytest.raises(errors.InputError, match=r"vectors-00001\.npy: cannot be read: No such file"):
    vector_store.Writer(tmp_path, 3, settings={"encoder": "a"})


def test_what_cannot_be_kept_is_an_error_and_nothing_of_it_is_written(tmp_path):
  writer = vector_store.Writer(tmp_path, 3, dtype="float16")
  writer.append(VECTORS[:2])
  for value in (np.nan, 1e5):  # too large for float16
    with pytest.raises(ValueError, match="vector 3 contains a value that is not finite as float16"):
      writer.append([[1, 2, 3], [1, value, 3]])
  with pytest.raises(ValueError, match=r"the shape must be \[N, 3\], not \(2, 2\)"):
    writer.append(VECTORS[:2, :2])
  assert json.loads((tmp_path / "vectors.json").read_text())["done"] == writer.done == 2
