import json
import types

import fake_encoders
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst import cli, languages
from vmsst.evaluation import mteb_models
from vmsst.io import text_files
from vmsst.networks import sentence_encoder

LINES = [f"line {i}: {'abcdefghij'[i % 10] * (i % 7)}" for i in range(3)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  config = tiny_encoders.t5_config(emb_dim=16, head_dim=8, mlp_dim=16)
  network = sentence_encoder.SentenceEncoder(config, latent_dim=12)
  model = tiny_encoders.model_of(network, max_length=32)
  return tiny_encoders.save_run(tmp_path_factory.mktemp("run"), model)


@pytest.mark.filterwarnings("ignore")
def test_mteb_compares_one_vector_with_another(run):
  pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  encoder = vmsst.load(run)
  encoder.similarity_fn_name = "dot"
  model = mteb_models.MtebModel(encoder, "tiny")
  vectors_ND = encoder.encode(LINES)
  scores_NN = encoder.similarity(vectors_ND)
  # MTEB's summarization tasks call it with single vectors.
  assert float(model.similarity(vectors_ND[0], vectors_ND[1])) == pytest.approx(scores_NN[0, 1])
  assert model.similarity(vectors_ND, vectors_ND[1]).shape == (3, 1)
  pairwise_N = model.similarity_pairwise(vectors_ND[:2], vectors_ND[1:])
  np.testing.assert_allclose(pairwise_N, [scores_NN[0, 1], scores_NN[1, 2]], rtol=1e-5)


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
  encoder, codes = fake_encoders.FakeEncoder(fake_encoders.random_vector), []
  encode = encoder.encode
  encoder.encode = lambda texts, language: codes.append(language) or encode(texts)
  metadata = types.SimpleNamespace(hf_subsets_to_langscripts={"zho_Hant": ["zho-Hant"]})
  options = {"task_metadata": metadata, "hf_split": "test", "hf_subset": "zho_Hant"}
  mteb_models.MtebModel(encoder, "tiny").encode([{"text": ["a", "b"]}], **options)
  assert [languages.language(x).name for x in codes] == ["Chinese (traditional)"]


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tatoeba_in_mteb_has_the_same_accuracy(run, tmp_path, data_root, monkeypatch, capsys):
  mteb = pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  datasets = pytest.importorskip("datasets")
  paths = (data_root / "tatoeba" / f"tatoeba.deu-eng.{code}.gz" for code in ("deu", "eng"))
  texts = [list(text_files.read_lines(str(path)))[:200] for path in paths]
  task = mteb.get_task("Tatoeba", languages=["deu"])

  def load_data(**options):
    columns = {"sentence1": texts[0], "sentence2": texts[1]}
    task.dataset = {"deu-eng": {"test": datasets.Dataset.from_dict(columns)}}
    task.data_loaded = True

  monkeypatch.setattr(task, "load_data", load_data)
  monkeypatch.setattr(mteb, "get_task", lambda name: {"Tatoeba": task}[name])
  command = ["eval", str(run), "--out", str(tmp_path), "--mteb"]
  assert cli.main([*command, "Tatoeba"]) == 0
  assert capsys.readouterr().out.startswith("Tatoeba ")
  (path,) = tmp_path.rglob("Tatoeba.json")
  saved = json.loads(path.read_text())["scores"]["test"][0]
  vectors = map(vmsst.load(run).encode, texts)
  german_ND, english_ND = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors)
  expected = np.mean((german_ND @ english_ND.T).argmax(axis=1) == np.arange(200))
  assert saved["accuracy"] == pytest.approx(expected)
