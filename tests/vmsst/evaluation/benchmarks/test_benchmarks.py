import benchmark_trees
import fake_encoders
import memory_store
import pytest

from vmsst import errors
from vmsst.evaluation import benchmarks, evaluation_texts, suite
from vmsst.evaluation.data_digests import DataDigests
from vmsst.files import storage

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


def test_a_store_gives_the_same_results(roots, tmp_path):
  chosen = [each for name, each in benchmarks.BENCHMARKS.items() if name not in TRAINED]
  local, remote = (
    suite.evaluate(
      fake_encoders.FakeEncoder(fake_encoders.random_vector), chosen, root, output, name="E"
    )
    for root, output in zip(roots, (tmp_path / "a", tmp_path / "b"), strict=True)
  )
  for found in (local, remote):
    for own in found["benchmarks"].values():
      del own["seconds"], own["data"]["name"]
  assert local == remote
  assert not local["absent"]
  assert not local["failed"]


def test_digests_list_a_folder_once_and_read_each_object_once(roots, monkeypatch):
  counts = {}
  for name in ("find", "open"):
    former = getattr(memory_store.MemoryStore, name)

    def counted(self, path, *args, former=former, name=name, **kwargs):
      counts.setdefault(name, []).append(path)
      return former(self, path, *args, **kwargs)

    monkeypatch.setattr(memory_store.MemoryStore, name, counted)
  digests = DataDigests(roots[1], leave_out=roots[1] / "xlsts" / "gold")
  digests.identity(["nusax", "xlsts"])
  assert len(counts["find"]) == 2
  assert len(counts["open"]) == len(set(counts["open"])) == 4  # Without the folder left out.
  digests.identity(["nusax"])
  assert len(counts["open"]) == 4


@pytest.mark.parametrize("left_out", ["", "xlsts", "xlsts/gold", "xlsts/gold/x", "xlsts/gol"])
def test_results_inside_the_data_count_as_in_a_local_folder(roots, left_out):
  local, remote = (
    DataDigests(root, leave_out=root / left_out).identity(["xlsts"])["digest"] for root in roots
  )
  assert local == remote
  whole = DataDigests(roots[0], leave_out="elsewhere").identity(["xlsts"])["digest"]
  assert (local == whole) == (left_out not in ("xlsts/gold", "xlsts/gold/x"))


def test_an_unreachable_store_is_named(roots, monkeypatch):
  def refuse(*args, **kwargs):
    raise TimeoutError("no answer")

  monkeypatch.setattr(memory_store.MemoryStore, "isdir", refuse)
  url = storage.path("gs://bucket/other")
  with pytest.raises(errors.InputError, match=r"gs://bucket/other cannot be read: .*no answer"):
    suite.evaluate(None, [], url, "out", name="E")
