"""Indexes on disk: what is found in them, interrupted builds, and damage."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import memory_store
import naive_search
import numpy as np
import pytest

from vmsst import errors, storage
from vmsst.jobs import atomic_files
from vmsst.search import exact_search, faiss_index, index_folder, vector_store

COUNT, WIDTH = 900, 8
FACTORIES = ["Flat", "SQ8", "RR8,RaBitQ", "IVF8,SQfp16", "PCAR8,IVF8,RaBitQ", "OPQ4,IVF2,PQ4"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
  """FAISS's threads wait for each other thousands of times, long on a busy machine."""
  faiss = faiss_index.library()
  before = faiss.omp_get_max_threads()
  faiss.omp_set_num_threads(1)
  yield
  faiss.omp_set_num_threads(before)


@pytest.fixture(scope="module")
def vectors_ND():
  """Vectors near a few directions, of many lengths."""
  rng = np.random.default_rng(3)
  vectors_ND = rng.normal(size=[30, WIDTH])[rng.integers(30, size=COUNT)]
  vectors_ND += 0.4 * rng.normal(size=[COUNT, WIDTH])
  return (vectors_ND * rng.uniform(0.1, 9, [COUNT, 1])).astype(np.float32)


@pytest.fixture(scope="module")
def stored(tmp_path_factory, vectors_ND):
  """A folder of vectors and an index of them in two shards."""
  folder = tmp_path_factory.mktemp("stored")
  rows = naive_search.write_vectors(folder / "vectors", vectors_ND, shard_rows=250)
  build(rows, folder / "index")
  return folder


@pytest.fixture
def folder(stored, tmp_path):
  """A copy of `stored` that a test may change."""
  return shutil.copytree(stored, tmp_path / "stored")


def build(rows, folder, factory="IVF8,SQ8", shard_rows=500, **options):
  options = {"factory": factory, "shard_rows": shard_rows, **options}
  return index_folder.build_index(getattr(rows, "folder", rows), folder, **options)


def open_index(folder):
  return index_folder.open_index(folder / "index", folder / "vectors")


def nearest(vectors_ND, query_ND, k, rows=None):
  """Returns rows and cosines of the k nearest, in float64 by a sort of all."""
  unit_ND, unit_QD = (
    x.astype(float) / np.linalg.norm(x, axis=1, keepdims=True) for x in (vectors_ND, query_ND)
  )
  score_QN = unit_QD @ unit_ND.T
  if rows is not None:
    score_QN[:, np.setdiff1d(np.arange(len(vectors_ND)), rows)] = -np.inf
  index_QK = np.argsort(-score_QN, axis=1)[:, :k]
  return index_QK, np.take_along_axis(score_QN, index_QK, axis=1)


@pytest.mark.parametrize("factory", FACTORIES)
def test_rescored_candidates_of_all_lists_are_the_nearest(tmp_path, vectors_ND, factory):
  rows = naive_search.write_vectors(tmp_path / "vectors", vectors_ND, shard_rows=250)
  build(rows, tmp_path / "index", factory)
  query_ND = exact_search.unit_rows(vectors_ND[:70] + 0.1)
  some_S = np.arange(0, COUNT, 3)
  for chosen_S in (None, some_S):
    wanted_N = None if chosen_S is None else np.isin(np.arange(COUNT), chosen_S)
    found = open_index(tmp_path).nearest(query_ND, 4, wanted_N, probes=8, candidates=len(some_S))
    index_QK, score_QK = nearest(vectors_ND, query_ND, 4, chosen_S)
    # A code of 1 bit or 4 bytes may miss one if not all vectors are candidates.
    agreement = (found.index_NK == index_QK).mean()
    assert agreement == 1 if chosen_S is not None else agreement > 0.97
    same = found.index_NK == index_QK
    np.testing.assert_allclose(found.score_NK[same], score_QK[same], atol=1e-6)


@pytest.mark.parametrize("kind", ["array", "file", "store"])
def test_vectors_of_another_source_have_the_index_of_a_folder(
  tmp_path, vectors_ND, kind, monkeypatch
):
  store = memory_store.installed(monkeypatch)
  np.save(tmp_path / "x.npy", vectors_ND)
  store.pipe_file("gs://bucket/x.npy", (tmp_path / "x.npy").read_bytes())
  source = {"array": vectors_ND, "file": tmp_path / "x.npy", "store": "gs://bucket/x.npy"}[kind]
  naive_search.write_vectors(tmp_path / "vectors", vectors_ND)
  build(tmp_path / "vectors", tmp_path / "index")
  for _ in range(2):  # The second does nothing.
    index_folder.build_index(source, tmp_path / "other", factory="IVF8,SQ8", shard_rows=500)
  assert (tmp_path / "other/index.faiss").read_bytes() == (
    tmp_path / "index/index.faiss"
  ).read_bytes()
  found = index_folder.open_index(tmp_path / "other", source).nearest(vectors_ND[:9], 2)
  expected = open_index(tmp_path).nearest(vectors_ND[:9], 2)
  np.testing.assert_array_equal(found.index_NK, expected.index_NK)
  with pytest.raises(errors.InputError, match="is an index of other vectors than the array"):
    index_folder.open_index(tmp_path / "other", vectors_ND + 1)


def test_an_exact_index_compares_vectors_of_any_length_by_their_direction(tmp_path, vectors_ND):
  changed_ND = vectors_ND.copy()
  changed_ND[1] *= 1e-20
  changed_ND[2] *= 1e25
  changed_ND[3] = 0
  naive_search.write_vectors(tmp_path / "vectors", changed_ND)
  built = [index_folder.build_index(tmp_path / "vectors", tmp_path / "index") for _ in range(2)]
  assert built[0] == built[1]
  index = open_index(tmp_path)
  assert (index.factory, index.exact) == ("Flat", True)
  found = index.nearest(exact_search.unit_rows(vectors_ND[:5]), 2)
  rows = np.delete(np.arange(COUNT), 3)
  index_QK, score_QK = nearest(vectors_ND, vectors_ND[:5], 2, rows)
  np.testing.assert_array_equal(found.index_NK, index_QK)
  np.testing.assert_allclose(found.score_NK, score_QK, atol=1e-6)


def test_queries_whose_lists_are_nearly_empty_find_enough(tmp_path):
  vectors_ND = np.repeat(np.eye(4, dtype=np.float32), 50, axis=0)
  naive_search.write_vectors(
    tmp_path / "vectors", vectors_ND + 1e-3 * np.arange(200)[:, None] / 200
  )
  build(tmp_path / "vectors", tmp_path / "index", "IVF4,Flat")
  wanted_N = np.isin(np.arange(200), [0, 50, 51, 199])
  found = open_index(tmp_path).nearest(np.eye(4, dtype=np.float32)[:1], 9, wanted_N, probes=1)
  assert found.index_NK[0, 0] == 0
  assert sorted(found.index_NK[0]) == [0, 50, 51, 199]
  assert np.isfinite(found.score_NK).all()
  found = open_index(tmp_path).nearest(np.eye(4, dtype="f4")[:1], 1, probes=1, candidates=100)
  assert found.index_NK.tolist() == [[0]]


@pytest.mark.parametrize("factory", ["RR8,RaBitQ", "IVF64,Flat"])
def test_defaults_rescore_and_probe_enough_to_find_the_nearest(tmp_path, factory):
  vectors_ND = np.random.default_rng(0).normal(size=[2600, 8]).astype(np.float32)
  naive_search.write_vectors(tmp_path / "vectors", vectors_ND)
  build(tmp_path / "vectors", tmp_path / "index", factory)
  query_QD = exact_search.unit_rows(vectors_ND[:100] + 0.3)
  exact_Q = (query_QD @ exact_search.unit_rows(vectors_ND).T).argmax(axis=1)
  found_Q = open_index(tmp_path).nearest(query_QD, 1).index_NK[:, 0]
  assert np.mean(found_Q == exact_Q) > 0.9


def files_of(folder):
  return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("stop", range(9))
def test_an_interrupted_build_resumes_to_the_same_bytes(stored, tmp_path, monkeypatch, stop):
  """Interrupts before each file that is written: a state, and three with their results."""
  rows = vector_store.open_vectors(stored / "vectors")
  written, replace = [], atomic_files.replace

  def interrupted(path, place):
    if len(written) == stop:
      written.append("")
      raise KeyboardInterrupt
    replace(path, place)
    written.append(place.name)

  monkeypatch.setattr(atomic_files, "replace", interrupted)
  with pytest.raises(KeyboardInterrupt):
    build(rows, tmp_path / "index")
  build(rows, tmp_path / "index")
  before, after = written[:stop], written[stop + 1 :]
  # Files whose results are known are not made again.
  done = {name.removesuffix(".json") for name in before if name.endswith(".faiss.json")}
  assert not done & set(after)
  assert files_of(tmp_path / "index") == files_of(stored / "index")
  assert sorted(files_of(tmp_path / "index")) == ["index.faiss", "index.json"]


def test_an_index_in_a_store_resumes_to_its_bytes_and_is_copied_once(stored, tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  store.put(str(stored / "vectors"), "gs://bucket/vectors", recursive=True)
  rows, url = vector_store.open_vectors("gs://bucket/vectors"), "gs://bucket/index"
  put, written = memory_store.MemoryStore.put_file, []

  def interrupted(self, local, remote, **options):
    if len(written) % 4 == 3:
      written.append("")
      raise KeyboardInterrupt
    written.append(remote.removeprefix(f"{url}/"))
    put(self, local, remote, **options)

  monkeypatch.setattr(memory_store.MemoryStore, "put_file", interrupted)
  for _ in range(3):
    with pytest.raises(KeyboardInterrupt):
      build(rows, url)
    with pytest.raises(errors.InputError, match=f"{url} is not finished; rerun the same"):
      index_folder.open_index(url, "gs://bucket/vectors")
  build(rows, url)
  build(rows, url)  # It is complete.
  names = ["index", ".vmsst/shard-00000", ".vmsst/shard-00001", ".vmsst/trained"]
  assert sorted(name for name in written if name.endswith(".faiss")) == sorted(
    f"{x}.faiss" for x in names
  )
  expected = files_of(stored / "index")
  found = {name: store.cat_file(f"{url}/{name}") for name in storage.names(url)}
  own = found["index.json"].replace(b"gs://bucket/vectors", os.fsencode(stored / "vectors"))
  assert {**found, "index.json": own} == expected
  query_ND = exact_search.unit_rows(rows[:9] + 0.1)
  near = open_index(stored).nearest(query_ND, 4)
  for _ in range(2):
    index = index_folder.open_index(url, "gs://bucket/vectors")
    found = index.nearest(query_ND, 4)
    np.testing.assert_array_equal(found.index_NK, near.index_NK)
    np.testing.assert_array_equal(found.score_NK, near.score_NK)
    monkeypatch.setattr(memory_store.MemoryStore, "get_file", None)
  assert not list(tmp_path.iterdir())  # The copy is a map without a name.


def test_other_settings_and_vectors_are_refused(folder, vectors_ND):
  rows = vector_store.open_vectors(folder / "vectors")
  with pytest.raises(errors.InputError, match=r'another index: factory is "IVF8,SQ8", not "SQ8"'):
    build(rows, folder / "index", "SQ8")
  (folder / "foreign").mkdir()
  (folder / "foreign/index.faiss").write_bytes(b"foreign")
  with pytest.raises(errors.InputError, match="is not by `vmsst index`; give another folder"):
    build(rows, folder / "foreign")
  assert (folder / "foreign/index.faiss").read_bytes() == b"foreign"
  shutil.rmtree(folder / "vectors")
  vectors_ND = vectors_ND.copy()
  vectors_ND[700, 3] += 1e-3
  rows = naive_search.write_vectors(folder / "vectors", vectors_ND)
  with pytest.raises(errors.InputError, match="another index: vectors is "):
    build(rows, folder / "index")
  with pytest.raises(errors.InputError, match=r"index of other vectors than .*vectors, or of an e"):
    open_index(folder)


def test_damage_is_found_before_faiss_reads_a_file(folder, vectors_ND, monkeypatch):
  build(naive_search.write_vectors(folder / "other", vectors_ND[:400]), folder / "short")
  path, state = folder / "index" / "index.faiss", folder / "index" / "index.json"
  content = bytearray(path.read_bytes())
  content[100] ^= 1
  with monkeypatch.context() as patched:
    patched.setattr(faiss_index, "read", lambda *args, **options: 1 / 0)
    for damaged in (content, content[:-1]):
      path.write_bytes(damaged)
      with pytest.raises(errors.InputError, match=r"index\.faiss: damaged: .*delete the folder"):
        open_index(folder)
    with pytest.raises(errors.InputError, match=r"index\.faiss: damaged"):
      build(folder / "vectors", folder / "index")
  # The checksum of another index is right, but it is not of these vectors.
  path.unlink()
  shutil.copy(folder / "short" / "index.faiss", path)
  other = json.loads((folder / "short" / "index.json").read_text())
  state.write_text(json.dumps(json.loads(state.read_text()) | {"sha256": other["sha256"]}))
  with pytest.raises(errors.InputError, match=r"it has 400 vectors of width 8, not 900 of width 8"):
    open_index(folder)


def test_a_damaged_part_of_an_unfinished_build_is_made_again(stored, tmp_path, monkeypatch):
  fill = faiss_index.fill
  monkeypatch.setattr(
    faiss_index, "fill", lambda index, blocks, first: 1 / 0 if first else fill(index, blocks, first)
  )
  with pytest.raises(ZeroDivisionError):
    build(stored / "vectors", tmp_path / "index")
  monkeypatch.undo()
  with pytest.raises(errors.InputError, match="index is not finished; rerun"):
    index_folder.open_index(tmp_path / "index", stored / "vectors")
  for name in ("trained", "shard-00000"):
    path = tmp_path / "index" / ".vmsst" / f"{name}.faiss"
    path.write_bytes(b"x" * path.stat().st_size)
  build(stored / "vectors", tmp_path / "index")
  assert files_of(tmp_path / "index") == files_of(stored / "index")


@pytest.mark.parametrize(
  "change",
  [
    {"sha256": 3}, {"factory": "HNSW32"}, {"shard_rows": 0}, {"more": 1}, None,
    {"vectors": {"count": -1, "dimension": WIDTH, "digest": ""}},
  ],
)  # fmt: skip
def test_broken_states_are_errors(folder, change):
  path = folder / "index" / "index.json"
  state = json.loads(path.read_text())
  path.write_text("[1" if change is None else json.dumps({**state, **change}))
  with pytest.raises(errors.InputError, match=r"index\.(json|faiss): "):
    open_index(folder)
  rows = vector_store.open_vectors(folder / "vectors")
  with pytest.raises(errors.InputError, match=r"index\.(json|faiss): "):
    build(rows, folder / "index")


def test_broken_requests_are_errors(tmp_path, vectors_ND):
  rows = naive_search.write_vectors(tmp_path / "vectors", vectors_ND)
  for factory, message in (
    ("HNSW32", "not supported: give one such as OPQ64"),
    ("IVF0,Flat", "has no lists"),
    ("PQ8", "needs lists: give IVF1,PQ8"),
    ("IVF8,PQ3", "does not suit vectors of width 8"),
  ):
    with pytest.raises(errors.InputError, match=message):
      build(rows, tmp_path / "index", factory)
    assert not (tmp_path / "index").exists()
  with pytest.raises(errors.InputError, match=r"cannot be trained on 900 vectors: .*fewer lists"):
    build(rows, tmp_path / "index", "IVF1000,Flat")
  build(rows, tmp_path / "index", "Flat")
  naive_search.write_vectors(tmp_path / "empty", vectors_ND[:0])
  with pytest.raises(errors.InputError, match="empty has no vectors"):
    index_folder.build_index(tmp_path / "empty", tmp_path / "other")
  with pytest.raises(errors.InputError, match=r"no index\.json: give a folder that `vmsst index`"):
    index_folder.open_index(tmp_path / "other", tmp_path / "vectors")


def test_without_faiss_the_error_names_the_extra(stored, tmp_path, monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "faiss", None)
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[faiss\]'"):
    open_index(stored)
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[faiss\]'"):
    build(vector_store.open_vectors(stored / "vectors"), tmp_path / "index")


@pytest.mark.parametrize(
  ("count", "dimension", "wanted"),
  [
    (19_999, 1024, "Flat"),
    (20_000, 1024, "RR1024,IVF1024,RaBitQ"),
    (1_000_000, 384, "RR384,IVF4096,RaBitQ"),
    (10_000_000, 256, "OPQ64,IVF16384,PQ64"),
    (100_000_000, 1024, "OPQ64,IVF65536,PQ64"),
    (1_000_000, 250, "OPQ50,IVF4096,PQ50"),
  ],
)
def test_defaults_grow_with_the_number_of_vectors(count, dimension, wanted):
  assert faiss_index.default_factory(count, dimension) == wanted
  rows = faiss_index.training_rows(wanted)
  # FAISS wants 39 training vectors or more for each list.
  assert rows >= 39 * int((re.search(r"IVF(\d+)", wanted) or [0, 0])[1])
  assert (rows == 0) == (wanted == "Flat")


@pytest.mark.parametrize("factory", ["IVF32,PQ32", "OPQ32,IVF32,PQ32", "IVF32,SQ8"])
def test_few_vectors_for_a_code_are_no_reason_for_warnings(factory, capfd):
  vectors_ND = np.random.default_rng(0).normal(size=(300, 64))
  index = faiss_index.train(factory, exact_search.unit_rows(vectors_ND))
  assert index.is_trained
  assert capfd.readouterr() == ("", "")


def test_threads_of_faiss_wait_passively():
  """Thousands of short waits that use all cores make a busy machine slow."""
  code = "from vmsst.search import faiss_index; faiss_index.library()"
  environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
  done = subprocess.run(
    [sys.executable, "-c", code],
    env=environment | {"OMP_DISPLAY_ENV": "true"},
    capture_output=True,
    text=True,
  )
  if "OMP_WAIT_POLICY" not in done.stderr:
    pytest.skip("an OpenMP that does not show its settings")
  assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


def test_lists_number_vectors_through_all_blocks():
  pytest.importorskip("faiss", reason="needs faiss-cpu")
  vectors_ND = exact_search.unit_rows(np.random.default_rng(0).normal(size=(90, 4)))
  index = faiss_index.train("IVF2,Flat", vectors_ND)
  faiss_index.fill(index, [vectors_ND[:50], vectors_ND[50:]], first=3)
  index.nprobe = 2
  _, found_N1 = index.search(vectors_ND.astype(np.float32), 1)
  np.testing.assert_array_equal(found_N1[:, 0], np.arange(3, 93))
