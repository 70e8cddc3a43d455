"""Programs by others that use our encoders or their vectors."""

import line_files
import numpy as np
import pytest
import scipy.stats
import tiny_encoders

import vmsst
from vmsst import cli
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


def nearest(queries_ND, vectors_ND, count):
  """Returns the positions of the largest cosines, one query at a time."""
  unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
  return [
    np.argsort(-(unit_ND @ (q / np.linalg.norm(q))), kind="stable")[:count] for q in queries_ND
  ]


def test_faiss_indexes_what_embed_writes(run, vectors_ND):
  faiss = pytest.importorskip("faiss", reason="needs faiss-cpu")
  indexed_ND = np.ascontiguousarray(vectors_ND, np.float32).copy()
  faiss.normalize_L2(indexed_ND)
  index = faiss.IndexFlatIP(indexed_ND.shape[1])
  index.add(indexed_ND)
  queries = ["line 17", "something else", ""]
  query_ND = vmsst.load(run).encode(queries, normalize=True)
  scores_NK, places_NK = index.search(query_ND, 3)
  expected = nearest(query_ND, vectors_ND, 3)
  np.testing.assert_array_equal(places_NK, expected)
  assert places_NK[2, 0] == LINES.index("")
  assert scores_NK[2, 0] == pytest.approx(1, abs=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sentence_transformers_util_takes_the_vectors(vectors_ND):
  util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
  hits = util.semantic_search(vectors_ND[:5], vectors_ND, top_k=3)
  found = [[hit["corpus_id"] for hit in of_query] for of_query in hits]
  np.testing.assert_array_equal(found, nearest(vectors_ND[:5], vectors_ND, 3))
  unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
  np.testing.assert_allclose(util.cos_sim(vectors_ND, vectors_ND), unit_ND @ unit_ND.T, atol=1e-5)


class ForMteb:
  """An encoder with the protocol of mteb's models."""

  def __init__(self, encoder, meta):
    self.encoder, self.mteb_model_meta = encoder, meta

  def encode(self, inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **options):
    texts = [text for batch in inputs for text in batch["text"]]
    return self.encoder.encode(texts, batch_size=options.get("batch_size", 32), progress=False)

  def similarity(self, embeddings1, embeddings2):
    return self.encoder.similarity(np.asarray(embeddings1), np.asarray(embeddings2))

  def similarity_pairwise(self, embeddings1, embeddings2):
    return self.encoder.score_pairs(np.asarray(embeddings1), np.asarray(embeddings2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mteb_evaluates_an_encoder(run):
  mteb = pytest.importorskip("mteb", reason="needs mteb (pip install 'vmsst[mteb]')")
  datasets = pytest.importorskip("datasets")
  from mteb.abstasks import AbsTaskSTS
  from mteb.models import ModelMeta

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
  meta = ModelMeta.create_empty({"name": "local/vmsst", "revision": "1"})
  result = mteb.evaluate(
    ForMteb(encoder, meta), LocalSts(), cache=None, co2_tracker=False, show_progress_bar=False
  )
  (scores,) = result.task_results[0].scores["test"]
  expected = scipy.stats.spearmanr(encoder.score_pairs(first, second), gold).statistic
  assert scores["cosine_spearman"] == pytest.approx(expected, abs=1e-4)
