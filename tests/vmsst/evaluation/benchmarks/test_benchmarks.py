import benchmark_trees
import memory_store
import pytest

from vmsst.evaluation import benchmarks, evaluation_texts, suite
from vmsst.evaluation.data_digests import DataDigests

TRAINED = ("mldoc", "cls", "amazon", "sib200", "nusax")  # Their classifiers take seconds.


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
  """The same data on this machine and in a store, which other tests of this module only read."""
  with pytest.MonkeyPatch.context() as patch:
    memory_store.installed(patch)
    root = benchmark_trees.write(tmp_path_factory.mktemp("data"))
    yield root, benchmark_trees.upload(root, "gs://bucket/my[1]/data")


def described(task):
  """Returns the texts of a task, and the documents of one of documents."""
  splits = None
  if isinstance(task, suite.LargeTask):
    splits = getattr(task.measure, "keywords", {}).get("splits")
  return task.name, getattr(task, "sides", ()), list(task.texts()), splits


@pytest.mark.parametrize("name", benchmarks.BENCHMARKS)
def test_a_store_has_the_same_tasks_and_digests(roots, name):
  benchmark = benchmarks.BENCHMARKS[name]
  local, remote = ([described(task) for task in benchmark.read(root)] for root in roots)
  assert local == remote
  assert local
  assert all(texts for _, _, texts, _ in local)
  own, other = (
    DataDigests(root, leave_out=root / "results").identity(
      benchmark.folders, (*benchmark.files, *benchmark.more_files)
    )
    for root in roots
  )
  assert own["digest"] == other["digest"]
  assert (own["name"], other["name"]) == tuple(map(str, roots))


def test_a_store_has_the_same_texts_to_exclude_from_training(roots):
  local, remote = (
    list(evaluation_texts.iter_texts(benchmarks.BENCHMARKS.values(), root)) for root in roots
  )
  assert local == remote
  # "bucc" and "bucc_test" share a folder, as do others; all benchmarks have texts.
  assert {name for name, _ in local} == {*benchmarks.BENCHMARKS, evaluation_texts.TICO19}


@pytest.mark.parametrize("left_out", ["", "xlsts", "xlsts/gold", "xlsts/gold/x", "xlsts/gol"])
def test_results_inside_the_data_count_as_in_a_local_folder(roots, left_out):
  local, remote = (
    DataDigests(root, leave_out=root / left_out).identity(["xlsts"])["digest"] for root in roots
  )
  assert local == remote
  whole = DataDigests(roots[0], leave_out="elsewhere").identity(["xlsts"])["digest"]
  assert (local == whole) == (left_out not in ("xlsts/gold", "xlsts/gold/x"))
