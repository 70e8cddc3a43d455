"""Files of benchmarks that are broken or missing are named in one line."""

import benchmark_trees
import line_files
import memory_store
import pytest

from vmsst import errors
from vmsst.evaluation import evaluation_texts
from vmsst.evaluation.benchmarks import BENCHMARKS


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
  """The same data on this machine and in a store, which other tests of this module only read."""
  with pytest.MonkeyPatch.context() as patch:
    memory_store.installed(patch)
    root = benchmark_trees.write(tmp_path_factory.mktemp("data"))
    yield root, benchmark_trees.upload(root, "gs://bucket/my[1]/data")


def described(task):
  return task.name, task.sides, list(task.texts())


def test_a_store_has_the_same_tasks_digests_and_texts_to_exclude_from_training(roots):
  for benchmark in BENCHMARKS.values():
    local, remote = ([described(task) for task in benchmark.read(root)] for root in roots)
    assert local == remote
    assert local
    assert all(texts for _, _, texts in local)
    local, remote = (benchmark.files.digest(root) for root in roots)
    assert local == remote
  local, remote = (list(evaluation_texts.iter_texts(BENCHMARKS.values(), root)) for root in roots)
  assert local == remote
  # "bucc" and "bucc_test" share a folder, as do others; all benchmarks have texts.
  assert {name for name, _ in local} == {*BENCHMARKS}


_SIB200 = "split\tindex_id\tcategory\ttext\ntrain\t1\tx\tt\ndev\t2\tx\tt\ntest\t3\tx\tt\n"
_MINING = {"mining/de-en.de": "d1\tx\n", "mining/de-en.en": "e1\ty\n"}


def _cls(content):
  folders = [f"cls-acl10-unprocessed/{code}/dvd" for code in ("en", "de")]
  return {f"{x}/{part}.review": content for x in folders for part in ("train", "test")}


def _sts(folder, name, pairs, scores):
  return {f"sts/{folder}.input.{name}.txt": pairs, f"sts/{folder}.gs.{name}.txt": scores}


# Benchmark, content of its files, and the message.
_CASES = [
  ("sts", _sts("2012/STS", "MSRpar", "a\tb\nc\td\n", "1\nx\n"), "gs.MSRpar.txt:2: 'x' is not a"),
  ("sts", _sts("2014/STS", "images", "a\tb\nc\td\n", "1\n"), "images.txt has 2 lines and .* has 1"),
  ("sts", _sts("gold/STS", "MSRpar", "a\tb\n", "1\n"), "unknown year: move the file"),
  ("sts", {"sts/2012/STS.input.MSRpar.txt": "a\tb\n"}, "neither .*STS.gs.MSRpar.txt"),
  ("stsb", {"stsb/stsb.de.tsv": "test\tf\t1\t1\t2\ta\n"}, "de.tsv:1: 6 fields; expected"),
  (
    "stsb",
    {f"stsb/stsb.de.{x}tsv": "test\tf\t1\t1\t2\ta\tb\n" for x in ("", "mt.")},
    r"de\.tsv: another file has de\.test \(1 of 1379 pairs\) too",
  ),
  ("mining", {**_MINING, "mining/de-en.gold": "d1\te2\n"}, "gold:1: no sentence has the id 'e2'"),
  ("questions", {"paq/b.tsv": "x\ty\n", "nq/NQ-open.dev.jsonl": "[]\n"}, "jsonl:1: Expected"),
  (
    "ntrex",
    {"ntrex/newstest2019-src.eng.txt": "a\n", "ntrex/newstest2019-ref.eng.txt": "a\n"},
    "ref.eng.txt and .*src.eng.txt both have language eng",
  ),
  (
    "translations",
    {"translations/talk.eng.txt": "a\n", "translations/talk.eng+deu+zho.txt": "b\n"},
    r"talk\.eng\+deu\+zho\.txt: its source eng\+deu is missing",
  ),
  ("paracrawl", {"paracrawl/a.bg.queries": "1\n"}, "'bg' is not a language pair"),
  ("mldoc", {"mldoc/english/english.train.1000": "CCAT x\n"}, r"1000:1: no TAB"),
  ("cls", _cls("<items>\n<item>"), r"train\.review:2: not well-formed XML"),
  ("sib200", {"sib200/jav_Latn.tsv": _SIB200}, "sib200: English or another"),
]


def test_each_fault_is_one_line_with_its_file(tmp_path):
  for number, (name, content, message) in enumerate(_CASES):
    root = tmp_path / str(number)
    for path, text in content.items():
      line_files.write_text(root / path, text)
    with pytest.raises(errors.InputError, match=message) as caught:
      BENCHMARKS[name].read(root)
    assert "\n" not in str(caught.value), name


def test_an_absent_benchmark_names_its_folders_and_files(tmp_path):
  for benchmark in BENCHMARKS.values():
    assert benchmark.files.paths[0] in (benchmark.files.absence(tmp_path) or "")
  for name in ("mkqa", "nq"):
    (tmp_path / name).mkdir()
  reason = BENCHMARKS["mkqa_small"].files.absence(tmp_path)
  assert reason.startswith(f"no file or folder {tmp_path / 'mkqa' / 'mkqa.wide.tsv'} (")
