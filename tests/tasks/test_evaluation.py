import functools
import json
import shutil
import tracemalloc

import line_files
import numpy as np
import opus_tree
import pytest
import seqio

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.data.features import BitextFeatureConverter
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
  for code, sides in texts.items():
    for name, lines in zip((code, "eng"), sides, strict=True):
      suffix = ".gz" if code == "deu" else ""
      line_files.write_lines(tmp_path / f"tatoeba.{code}-eng.{name}{suffix}", lines)
  return tmp_path


NUMBERS = {word: i for words in (
  ["eins", "zwei", "drei", "vier"], ["one", "two", "three", "four"], ["一", "二", "三"],
) for i, word in enumerate(words)}  # fmt: skip


def _evaluate(task, encode):
  """Runs seqio's evaluator with an encoder of texts, out of order as a trainer would."""
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
    if text == "三":  # taken for two
      return np.eye(4)[1]
    return np.eye(4)[NUMBERS[text]]

  metrics = _evaluate(evaluation.tatoeba(str(tatoeba_root), BYTES), encode)
  assert metrics == pytest.approx(
    {
      "to_english/deu": 100, "from_english/deu": 100, "accuracy/deu": 100,
      # One and two are found. 三 finds "two"; "three" is equally far from all: the first counts.
      "to_english/cmn": 200 / 3, "from_english/cmn": 200 / 3, "accuracy/cmn": 200 / 3,
      "to_english/average": 250 / 3, "from_english/average": 250 / 3,
      "accuracy/average": 250 / 3,
    }
  )  # fmt: skip


def test_rows_carry_what_the_metric_needs(tatoeba_root):
  name = evaluation.tatoeba(str(tatoeba_root), BYTES, languages=["de"], max_length=4)
  rows = list(
    seqio.TaskRegistry.get(name).get_dataset(split="test", shuffle=False).as_numpy_iterator()
  )
  assert [BYTES.decode(row["inputs"].tolist()) for row in rows[:2]] == ["ein", "zwe"]
  assert rows[0]["inputs"].tolist()[-1] == BYTES.eos_id
  assert [row[evaluation.ROW].item() for row in rows] == [*range(8)]


def test_missing_test_sets_are_named(tatoeba_root):
  with pytest.raises(errors.InputError, match=r"no test set of French.*cmn, deu"):
    evaluation.tatoeba(str(tatoeba_root), BYTES, languages=["fr"])
  name = evaluation.tatoeba(str(tatoeba_root), BYTES)
  assert evaluation.tatoeba(str(tatoeba_root), BYTES) == name
  line_files.write_lines(tatoeba_root / "tatoeba.cmn-eng.eng", ["changed"] * 3)
  assert evaluation.tatoeba(str(tatoeba_root), BYTES) != name
  (tatoeba_root / "tatoeba.cmn-eng.eng").unlink()
  with pytest.raises(errors.InputError, match=r"neither .*tatoeba\.cmn-eng\.eng nor"):
    evaluation.tatoeba(str(tatoeba_root), BYTES)
  (tatoeba_root / "empty").mkdir()
  with pytest.raises(errors.InputError, match=r"empty has no tatoeba.*LASER"):
    evaluation.tatoeba(str(tatoeba_root / "empty"), BYTES)


def test_vectors_find_their_place_in_whatever_order_they_come():
  def score(*sides):
    return [suite.Result("x", (), {str(i): float(x) for i, x in enumerate(np.concatenate(sides))})]

  def side(count):
    return suite.Side("en", ["text"] * count)

  tasks = [suite.Task("a", (side(2), side(1)), score), suite.Task("b", (side(1), side(12)), score)]
  row_N = np.random.default_rng(0).permutation(16)
  results = evaluation.collect_results(tasks, row_N, np.arange(16)[row_N])
  assert [list(result.metrics.values()) for result in results] == [[0, 1, 2], [*range(3, 16)]]
  with pytest.raises(errors.InputError, match="training has diverged"):
    evaluation.collect_results(tasks, row_N, np.full(16, np.nan))


def test_vectors_are_neither_python_lists_nor_copied_often(tatoeba_root, tmp_path):
  width = 1 << 16
  name = evaluation.tatoeba(str(tatoeba_root), BYTES)
  evaluator = seqio.Evaluator(
    name,
    feature_converter=BitextFeatureConverter(pack=False),
    eval_split="test",
    logger_cls=[functools.partial(seqio.JSONLogger, write_n_results=0)],
    log_dir=str(tmp_path),
  )
  array_ND = np.random.default_rng(0).normal(size=[14, width]).astype(np.float32)
  tracemalloc.start()  # counts NumPy's arrays too
  metrics, _ = evaluator.evaluate(
    compute_metrics=True, score_fn=lambda dataset: list(enumerate(array_ND))
  )
  assert 0 <= metrics.result()[name]["accuracy/average"] <= 100
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  evaluator.close()
  assert peak < 4 * array_ND.nbytes  # lists of numbers take eight times the memory


def test_ones_own_files_are_searched_by_pair(tmp_path):
  path = line_files.write_tsv(tmp_path / "t.de-fr.tsv", [("eins", "one"), ("zwei", "two")])
  name = evaluation.retrieval(str(tmp_path / "*.tsv"), BYTES)
  metrics = _evaluate(name, lambda text: np.eye(4)[NUMBERS[text]])
  assert metrics["to_target/deu_fra"] == 100
  assert metrics["accuracy/average"] == 100
  line_files.write_text(path, path.read_bytes())
  assert evaluation.retrieval(str(path), BYTES) == name
  line_files.write_tsv(path, [("eins", "two"), ("zwei", "one")])
  changed = evaluation.retrieval(str(path), BYTES)
  assert _evaluate(changed, lambda text: np.eye(4)[NUMBERS[text]])["accuracy/average"] == 0


@pytest.mark.parametrize(
  ("file", "languages", "name"),
  [
    ("t.de-fr.tsv", None, "deu_fra"),
    ("t.de-fr.tsv", ("en", "es"), "eng_spa"),
    ("t.de-fr.tsv", ("und", "und"), "deu_fra"),
    ("pairs.tsv", ("und", "und"), "source_target"),
  ],
)
def test_metrics_have_the_languages_that_are_given_or_those_in_the_file_name(
  tmp_path, file, languages, name
):
  path = line_files.write_tsv(tmp_path / file, [("eins", "one"), ("zwei", "two")])
  task = evaluation.retrieval(str(path), BYTES, languages=languages)
  found = _evaluate(task, lambda text: np.eye(4)[NUMBERS[text]])
  ways = ("to_target", "from_target", "accuracy")
  assert found.keys() == {f"{way}/{which}" for way in ways for which in (name, "average")}


@pytest.fixture
def small_root(tmp_path, tatoeba_root):
  """The folders of three benchmarks; the test sets of Tatoeba are there too."""
  for folder in ("tatoeba", "xlsts"):
    (tmp_path / folder).mkdir()
  for path in tatoeba_root.glob("tatoeba.*"):
    path.rename(tmp_path / "tatoeba" / path.name)
  pairs = "5\teins\teins\n0\teins\tzwei\n1\tdrei\teins\n"
  (tmp_path / "xlsts" / "STS17.track1.ar-ar.tsv").write_text(pairs)
  question = {"question": "zwei", "answer": ["B"]}
  line_files.write_lines(tmp_path / "nq" / "NQ-open.dev.jsonl", [json.dumps(question)] * 2)
  line_files.write_tsv(tmp_path / "paq" / "paq.tsv", [("one", "A"), ("two", "b."), ("four", "b")])
  return tmp_path


def test_benchmarks_are_a_mixture_with_the_numbers_of_the_suite(small_root):
  class Encoder:
    def encode(self, texts):
      return np.eye(4)[[NUMBERS[text] for text in texts]]

  name = evaluation.suite(str(small_root), BYTES, training_languages=["deu", "eng"])
  assert evaluation.suite(str(small_root), BYTES, training_languages=["deu", "eng"]) == name
  tasks = seqio.get_mixture_or_task(name).tasks
  names = {"xlsts": "xlsts", "tatoeba": "tatoeba", "questions_sample": "questions"}
  assert {task.name for task in tasks} == {f"vmsst_eval_{name}" for name in names}
  chosen = benchmarks.get_benchmarks(names.values())
  seen = {language("deu"), language("eng")}
  wanted = suite.evaluate(Encoder(), chosen, small_root, seen=seen)
  for task in tasks:
    found = _evaluate(task.name, lambda text: np.eye(4)[NUMBERS[text]])
    found = {key.replace(" (sample of PAQ)", ""): value for key, value in found.items()}
    assert found == pytest.approx(wanted["benchmarks"][names[task.name[11:]]]["summary"])
  assert "average seen (incomplete)" in wanted["benchmarks"]["tatoeba"]["summary"]
  names = {name, evaluation.suite(str(small_root), BYTES, paq_distractors=0)}
  for changed in ("xlsts/STS17.track1.ar-ar.tsv", "nq/NQ-open.dev.jsonl"):
    with (small_root / changed).open("a") as stream:
      stream.write("\n")
    names.add(evaluation.suite(str(small_root), BYTES, training_languages=["deu", "eng"]))
  assert len(names) == 4


def test_benchmarks_that_cannot_be_in_the_mixture_are_named(small_root):
  with pytest.raises(errors.InputError, match=r"benchmark sts: no file or folder .*SentEval"):
    evaluation.suite(str(small_root), BYTES, benchmarks=["tatoeba", "sts"])
  with pytest.raises(errors.InputError, match="unknown benchmark stss"):
    evaluation.suite(str(small_root), BYTES, benchmarks=["stss"])
  with pytest.raises(errors.InputError, match="has none of the benchmarks"):
    evaluation.suite(str(small_root / "xlsts"), BYTES)


def test_all_translations_of_a_text_are_right(tmp_path):
  line_files.write_tsv(tmp_path / "t.de-fr.tsv", [("null", "one"), ("null", "two")])
  name = evaluation.retrieval(str(tmp_path / "t.de-fr.tsv"), BYTES)
  metrics = _evaluate(name, lambda text: np.eye(4)[0])  # "two" is never the nearest text
  assert metrics["to_target/deu_fra"] == 100
  assert metrics["from_target/deu_fra"] == 100


def test_validation_pairs_of_one_corpus_are_searched(tmp_path):
  german = [("eins", "one", "Tatoeba"), ("null", "two", "Other"), ("zwei", "two", "Tatoeba")]
  french = [("un", "one", "Tatoeba"), ("deux", "two", "Tatoeba"), ("drei", "three", "Tatoeba")]
  other = [("vier", "un", "Other")] * 4
  pairs = {("de", "en"): german + other, ("fr", "en"): french + other, ("de", "fr"): other}
  folder = opus_tree.write_dataset(tmp_path, "mine", pairs, validation=3)
  arguments = ("mine", BYTES, str(tmp_path))
  name = evaluation.opus_validation(*arguments)
  assert name == evaluation.opus_validation(*arguments)
  numbers = NUMBERS | {"un": 0, "deux": 0}  # "deux" finds "one"
  found = _evaluate(name, lambda text: np.eye(4)[numbers[text]])
  assert found["accuracy/deu_eng"] == 100
  assert found["to_target/eng_fra"] == pytest.approx(200 / 3)  # French is the target
  assert set(found) >= {"accuracy/average", "from_target/eng_fra"}
  assert not [key for key in found if "deu_fra" in key]
  only = evaluation.opus_validation(*arguments, languages=("de", "en"))
  assert "accuracy/eng_fra" not in _evaluate(only, lambda text: np.eye(4)[numbers[text]])
  missing = evaluation.opus_validation(*arguments, corpus="Tatoba")
  with pytest.raises(errors.InputError, match="no validation pairs of the corpus 'Tatoba'; ch"):
    _evaluate(missing, lambda text: np.eye(4)[0])
  shutil.rmtree(folder)
  opus_tree.write_dataset(tmp_path, "mine", {**pairs, ("de", "en"): other + german}, validation=3)
  found = _evaluate(evaluation.opus_validation(*arguments), lambda x: np.eye(4)[numbers[x]])
  assert "accuracy/deu_eng" not in found


def test_sample_retrieval_searches_held_out_meanings():
  sample = pytest.importorskip("vmsst.data.sample")
  name = evaluation.sample_retrieval(BYTES, languages=["de", "zh"], num_meanings=12)
  meaning = {
    sample.sentence(i, code, "validation"): i
    for code in ("en", "de", "zh")
    for i in range(sample.num_meanings("validation"))
  }
  vectors = np.random.default_rng(0).normal(size=[max(meaning.values()) + 1, 8])
  metrics = _evaluate(name, lambda text: vectors[meaning[text]])
  assert metrics["accuracy/de"] == 100
  assert set(metrics) == {
    f"{kind}/{code}"
    for kind in ("to_english", "from_english", "accuracy")
    for code in ("de", "zh", "average")
  }
