"""Evaluators of sentence-transformers, called with an `Encoder` as with a SentenceTransformer."""

import pytest
import tiny_encoders

import vmsst
from vmsst.checkpoints.exporters import sentence_transformers_folder
from vmsst.networks import sentence_encoder

torch = pytest.importorskip("torch", reason="needs sentence-transformers")
theirs = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
from sentence_transformers.sentence_transformer import evaluation  # noqa: E402

SOURCES = ["a red apple", "the museum", "ten past four", "the sun is out", "we were late"]
TARGETS = ["ein roter Apfel", "das Museum", "zehn nach vier", "die Sonne scheint", "zu spät"]
WRONG = [*TARGETS[1:], TARGETS[0]]
SCORES = [0.9, 0.3, 0.5, 0.1, 0.7]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """Returns an encoder, and its export as sentence-transformers opens it."""
  folder = tmp_path_factory.mktemp("encoder")
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
  run = tiny_encoders.save_run(folder / "run", tiny_encoders.model_of(network, max_length=40))
  sentence_transformers_folder.export_sentence_transformers(run, folder / "export")
  opened = theirs.SentenceTransformer(str(folder / "export"), device="cpu")
  return vmsst.load(run), opened


def retrieval(**options):
  queries, corpus = (
    {str(i): text for i, text in enumerate(side)} for side in (SOURCES, TARGETS * 3)
  )
  relevant = {key: {key} for key in queries}
  return evaluation.InformationRetrievalEvaluator(queries, corpus, relevant, **options)


EVALUATORS = {
  "similarity": lambda: evaluation.EmbeddingSimilarityEvaluator(SOURCES, TARGETS, SCORES),
  "translation": lambda: evaluation.TranslationEvaluator(SOURCES, TARGETS, show_progress_bar=True),
  "retrieval": retrieval,
  "truncated": lambda: retrieval(truncate_dim=3),
  "prompts": lambda: retrieval(query_prompt="query: ", corpus_prompt="passage: "),
  "reranking": lambda: evaluation.RerankingEvaluator(
    [
      {"query": source, "positive": [right], "negative": [wrong]}
      for source, right, wrong in zip(SOURCES, TARGETS, WRONG, strict=True)
    ]
  ),
}


@pytest.mark.parametrize("name", EVALUATORS)
def test_an_evaluator_reports_the_numbers_of_sentence_transformers(both, name):
  ours, opened = (EVALUATORS[name]()(encoder) for encoder in both)
  assert ours == pytest.approx(opened, abs=1e-4)


def test_the_error_to_a_teacher_is_that_of_sentence_transformers(both):
  ours, opened = both
  for teacher in both:
    errors = [
      evaluation.MSEEvaluator(SOURCES, TARGETS, teacher_model=teacher)(student)["negative_mse"]
      for student in (ours, opened)
    ]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)


def test_tensors_are_those_of_sentence_transformers(both):
  ours, opened = both
  for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
    found, expected = (
      encoder.encode(SOURCES, normalize_embeddings=True, **options) for encoder in both
    )
    assert type(found) is type(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
  for one, other in ((found, expected), (found[0], expected[1:])):
    torch.testing.assert_close(ours.similarity(one, other), opened.similarity(one, other))
