import itertools
import json
import re
import sys
import types

import fake_encoders
import line_files
import numpy as np
import pytest
import released_folders
import tiny_encoders

import vmsst
from vmsst import cli, errors, languages
from vmsst.encoder import encoding, loading
from vmsst.evaluation import mteb_models
from vmsst.evaluation.benchmarks import own_files
from vmsst.io import text_files
from vmsst.networks import sentence_encoder


@pytest.fixture
def data(tmp_path):
  """Files of Tatoeba and of the STS Benchmark."""
  texts = {"deu": ["eins", "zwei", "drei"], "eng": ["one", "two", "three"]}
  for code, lines in texts.items():
    line_files.write_lines(tmp_path / "data" / "tatoeba" / f"tatoeba.deu-eng.{code}", lines)
  pairs = [f"test\tf\t2012\t{i}\t{i}\tA {i}.\tB {i}." for i in range(3)]
  line_files.write_lines(tmp_path / "data" / "stsb" / "stsb.de.tsv", pairs)
  return tmp_path / "data"


@pytest.fixture
def evaluate(data, tmp_path, monkeypatch, capsys):
  """Runs `vmsst eval` with an encoder; returns the exit status, and the lines of both streams."""

  def run(vector_of, *options):
    encoder = fake_encoders.FakeEncoder(vector_of)
    monkeypatch.setattr(loading, "open_encoder", lambda path, **how: (path, encoder))
    command = ["eval", "E", "--data", str(data), "--out", str(tmp_path / "out")]
    status = cli.main([*command, *options])
    found = capsys.readouterr()
    return status, found.out.splitlines(), found.err.splitlines()

  return run


def test_eval_shows_what_failed_and_exits_with_1(evaluate, tmp_path, capsys):
  status, table, lines = evaluate(lambda text: [1.0, 2.0])
  assert status == 1
  assert any(re.match("stsb +failed: no correlations for de.test", line) for line in table)
  assert any(re.match("tatoeba +average", line) for line in table)
  place = tmp_path / "out" / "results.json"
  count = len(vmsst.get_benchmarks(["all"]))
  assert lines[-1].startswith(f"vmsst: error: 1 of {count} benchmarks failed: stsb; ")
  results = json.loads(place.read_text())
  assert (list(results["failed"]), list(results["benchmarks"])) == (["stsb"], ["tatoeba"])
  assert cli.main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "report")]) == 0
  page = (tmp_path / "report" / "report.html").read_text("utf-8")
  assert "stsb failed: no correlations for de.test" in page
  capsys.readouterr()
  status, _, lines = evaluate(lambda text: [float("nan")], "--suite", "sts", "stsb")
  assert status == 1
  assert len([line for line in lines if line.startswith("vmsst: error: ")]) == 1
  assert "as do all others" in lines[-1]


def test_eval_without_data_is_an_error(evaluate, data, tmp_path, capsys):
  for options, message in (
    (["--suite", "sts", "bucc"], "expected folders sts, bucc2018"),
    (["--suite", "tatoebas"], "unknown benchmark tatoebas; choose from sts,"),
    (["--data", str(tmp_path / "none")], "none: not a folder"),
    (["--data", str(data / "stsb" / "stsb.de.tsv")], "stsb.de.tsv: not a folder"),
  ):
    status, table, lines = evaluate(fake_encoders.random_vector, *options)
    assert (status, table) == (1, [])
    assert message in lines[-1]
  assert not (tmp_path / "out").exists()
  status, table, _ = evaluate(fake_encoders.random_vector, "--suite", "sts", "tatoeba", "tatoeba")
  assert status == 0
  assert any(re.match("sts +absent: no folder", line) for line in table)
  assert cli.main(["eval", "E", "--data", str(data)]) == 1
  assert "--out is missing" in capsys.readouterr().err
  assert cli.main(["eval", "--list"]) == 0
  assert "ROOT/ntrex" in capsys.readouterr().out


def test_eval_shows_the_scores_of_cut_vectors(evaluate, tmp_path, capsys):
  options = ["--suite", "tatoeba", "--dimensions", "2", "4"]
  status, table, _ = evaluate(fake_encoders.random_vector, *options)
  assert status == 0
  found = json.loads((tmp_path / "out" / "results.json").read_text())["benchmarks"]["tatoeba"]
  for size, own in zip((2, 4, 6), found["dimensions"], strict=True):
    value = own["summary"]["average (incomplete)"]
    name = "average (incomplete)" + (f", first {size}" if size < 6 else "")
    assert f"{'tatoeba':24}{name:48}{value:8.2f}" in table
  status, _, lines = evaluate(fake_encoders.random_vector, *options, "7")
  assert (status, "dimensions is 7" in lines[-1]) == (1, True)
  assert cli.main(["eval", "E", "--out", "o", "--mteb", "X", "--dimensions", "2"]) == 1
  assert "give one of --data with --suite, --mteb" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------
# A user's own files


def test_a_given_prompt_replaces_those_of_queries_and_documents():
  encoder = fake_encoders.FakeEncoder(lambda text: np.full(3, len(text)))
  encoder.encode_query = lambda texts: -encoder.encode(texts)
  for prompt, sign in ((None, -1), ("query: ", 1), ("", 1)):
    encoder.prompt = prompt
    found = encoding.encode(encoder, ["a", "bc"], method="encode_query")
    np.testing.assert_array_equal(found, sign * encoder.encode(["a", "bc"]))


def test_own_files_are_scored_as_in_plain_numpy_and_resumed(tmp_path, monkeypatch, capsys):
  pairs = [(f"q{i // 2}", f"text {i % 5}") for i in range(8)]
  rng, turn = np.random.default_rng(0), [1, 1, 1, 1, 1, -1]
  vector = {x: rng.normal(size=6) for x in sorted({*itertools.chain(*pairs)})}
  scores = [f"{i % 3}.5\t{a}\t{b}" for i, (a, b) in enumerate(pairs)]
  records = (json.dumps({"query": query, "text": text}) for query, text in pairs)
  files = {"my.tsv.gz": scores, "my.jsonl": records}
  files |= {name: map("\t".join, pairs) for name in ("[my].de-en.tsv", "no_languages.tsv")}
  for name, lines in files.items():
    line_files.write_lines(tmp_path / name, lines)
  encoders = {}

  def open_encoder(path, **how):
    encoder = encoders[path] = fake_encoders.FakeEncoder(vector.__getitem__)
    encoder.encode_query = lambda texts: encoder.encode(texts) * turn
    return path, encoder

  monkeypatch.setattr(loading, "open_encoder", open_encoder)
  monkeypatch.chdir(tmp_path)
  own = ["--sts", "my.tsv.gz", "--retrieval", "my.jsonl"]
  own += ["--bitext", "[my].de-en.tsv", "no_languages.tsv"]
  command = ["eval", "x/a", "x/b", *own, "--out", "out"]
  assert cli.main(command) == 0
  assert "incomplete" not in capsys.readouterr().out
  results = json.loads((tmp_path / "out" / "b" / "results.json").read_text())["benchmarks"]
  found = {name: each["summary"] for name, each in results.items()}
  unit = {x: y / np.linalg.norm(y) for x, y in vector.items()}
  left, right = zip(*pairs, strict=True)
  cosine_NN = np.array([unit[x] for x in left]) @ np.transpose([unit[x] for x in right])
  pearson = np.corrcoef(np.diag(cosine_NN), [i % 3 for i in range(8)])[0, 1]
  assert found["sts-my"]["pearson"] == pytest.approx(100 * pearson)
  forward = np.mean([(left[i], right[j]) in pairs for i, j in enumerate(cosine_NN.argmax(axis=1))])
  backward = np.mean([(left[j], right[i]) in pairs for i, j in enumerate(cosine_NN.argmax(axis=0))])
  bitext = found["bitext-[my].de-en"]
  assert found["bitext-no_languages"] == bitext
  ways = [bitext[f"accuracy{x}"] for x in (" forward", " backward", "")]
  assert ways == pytest.approx([100 * forward, 100 * backward, 50 * (forward + backward)])
  nearest = {(x, max(right, key=lambda y: unit[x] * turn @ unit[y])) for x in left}
  accuracy = np.mean([pair in pairs for pair in nearest])
  assert found["retrieval-my"]["accuracy"] == pytest.approx(100 * accuracy)
  assert cli.main(command) == 0
  assert not encoders["x/b"].calls
  line_files.write_lines(tmp_path / "my.tsv", [*scores, "high\ta\tb"])
  for more, message in (
    (["--sts", "my.tsv"], "two files are sts-my: rename one"),
    (["--bitext", "my.tsv"], r"my.tsv:9: no score in 'high\ta\tb', where 3 columns"),
    (["--name", "x"], "the paths of several encoders must end differently"),
  ):
    assert cli.main([*command, *more]) == 1
    assert message in capsys.readouterr().err
  assert cli.main(["eval", "E", "--sts", "my.tsv", "--out", "other"]) == 1
  assert "my.tsv:9: 'high' is not a score" in capsys.readouterr().err


LABELED = (("a", "a", 0), ("a", "b", 1), ("a", "c", -1), ("b", "b", 2), ("c", "c", 0))


@pytest.mark.parametrize(
  ("name", "line"),
  [
    ("after.tsv", lambda query, text, label: f"{query}\t{text}\t{label}"),
    ("before.tsv", lambda query, text, label: f"{label}\t{query}\t{text}"),
    ("x.jsonl", lambda *row: json.dumps(dict(zip(("query", "text", "label"), row, strict=True)))),
    (
      "other.jsonl",
      lambda *row: json.dumps(dict(zip(("query", "text", "rank"), row, strict=True))),
    ),
    ("texts.jsonl", lambda a, b, x: json.dumps({"query": a, "text": b, "label": str(x)})),
  ],
)
def test_texts_with_a_label_of_0_are_searched_but_not_relevant(tmp_path, name, line):
  line_files.write_lines(tmp_path / name, [line(*row) for row in LABELED])
  (benchmark,) = own_files.benchmarks(retrieval=[str(tmp_path / name)])
  (task,) = benchmark.read(benchmark.root)
  vectors = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (-1.0, 0.0)}
  tools = types.SimpleNamespace(embed=lambda side: np.array([vectors[x] for x in side.texts]))
  (result,) = task.measure(tools)
  assert result.metrics["accuracy"] == 50  # a finds a, which is not relevant
  assert result.metrics["MRR@10"] == 75


@pytest.mark.parametrize(
  ("lines", "message"),
  [
    (["a\ta\t0", "b\tb\t0"], "no text has a label above 0"),
    (["a\ta\tgood"], ":1: 'good' is not a score: give a number"),
  ],
)
def test_labels_that_cannot_be_used_are_named(tmp_path, lines, message):
  line_files.write_lines(tmp_path / "x.tsv", lines)
  (benchmark,) = own_files.benchmarks(retrieval=[str(tmp_path / "x.tsv")])
  with pytest.raises(errors.InputError, match=message):
    benchmark.read(benchmark.root)


def test_results_with_other_prompts_are_other_results(tmp_path, capsys):
  files = {"config_sentence_transformers.json": {"prompts": {"query": "red "}}}
  model = released_folders.write(tmp_path / "m", "bert", files)
  line_files.write_tsv(tmp_path / "my.tsv", [("apple", "the red apple"), ("museum", "open")])
  command = ["eval", str(model), "--retrieval", str(tmp_path / "my.tsv"), "--out"]
  command.append(str(tmp_path / "out"))
  assert cli.main(command) == 0
  (path,) = model.glob("config_sentence_transformers.json")
  path.write_text(path.read_text().replace("red ", "open "))
  assert cli.main(command) == 1
  assert "out has other results: encoder is " in capsys.readouterr().err


# --------------------------------------------------------------------------------------------
# MTEB

LINES = [f"line {i}: {'abcdefghij'[i % 10] * (i % 7)}" for i in range(3)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  config = tiny_encoders.t5_config(emb_dim=16, head_dim=8, mlp_dim=16)
  network = sentence_encoder.SentenceEncoder(config, latent_dim=12)
  model = tiny_encoders.model_of(network, max_length=32)
  return tiny_encoders.save_run(tmp_path_factory.mktemp("run"), model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["cosine", "dot"])
def test_mteb_compares_one_vector_with_another(run, name):
  pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  encoder = vmsst.load(run)
  encoder.similarity_fn_name = name
  model = mteb_models.MtebModel(encoder, "tiny")
  vectors_ND = encoder.encode(LINES)
  scores_NN = encoder.similarity(vectors_ND)
  # As its summarization tasks do.
  assert float(model.similarity(vectors_ND[0], vectors_ND[1])) == pytest.approx(scores_NN[0, 1])
  assert model.similarity(vectors_ND, vectors_ND[1]).shape == (3, 1)
  found_N = model.similarity_pairwise(vectors_ND[:2], vectors_ND[1:])
  np.testing.assert_allclose(found_N, [scores_NN[0, 1], scores_NN[1, 2]], rtol=1e-5)


def test_mteb_files_the_results_of_each_prompt_apart():
  pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  encoder = fake_encoders.FakeEncoder(fake_encoders.random_vector)
  encoder.digest, revisions = "1" * 64, []
  for encoder.prompt in (None, "", "query: "):
    revisions.append(mteb_models.MtebModel(encoder, "tiny").mteb_model_meta.revision)
  assert revisions[0] == "1" * 16
  assert len({*revisions}) == 3


def test_mteb_s_texts_have_the_language_and_script_of_their_subset():
  pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  encoder, given = fake_encoders.FakeEncoder(fake_encoders.random_vector), []
  encode = encoder.encode
  encoder.encode = lambda texts, language: given.append(language) or encode(texts)
  metadata = types.SimpleNamespace(hf_subsets_to_langscripts={"zho_Hant": ["zho-Hant"]})
  about = {"task_metadata": metadata, "hf_split": "test", "hf_subset": "zho_Hant"}
  mteb_models.MtebModel(encoder, "tiny").encode([{"text": ["a", "b"]}], **about)
  assert [languages.language(x).name for x in given] == ["Chinese (traditional)"]


@pytest.mark.filterwarnings("ignore")
def test_mteb_s_benchmarks_stand_for_their_tasks(run, tmp_path, monkeypatch, capsys):
  mteb = pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  name = "MTEB(eng, v2)"
  names = {task.metadata.name: number for number, task in enumerate(mteb.get_benchmark(name).tasks)}
  assert len(names) == 41

  def evaluate(model, tasks, folder, name):
    return {task.metadata.name: names[task.metadata.name] for task in tasks}

  monkeypatch.setattr(mteb_models, "evaluate", evaluate)
  command = ["eval", str(run), "--out", str(tmp_path), "--mteb"]
  assert cli.main([*command, "BIOSSES", name]) == 0
  lines = capsys.readouterr().out.splitlines()
  expected = [*(f"{task:48}{number:8.2f}" for task, number in names.items())]
  mean = f"{'mean of MTEB(eng, v2)':48}{20:8.2f}"
  assert lines == [expected[names["BIOSSES"]], *expected, mean]
  assert cli.main([*command, "MTEB(eng)x"]) == 1
  assert "MTEB has no task MTEB(eng)x" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mteb_s_own_tatoeba_has_the_accuracy_of_ours(run, tmp_path, data_root, monkeypatch, capsys):
  mteb = pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  datasets = pytest.importorskip("datasets")
  paths = (data_root / "tatoeba" / f"tatoeba.deu-eng.{code}.gz" for code in ("deu", "eng"))
  sides = [list(text_files.read_lines(str(path)))[:200] for path in paths]
  task = mteb.get_task("Tatoeba", languages=["deu"])

  def load_data(**options):
    columns = {"sentence1": sides[0], "sentence2": sides[1]}
    task.dataset = {"deu-eng": {"test": datasets.Dataset.from_dict(columns)}}
    task.data_loaded = True

  monkeypatch.setattr(task, "load_data", load_data)
  monkeypatch.setattr(mteb, "get_task", lambda name: {"Tatoeba": task}[name])
  command = ["eval", str(run), "--out", str(tmp_path), "--mteb"]
  assert cli.main([*command, "Tatoeba"]) == 0
  assert capsys.readouterr().out.startswith("Tatoeba ")
  (path,) = tmp_path.rglob("Tatoeba.json")
  saved = json.loads(path.read_text())["scores"]["test"][0]
  german_ND, english_ND = map(vmsst.load(run).encode, sides)
  unit_ND, base_ND = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (german_ND, english_ND))
  expected = np.mean((unit_ND @ base_ND.T).argmax(axis=1) == np.arange(200))
  assert saved["accuracy"] == pytest.approx(expected)
  assert cli.main([*command, "Tatooine"]) == 1
  assert "MTEB has no task Tatooine" in capsys.readouterr().err


def test_mteb_must_be_installed(run, tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "mteb", None)
  command = ["eval", str(run), "--out", str(tmp_path / "out"), "--mteb", "Tatoeba"]
  assert cli.main(command) == 1
  assert "pip install 'vmsst[mteb]'" in capsys.readouterr().err
  assert cli.main([*command, "--data", str(tmp_path)]) == 1
  assert "give one of --data with --suite, --mteb" in capsys.readouterr().err
