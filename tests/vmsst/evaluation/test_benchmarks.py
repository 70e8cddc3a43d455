import collections

import benchmark_trees
import line_files
import memory_store
import pytest

from vmsst import errors
from vmsst.evaluation.benchmarks import BENCHMARKS, held_out_texts


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
  """Roots of the same data, on this machine and in a store. Tests must not change the files."""
  with pytest.MonkeyPatch.context() as patch:
    memory_store.installed(patch)
    root = benchmark_trees.write(tmp_path_factory.mktemp("data"))
    yield root, benchmark_trees.upload(root, "gs://bucket/my[1]/data")


def described(task):
  return task.name, task.text_sets, list(task.held_out_texts())


def test_a_store_has_the_same_tasks_digests_and_texts_to_exclude_from_training(roots):
  for benchmark in BENCHMARKS.values():
    local, remote = ([described(task) for task in benchmark.read(root)] for root in roots)
    assert local == remote
    assert local
    assert all(texts for _, _, texts in local)
    local, remote = (benchmark.files.digest(root) for root in roots)
    assert local == remote
  local, remote = (list(held_out_texts(BENCHMARKS.values(), root)) for root in roots)
  assert local == remote
  assert {name for name, _ in local} == {*BENCHMARKS}


def _sts(folder, name, pairs, scores):
  return {f"sts/{folder}.input.{name}.txt": pairs, f"sts/{folder}.gs.{name}.txt": scores}


# Benchmark, content of files by path, and the expected message.
_CASES = [
  ("sts", _sts("2012/STS", "MSRpar", "a\tb\nc\td\n", "1\nx\n"), "gs.MSRpar.txt:2: 'x' is not a"),
  ("sts", _sts("2014/STS", "images", "a\tb\nc\td\n", "1\n"), "images.txt has 2 lines and .* has 1"),
  (
    "stsb",
    {f"stsb/stsb.de.{x}tsv": "test\tf\t1\t1\t2\ta\tb\n" for x in ("", "mt.")},
    r"de\.tsv: another file also contains de\.test \(1 of 1379 pairs\);",
  ),
  ("questions", {"paq/b.jsonl": "", "nq/NQ-open.dev.jsonl": "[]\n"}, "jsonl:1: Expected"),
  (
    "sib200",
    {"sib200/jav_Latn.tsv": "split\tid\tlabel\ntrain\t1\tx\n"},
    "tsv:1: the line has 3 fields, not 4",
  ),
  (
    "ntrex",
    {"ntrex/newstest2019-src.eng.txt": "a\n", "ntrex/newstest2019-ref.eng.txt": "a\n"},
    "ref.eng.txt and .*src.eng.txt both contain language eng",
  ),
  (
    "ntrex",
    {"ntrex/newstest2019-src.eng.txt": "a\n", "ntrex/newstest2019-ref.deu.txt": "a\nb\n"},
    "eng.txt has 1 lines and .* has 2|deu.txt has 2 lines and .* has 1",
  ),
]


def test_errors_in_files_are_one_line_with_the_path(tmp_path):
  for number, (name, content, message) in enumerate(_CASES):
    root = tmp_path / str(number)
    for path, text in content.items():
      line_files.write_text(root / path, text)
    with pytest.raises(errors.InputError, match=message) as caught:
      BENCHMARKS[name].read(root)
    assert "\n" not in str(caught.value), name


def test_an_absent_benchmark_names_its_folders_and_files(tmp_path):
  for benchmark in BENCHMARKS.values():
    assert benchmark.files.folders[0] in (benchmark.files.absence(tmp_path) or "")


def texts_of(root):
  texts = collections.defaultdict(set)
  for name, text in held_out_texts(BENCHMARKS.values(), root):
    texts[name].add(text)
  return texts


def test_held_out_texts_are_test_texts_and_queries_with_documents_split_into_sentences(tmp_path):
  texts = texts_of(benchmark_trees.write(tmp_path))
  assert texts["tatoeba"] == {f"{word} {n}" for word in ("ja", "yes") for n in range(5)}
  assert texts["sib200"] == {f"{split} {n}" for split in ("dev", "test") for n in range(4)}
  assert texts["mldoc"] == {"It is dev.", "It is test.", "This is english.", "This is german."}
  assert texts["paracrawl"] == {f"{word} {n}" for word in ("a", "ein") for n in range(5)}
  # The questions of the knowledge base are not held out.
  assert texts["questions"] == {f"{word} {n}" for word in ("who", "where", "wo") for n in range(3)}


def test_a_folder_without_evaluation_sets_is_an_error(tmp_path):
  with pytest.raises(
    errors.InputError, match="contains no evaluation data; pass the data folder used"
  ):
    texts_of(tmp_path)
