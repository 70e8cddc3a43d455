import json

import line_files
import numpy as np
import opus_tree
import pytest
import seqio

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.data.seqio_tasks import BitextFeatureConverter
from vmsst.evaluation import benchmarks, suite
from vmsst.languages import language
from vmsst.tasks import evaluation

BYTES = vocabularies.ByteVocabulary()


@pytest.fixture
def tatoeba_root(tmp_path):
  texts = {
    "deu": (["eins", "zwei", "drei", "vier"], ["one", "two", "three", "four"]),
    "cmn": (["一", "二", "三"], ["one", "two", "three"]),
  }
  for code, columns in texts.items():
    for name, lines in zip((code, "eng"), columns, strict=True):
      suffix = ".gz" if code == "deu" else ""
      line_files.write_lines(tmp_path / f"tatoeba.{code}-eng.{name}{suffix}", lines)
  return tmp_path


NUMBERS = {word: i for words in (
  ["eins", "zwei", "drei", "vier"], ["one", "two", "three", "four"], ["一", "二", "三"],
) for i, word in enumerate(words)}  # fmt: skip


def _evaluate(task, encode):
  """Runs SeqIO's evaluator with an encoder of texts, with results in another order."""
  evaluator = seqio.Evaluator(
    task,
    feature_converter=BitextFeatureConverter(pack=False),
    eval_split=seqio.TaskRegistry.get(task).splits[0],
  )

  def score(dataset):
    rows = list(dataset.as_numpy_iterator())
    return [(int(i), encode(BYTES.decode(row["inputs"].tolist()))) for i, row in rows[::-1]]

  metrics, _ = evaluator.evaluate(compute_metrics=True, score_fn=score)
  result = metrics.result()[task]
  evaluator.close()
  return {name: float(getattr(value, "value", value)) for name, value in result.items()}


def test_tatoeba_from_files_to_metrics(tatoeba_root):
  def encode(text):
    if text == "三":  # Gets the vector of "two".
      return np.eye(4)[1]
    return np.eye(4)[NUMBERS[text]]

  metrics = _evaluate(evaluation.tatoeba(str(tatoeba_root), BYTES), encode)
  assert metrics == pytest.approx(
    {
      "to_english/deu": 100, "from_english/deu": 100, "accuracy/deu": 100,
      # 三 finds "two". "three" has the same cosine with all texts and finds the first.
      "to_english/cmn": 200 / 3, "from_english/cmn": 200 / 3, "accuracy/cmn": 200 / 3,
      "to_english/average": 250 / 3, "from_english/average": 250 / 3,
      "accuracy/average": 250 / 3,
    }
  )  # fmt: skip


def test_missing_test_sets_are_errors_and_changed_files_give_new_tasks(tatoeba_root):
  with pytest.raises(errors.InputError, match=r"no test set for French.*cmn, deu"):
    evaluation.tatoeba(str(tatoeba_root), BYTES, languages=["fr"])
  name = evaluation.tatoeba(str(tatoeba_root), BYTES)
  assert evaluation.tatoeba(str(tatoeba_root), BYTES) == name
  line_files.write_lines(tatoeba_root / "tatoeba.cmn-eng.eng", ["changed"] * 3)
  assert evaluation.tatoeba(str(tatoeba_root), BYTES) != name


def test_vectors_that_are_not_finite_are_an_error():
  task = suite.Task("a", (suite.TextSet("en", ["x"]),), lambda *vectors: [])
  with pytest.raises(errors.InputError, match="training has diverged"):
    evaluation.collect_results([task], np.arange(1), np.full((1, 2), np.nan))


@pytest.mark.parametrize(
  ("file", "languages", "name"),
  [
    ("t.de-fr.tsv", ("en", "es"), "eng_spa"),
    ("t.de-fr.tsv", None, "deu_fra"),
    ("pairs.tsv", ("und", "und"), "source_target"),
  ],
)
def test_retrieval_in_own_files_by_language_pair(tmp_path, file, languages, name):
  path = line_files.write_tsv(tmp_path / file, [("eins", "one"), ("eins", "two")])
  task = evaluation.retrieval(str(path), BYTES, languages=languages, max_length=5)
  metrics = _evaluate(task, lambda text: np.eye(4)[NUMBERS[text]])
  # Both translations of "eins" are right.
  expected = ("to_target", "from_target", "accuracy")
  assert metrics == {f"{x}/{label}": 100 for x in expected for label in (name, "average")}
  line_files.write_text(path, path.read_bytes())
  assert evaluation.retrieval(str(path), BYTES, languages=languages, max_length=5) == task
  line_files.write_tsv(path, [("eins", "two"), ("zwei", "one")])
  task = evaluation.retrieval(str(path), BYTES, languages=languages, max_length=5)
  assert _evaluate(task, lambda text: np.eye(4)[NUMBERS[text]])["accuracy/average"] == 0


@pytest.fixture
def small_root(tmp_path, tatoeba_root):
  """A data root with three benchmarks."""
  for folder in ("tatoeba", "xlsts"):
    (tmp_path / folder).mkdir()
  for path in tatoeba_root.glob("tatoeba.*"):
    path.rename(tmp_path / "tatoeba" / path.name)
  pairs = "5\teins\teins\n0\teins\tzwei\n1\tdrei\teins\n"
  (tmp_path / "xlsts" / "STS17.track1.ar-ar.tsv").write_text(pairs)
  question = {"question": "zwei", "answer": ["B"]}
  line_files.write_lines(tmp_path / "nq" / "NQ-open.dev.jsonl", [json.dumps(question)] * 2)
  base = {"one": "A", "two": "b.", "four": "b"}
  lines = [json.dumps({"question": key, "answer": value}) for key, value in base.items()]
  line_files.write_lines(tmp_path / "paq" / "paq.jsonl", lines)
  return tmp_path


def test_benchmarks_are_a_mixture_with_the_metrics_of_the_suite(small_root):
  class Encoder:
    def encode(self, texts):
      return np.eye(4)[[NUMBERS[text] for text in texts]]

  name = evaluation.suite(str(small_root), BYTES, training_languages=["deu", "eng"])
  assert evaluation.suite(str(small_root), BYTES, training_languages=["deu", "eng"]) == name
  tasks = seqio.get_mixture_or_task(name).tasks
  names = {"xlsts": "xlsts", "tatoeba": "tatoeba", "questions_sample": "questions"}
  assert {task.name for task in tasks} == {f"vmsst_eval_{name}" for name in names}
  seen = {language("deu"), language("eng")}
  selected = benchmarks.get_benchmarks(names.values())
  expected = suite.evaluate(Encoder(), selected, small_root, seen=seen)["benchmarks"]
  for task in tasks:
    metrics = _evaluate(task.name, lambda text: np.eye(4)[NUMBERS[text]])
    metrics = {key.replace(" (sample of PAQ)", ""): value for key, value in metrics.items()}
    assert metrics == pytest.approx(expected[names[task.name[11:]]]["summary"])
  assert "average seen (incomplete)" in expected["tatoeba"]["summary"]
  with (small_root / "nq" / "NQ-open.dev.jsonl").open("a") as stream:
    stream.write("\n")
  assert evaluation.suite(str(small_root), BYTES, training_languages=["deu", "eng"]) != name


def test_missing_benchmarks_are_errors(small_root):
  with pytest.raises(errors.InputError, match=r"benchmark sts: no folder "):
    evaluation.suite(str(small_root), BYTES, benchmarks=["tatoeba", "sts"])
  with pytest.raises(errors.InputError, match="has none of the benchmarks"):
    evaluation.suite(str(small_root / "xlsts"), BYTES)


def test_retrieval_in_validation_pairs_of_one_corpus(tmp_path):
  german = [("eins", "one", "Tatoeba"), ("null", "two", "Other"), ("zwei", "two", "Tatoeba")]
  french = [("un", "one", "Tatoeba"), ("deux", "two", "Tatoeba"), ("drei", "three", "Tatoeba")]
  other = [("vier", "un", "Other")] * 4
  pairs = {("de", "en"): german + other, ("fr", "en"): french + other, ("de", "fr"): other}
  opus_tree.write_dataset(tmp_path, "mine", pairs, validation=3)
  arguments = ("mine", BYTES, str(tmp_path))
  name = evaluation.opus_validation(*arguments)
  assert name == evaluation.opus_validation(*arguments)
  numbers = NUMBERS | {"un": 0, "deux": 0}  # "deux" finds "one".
  metrics = _evaluate(name, lambda text: np.eye(4)[numbers[text]])
  assert metrics["accuracy/deu_eng"] == 100
  assert metrics["to_target/eng_fra"] == pytest.approx(200 / 3)  # French is the target.
  assert set(metrics) >= {"accuracy/average", "from_target/eng_fra"}
  assert not [key for key in metrics if "deu_fra" in key]
  german_name = evaluation.opus_validation(*arguments, languages=("de", "en"))
  metrics = _evaluate(german_name, lambda text: np.eye(4)[numbers[text]])
  assert "accuracy/eng_fra" not in metrics


def test_sample_retrieval_searches_held_out_meanings():
  sample = pytest.importorskip("vmsst.data.sample")
  name = evaluation.sample_retrieval(BYTES, languages=["de", "zh"], num_meanings=12)
  count = sample.num_meanings("validation")
  meaning = {
    sample.sentence(i, x, "validation"): i for x in ("en", "de", "zh") for i in range(count)
  }
  vectors = np.random.default_rng(0).normal(size=[count, 8])
  metrics = _evaluate(name, lambda text: vectors[meaning[text]])
  assert metrics["accuracy/de"] == 100
  names = ("to_english", "from_english", "accuracy")
  assert set(metrics) == {f"{name}/{code}" for name in names for code in ("de", "zh", "average")}
