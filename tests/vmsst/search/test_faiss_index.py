"""Indexes: what is found in them, and damage to their files."""

import re

import naive_search
import numpy as np
import pytest

from vmsst import errors
from vmsst.cli import vector_jobs
from vmsst.search import exact_search, faiss_index

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
  index = faiss_index.build_index(rows, factory)
  query_ND = exact_search.unit_rows(vectors_ND[:70] + 0.1)
  some_S = np.arange(0, COUNT, 3)
  for chosen_S in (None, some_S):
    mask_N = None if chosen_S is None else np.isin(np.arange(COUNT), chosen_S)
    found = index.nearest(query_ND, 4, mask_N, probes=8, candidates=len(some_S))
    index_QK, score_QK = nearest(vectors_ND, query_ND, 4, chosen_S)
    # A code of 1 bit or 4 bytes may miss one if not all vectors are candidates.
    agreement = (found.index_NK == index_QK).mean()
    assert agreement == 1 if chosen_S is not None else agreement > 0.97
    same = found.index_NK == index_QK
    np.testing.assert_allclose(found.score_NK[same], score_QK[same], atol=1e-6)


def test_an_exact_index_compares_vectors_of_any_length_by_their_direction(vectors_ND):
  changed_ND = vectors_ND.copy()
  changed_ND[1] *= 1e-20
  changed_ND[2] *= 1e25
  changed_ND[3] = 0
  index = faiss_index.build_index(changed_ND)
  assert (index.factory, index.exact) == ("Flat", True)
  found = index.nearest(exact_search.unit_rows(vectors_ND[:5]), 2)
  rows = np.delete(np.arange(COUNT), 3)
  index_QK, score_QK = nearest(vectors_ND, vectors_ND[:5], 2, rows)
  np.testing.assert_array_equal(found.index_NK, index_QK)
  np.testing.assert_allclose(found.score_NK, score_QK, atol=1e-6)


def test_queries_whose_lists_are_nearly_empty_find_enough():
  vectors_ND = np.repeat(np.eye(4, dtype=np.float32), 50, axis=0)
  vectors_ND += 1e-3 * np.arange(200, dtype=np.float32)[:, None] / 200
  index = faiss_index.build_index(vectors_ND, "IVF4,Flat")
  mask_N = np.isin(np.arange(200), [0, 50, 51, 199])
  found = index.nearest(np.eye(4, dtype=np.float32)[:1], 9, mask_N, probes=1)
  assert found.index_NK[0, 0] == 0
  assert sorted(found.index_NK[0]) == [0, 50, 51, 199]
  assert np.isfinite(found.score_NK).all()
  found = index.nearest(np.eye(4, dtype="f4")[:1], 1, probes=1, candidates=100)
  assert found.index_NK.tolist() == [[0]]


@pytest.mark.parametrize("factory", ["RR8,RaBitQ", "IVF64,Flat"])
def test_defaults_rescore_and_probe_enough_to_find_the_nearest(factory):
  vectors_ND = np.random.default_rng(0).normal(size=[2600, 8]).astype(np.float32)
  index = faiss_index.build_index(vectors_ND, factory)
  query_QD = exact_search.unit_rows(vectors_ND[:100] + 0.3)
  exact_Q = (query_QD @ exact_search.unit_rows(vectors_ND).T).argmax(axis=1)
  found_Q = index.nearest(query_QD, 1).index_NK[:, 0]
  assert np.mean(found_Q == exact_Q) > 0.9


@pytest.fixture
def folder(tmp_path, vectors_ND):
  """A folder of vectors and an index of them."""
  naive_search.write_vectors(tmp_path / "vectors", vectors_ND, shard_rows=250)
  vector_jobs.build_index(tmp_path / "vectors", tmp_path / "index", factory="IVF8,SQ8")
  return tmp_path


def open_index(folder):
  return faiss_index.open_index(folder / "index", folder / "vectors")


def test_an_index_of_other_vectors_is_refused(folder, vectors_ND):
  with pytest.raises(errors.InputError, match="not built from the current vectors in the array"):
    faiss_index.open_index(folder / "index", vectors_ND + 1)
  with pytest.raises(errors.InputError, match=r"not built from the current vectors in .*vectors;"):
    faiss_index.open_index(folder / "vectors", folder / "vectors")
  with pytest.raises(errors.InputError, match=r"no job\.json; use a folder that `vmsst index`"):
    faiss_index.open_index(folder, folder / "vectors")


def test_damage_is_found_before_faiss_reads_a_file(folder, monkeypatch):
  path = folder / "index" / "index.faiss"
  content = bytearray(path.read_bytes())
  content[100] ^= 1
  monkeypatch.setattr(faiss_index, "read", lambda *args, **options: 1 / 0)
  for damaged in (content, content[:-1]):
    path.write_bytes(damaged)
    with pytest.raises(errors.InputError, match=r"index\.faiss is damaged: .*delete the folder"):
      open_index(folder)


def test_broken_requests_are_errors(vectors_ND):
  for factory, message in (
    ("HNSW32", "not supported; use a string such as OPQ64"),
    ("IVF8,PQ3", "does not suit vectors of width 8"),
    ("IVF1000,Flat", "cannot be trained on 900 vectors; use fewer lists"),
  ):
    with pytest.raises(errors.InputError, match=message):
      faiss_index.build_index(vectors_ND, factory)


@pytest.mark.parametrize(
  ("count", "dimension", "wanted"),
  [
    (19_999, 1024, "Flat"),
    (1_000_000, 384, "RR384,IVF4096,RaBitQ"),
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


def test_a_search_in_indexes_is_among_selected_rows(vectors_ND):
  index = faiss_index.build_index(vectors_ND, "IVF8,SQfp16")
  side = exact_search.Selection(vectors_ND, np.arange(0, COUNT, 3))
  other = exact_search.Selection(vectors_ND, np.arange(1, COUNT, 2))
  found = exact_search.mutual_top_k(side, other, 2, search=faiss_index.index_search(index, index))
  for near, exact in zip(found, exact_search.mutual_top_k(side, other, 2), strict=True):
    assert np.mean(near.index_NK == exact.index_NK) > 0.97
