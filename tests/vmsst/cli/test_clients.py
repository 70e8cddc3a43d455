"""Programs by others that use our encoders or their vectors."""

import json
import sys

import line_files
import numpy as np
import pytest
import scipy.stats
import tiny_encoders

import vmsst
from vmsst import cli
from vmsst.evaluation import mteb_models
from vmsst.files import text_files
from vmsst.networks import sentence_encoder
from vmsst.vectors import vector_store

NETWORK = sentence_encoder.SentenceEncoder(
  tiny_encoders.t5_config(emb_dim=16, head_dim=8, mlp_dim=16), latent_dim=12
)
LINES = [f"line {i}: {'abcdefghij'[i % 10] * (i % 7)}" for i in range(60)] + [""]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  model = tiny_encoders.model_of(NETWORK, max_length=32)
  return tiny_encoders.save_run(tmp_path_factory.mktemp("run"), model)


@pytest.fixture(scope="module")
def vectors_ND(run, tmp_path_factory):
  """Returns what `vmsst embed` writes for the lines."""
  folder = tmp_path_factory.mktemp("embedded")
  line_files.write_lines(folder / "text", LINES)
  assert cli.main(["embed", str(run), str(folder / "text"), str(folder / "vectors")]) == 0
  return vector_store.open_vectors(folder / "vectors")[:]


def assert_nearest(places_NK, queries_ND, vectors_ND):
  """Asserts that the vectors at some places have the largest cosines with each query."""
  unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
  for place_K, query_D in zip(places_NK, queries_ND, strict=True):
    cosine_N = unit_ND @ (query_D / np.linalg.norm(query_D))
    assert len({*place_K}) == len(place_K)
    expected_K = np.sort(cosine_N)[::-1][: len(place_K)]
    np.testing.assert_allclose(cosine_N[place_K], expected_K, atol=1e-5)


def test_faiss_indexes_what_embed_writes(run, vectors_ND):
  faiss = pytest.importorskip("faiss", reason="needs faiss-cpu")
  indexed_ND = np.ascontiguousarray(vectors_ND, np.float32).copy()
  faiss.normalize_L2(indexed_ND)
  index = faiss.IndexFlatIP(indexed_ND.shape[1])
  index.add(indexed_ND)
  queries = ["line 17", "something else", ""]
  query_ND = vmsst.load(run).encode(queries, normalize=True)
  scores_NK, places_NK = index.search(query_ND, 3)
  assert_nearest(places_NK, query_ND, vectors_ND)
  assert places_NK[2, 0] == LINES.index("")
  assert scores_NK[2, 0] == pytest.approx(1, abs=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sentence_transformers_util_takes_the_vectors(vectors_ND):
  util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
  hits = util.semantic_search(vectors_ND[:5], vectors_ND, top_k=3)
  found = [[hit["corpus_id"] for hit in of_query] for of_query in hits]
  assert_nearest(found, vectors_ND[:5], vectors_ND)
  unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
  np.testing.assert_allclose(util.cos_sim(vectors_ND, vectors_ND), unit_ND @ unit_ND.T, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mteb_evaluates_an_encoder(run, tmp_path):
  mteb = pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  datasets = pytest.importorskip("datasets")
  from mteb.abstasks import AbsTaskSTS

  gold = np.random.default_rng(0).uniform(0, 5, 30)
  first, second = LINES[:30], LINES[30:60]

  class LocalSts(AbsTaskSTS):
    metadata = mteb.TaskMetadata(
      name="LocalSts",
      description="pairs made by a test",
      reference=None,
      dataset={"path": "local/none", "revision": "1"},
      type="STS",
      category="t2t",
      modalities=["text"],
      eval_splits=["test"],
      eval_langs=["eng-Latn"],
      main_score="cosine_spearman",
      date=None,
      domains=None,
      task_subtypes=None,
      license=None,
      annotations_creators=None,
      dialect=None,
      sample_creation=None,
      bibtex_citation=None,
    )
    min_score, max_score = 0, 5

    def load_data(self, **options):
      columns = {"sentence1": first, "sentence2": second, "score": list(gold)}
      self.dataset = {"test": datasets.Dataset.from_dict(columns)}
      self.data_loaded = True

  encoder = vmsst.load(run)
  scores = mteb_models.evaluate(encoder, [LocalSts()], tmp_path, name=str(run))
  expected = scipy.stats.spearmanr(encoder.score_pairs(first, second), gold).statistic
  assert scores == {"LocalSts": pytest.approx(100 * expected, abs=1e-2)}
  (path,) = tmp_path.rglob("LocalSts.json")
  assert path.parent.name == encoder.digest[:16]
  saved = json.loads(path.read_text())["scores"]["test"][0]
  assert saved["cosine_spearman"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_mteb_compares_one_vector_with_another(run):
  pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  encoder = vmsst.load(run)
  model = mteb_models.MtebModel(encoder, "tiny")
  vectors_ND = encoder.encode(LINES[:3])
  cosine_NN = encoder.similarity(vectors_ND)
  # As its summarization tasks do.
  assert float(model.similarity(vectors_ND[0], vectors_ND[1])) == pytest.approx(cosine_NN[0, 1])
  assert model.similarity(vectors_ND, vectors_ND[1]).shape == (3, 1)
  found_N = model.similarity_pairwise(vectors_ND[:2], vectors_ND[1:])
  np.testing.assert_allclose(found_N, [cosine_NN[0, 1], cosine_NN[1, 2]], atol=1e-6)


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
  command = ["eval", "--encoder", str(run), "--out", str(tmp_path), "--mteb"]
  assert cli.main([*command, "Tatoeba"]) == 0
  assert capsys.readouterr().out.startswith("Tatoeba ")
  (path,) = tmp_path.rglob("Tatoeba.json")
  saved = json.loads(path.read_text())["scores"]["test"][0]
  german_ND, english_ND = map(vmsst.load(run).encode, sides)
  unit_ND, base_ND = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (german_ND, english_ND))
  expected = np.mean((unit_ND @ base_ND.T).argmax(axis=1) == np.arange(200))
  assert saved["accuracy"] == pytest.approx(expected)
  assert cli.main([*command, "Tatooine"]) == 1
  assert "MTEB: " in capsys.readouterr().err


def test_mteb_must_be_installed(run, tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "mteb", None)
  command = ["eval", "--encoder", str(run), "--out", str(tmp_path / "out"), "--mteb", "Tatoeba"]
  assert cli.main(command) == 1
  assert "pip install 'vmsst[mteb]'" in capsys.readouterr().err
  assert cli.main([*command, "--data", str(tmp_path)]) == 1
  assert "--data and --suite do not apply to --mteb; omit them" in capsys.readouterr().err
