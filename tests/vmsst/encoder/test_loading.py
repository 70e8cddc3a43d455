"""Encoders of this library and of sentence-transformers in commands and in evaluators."""

import json
import re
from pathlib import Path

import line_files
import numpy as np
import pytest
import released_folders
import tiny_encoders

import vmsst
from vmsst import cli, errors
from vmsst.encoder import loading
from vmsst.networks import sentence_encoder

NETWORK = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
GERMAN = ["Hallo Welt", "Wie geht es dir?", "Das Wetter ist gut", "heute", "Welt"]
ENGLISH = ["hello world", "How are you?", "The weather is good", "today", "world"]
NEEDS = "needs sentence-transformers"


def test_max_length_beyond_the_position_table_is_an_error(tmp_path):
  model = tiny_encoders.model_of(tiny_encoders.NETWORKS["e5"])
  run = tiny_encoders.save_run(tmp_path / "run", model)
  assert vmsst.load(run, max_length=28).max_length == 28
  with pytest.raises(errors.InputError, match=r"max_length is 29; .* from 1 to 28"):
    vmsst.load(run, max_length=29)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_encoder_of_sentence_transformers_is_used_unchanged(tmp_path):
  st = pytest.importorskip("sentence_transformers", reason=NEEDS)
  changes = {
    "1_Pooling/config.json": {"include_prompt": False},  # not ours
    "config_sentence_transformers.json": {"prompts": {"query": "query: "}},
  }
  folder = str(released_folders.write(tmp_path / "theirs", "bert", changes))
  made = st.SentenceTransformer(folder, device="cpu")
  name, opened = loading.open_encoder(folder)
  assert (name, opened.max_seq_length) == (folder, made.max_seq_length)
  np.testing.assert_array_equal(opened.encode(ENGLISH), made.encode(ENGLISH))
  _, cut = loading.open_encoder(folder, max_length=5)
  assert cut.max_seq_length == 5
  assert cut.digest != opened.digest


@pytest.mark.filterwarnings("ignore")  # those of other libraries
@pytest.mark.parametrize("kind", ["static", "router"])
def test_embed_opens_any_model_of_sentence_transformers(tmp_path, kind):
  st = pytest.importorskip("sentence_transformers", reason=NEEDS)
  tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers to make one")
  from sentence_transformers import models

  tokenizer = tokenizers.Tokenizer.from_str(json.dumps(released_folders.bert_tokenizer()))
  parts = [models.StaticEmbedding(tokenizer, embedding_dim=16)]
  if kind == "router":
    folder = released_folders.write(tmp_path / "bert", "bert", {})
    other = list(st.SentenceTransformer(str(folder), device="cpu").children())
    parts = [models.Router.for_query_document(parts, other)]
  made = st.SentenceTransformer(modules=parts, device="cpu")
  made.save_pretrained(str(tmp_path / "m"))
  texts = ["the museum", "red apple", "cafe", "is open"]
  line_files.write_lines(tmp_path / "texts", texts)
  command = ["embed", tmp_path / "m", tmp_path / "texts", tmp_path / "vectors"]
  assert cli.main([str(word) for word in command]) == 0
  vectors = vmsst.open_vectors(tmp_path / "vectors")[:]
  method = made.encode_document if kind == "router" else made.encode
  np.testing.assert_allclose(vectors, method(texts), atol=1e-6)


CODE = "import pathlib; pathlib.Path('ran').touch()\nclass Ran:\n  pass\n"


@pytest.mark.filterwarnings("ignore")  # those of other libraries
@pytest.mark.parametrize(
  "changes",
  [
    {"modules.json": released_folders.modules("code.Ran")},
    {"modules.json": [{"type": "sentence_transformers.models.Router", "path": ""}],
     "router_config.json": {"types": {"code": "code.Ran"}, "structure": {}, "parameters": {}}},
  ],
)  # fmt: skip
def test_what_is_handed_to_sentence_transformers_runs_no_code(tmp_path, monkeypatch, changes):
  pytest.importorskip("sentence_transformers", reason=NEEDS)
  monkeypatch.chdir(tmp_path)
  # Releases can have a list of training data.
  files = {"config.json": {"model_type": "electra"}, "code.py": CODE, "data_config.json": [{}]}
  folder = released_folders.write(tmp_path / "m", "bert", files | changes)
  monkeypatch.syspath_prepend(folder)
  with pytest.raises(errors.InputError, match="cannot open it"):
    loading.open_encoder(str(folder))
  assert not (tmp_path / "ran").exists()


def test_versions_of_sentence_transformers_that_run_code_are_refused(tmp_path, monkeypatch):
  st = pytest.importorskip("sentence_transformers", reason=NEEDS)
  monkeypatch.setattr(st, "__version__", "5.4.1")
  folder = released_folders.write(
    tmp_path / "m", "bert", {"config.json": {"model_type": "electra"}}
  )
  with pytest.raises(errors.InputError, match=r"before version 6 can run code .* install -U"):
    loading.open_encoder(str(folder))


# --------------------------------------------------------------------------------------------
# Evaluators of sentence-transformers, called with an `Encoder` as with a SentenceTransformer


@pytest.fixture(scope="module")
def evaluation():
  return pytest.importorskip("sentence_transformers.sentence_transformer.evaluation", reason=NEEDS)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """Returns an encoder, and its export as sentence-transformers opens it."""
  theirs = pytest.importorskip("sentence_transformers", reason=NEEDS)
  folder = tmp_path_factory.mktemp("encoder")
  run = tiny_encoders.save_run(folder / "run", tiny_encoders.model_of(NETWORK, max_length=40))
  released_folders.export(run, folder / "export")
  return vmsst.load(run), theirs.SentenceTransformer(str(folder / "export"), device="cpu")


def retrieval(evaluation, **options):
  queries, corpus = ({str(i): x for i, x in enumerate(side)} for side in (ENGLISH, GERMAN * 3))
  relevant = {key: {key} for key in queries}
  return evaluation.InformationRetrievalEvaluator(queries, corpus, relevant, **options)


SCORES = [0.9, 0.3, 0.5, 0.1, 0.7]
EVALUATORS = {
  "similarity": lambda x: x.EmbeddingSimilarityEvaluator(ENGLISH, GERMAN, SCORES),
  "translation": lambda x: x.TranslationEvaluator(ENGLISH, GERMAN, show_progress_bar=True),
  "retrieval": retrieval,
  "truncated": lambda x: retrieval(x, truncate_dim=3),
  "prompts": lambda x: retrieval(x, query_prompt="query: ", corpus_prompt="passage: "),
  "classes": lambda x: x.BinaryClassificationEvaluator(ENGLISH, GERMAN, [1, 0, 1, 0, 1]),
  "triplets": lambda x: x.TripletEvaluator(ENGLISH, GERMAN, GERMAN[::-1]),
  "paraphrases": lambda x: x.ParaphraseMiningEvaluator(
    {str(i): text for i, text in enumerate(ENGLISH + GERMAN)}, duplicates_list=[("0", "5")]
  ),
}


@pytest.mark.parametrize("name", EVALUATORS)
def test_an_evaluator_reports_the_numbers_of_sentence_transformers(evaluation, both, name):
  ours, opened = (encoder.evaluate(EVALUATORS[name](evaluation)) for encoder in both)
  assert ours == pytest.approx(opened, abs=1e-4)


@pytest.mark.parametrize("name", ["dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(evaluation, both, monkeypatch, name):
  torch = pytest.importorskip("torch", reason=NEEDS)
  ours, theirs = both
  for encoder in both:
    monkeypatch.setattr(encoder, "similarity_fn_name", name)
  for evaluator in ("similarity", "retrieval", "triplets"):
    found, expected = (EVALUATORS[evaluator](evaluation)(encoder) for encoder in both)
    assert found == pytest.approx(expected, abs=1e-4)
    assert any(name in key for key in found)
  source_ND, target_ND = (ours.encode(texts) for texts in (ENGLISH, GERMAN))
  expected = theirs.similarity(source_ND, target_ND).numpy()
  for sides in ((source_ND, target_ND), (ENGLISH, GERMAN)):
    np.testing.assert_allclose(ours.similarity(*sides), expected, rtol=1e-5)
    np.testing.assert_allclose(ours.score_pairs(*sides), np.diag(expected), rtol=1e-5)
  found = ours.similarity_pairwise(source_ND, target_ND)
  torch.testing.assert_close(found, theirs.similarity_pairwise(source_ND, target_ND))


@pytest.mark.parametrize("options", [{}, {"use_faiss": True}, {"absolute_margin": 0.1}])
def test_hard_negatives_are_those_of_sentence_transformers(both, tmp_path, options):
  util = pytest.importorskip("sentence_transformers.util", reason=NEEDS)
  datasets = pytest.importorskip("datasets", reason="needs datasets")
  pairs = datasets.Dataset.from_dict({"query": ENGLISH, "answer": GERMAN})
  found, expected = (
    util.mine_hard_negatives(
      pairs, encoder, num_negatives=2, verbose=False, cache_folder=tmp_path / str(index), **options
    ).to_dict()
    for index, encoder in enumerate(both)
  )
  assert found == expected


def test_tokens_and_sizes_are_those_of_sentence_transformers(both):
  torch = pytest.importorskip("torch", reason=NEEDS)
  ours, theirs = both
  assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
  assert ours.device == theirs.device
  for length in (40, 5):
    for encoder in both:
      encoder.max_seq_length = length
    assert ours.max_length == ours.max_seq_length == ours.tokenizer.model_max_length == length
    expected = theirs.preprocess(ENGLISH)
    for name, found in ours.tokenize(ENGLISH).items():
      torch.testing.assert_close(found, expected[name])
    for name in ("query", "document", None):
      found, expected_ND = (x.encode(ENGLISH, prompt_name=name) for x in both)
      np.testing.assert_allclose(found, expected_ND, rtol=1e-4, atol=1e-5)
  for encoder in both:
    encoder.max_seq_length = 40
  assert ours.tokenizer.tokenize("ab") == theirs.tokenizer.tokenize("ab")


def test_settings_of_a_released_model_can_be_read_set_and_saved(tmp_path):
  changes = {
    "similarity_fn_name": "dot",
    "prompts": {"query": "red ", "topic": "the ", "again": "the ", "none": ""},
    "default_prompt_name": "topic",
  }
  files = {"config_sentence_transformers.json": changes}
  encoder = vmsst.load(released_folders.write(tmp_path / "m", "bert", files))
  assert (encoder.similarity_fn_name, encoder.default_prompt_name) == ("dot", "topic")
  text, digest = ["museum is open"], encoder.digest
  topic_ND, query_ND, plain_ND = (encoder.encode(text, prefix=x) for x in ("the ", "red ", ""))
  names = {"topic": topic_ND, "again": topic_ND, "query": query_ND, "none": plain_ND}
  for name, expected_ND in (names | {None: plain_ND}).items():
    encoder.default_prompt_name = name
    assert encoder.default_prompt_name == name
    assert (encoder.digest == digest) == (name in ("topic", "again"))
    np.testing.assert_array_equal(encoder.encode(text), expected_ND)
    np.testing.assert_array_equal(encoder.encode_query(text), query_ND)
  encoder.default_prompt_name, encoder.max_seq_length = "query", 3
  encoder.save_pretrained(tmp_path / "export")
  again = vmsst.load(tmp_path / "export")
  found = (again.similarity_fn_name, again.default_prompt_name, again.max_length)
  assert found == ("dot", "query", 3)
  np.testing.assert_allclose(again.encode(text), encoder.encode(text), atol=1e-6)
  assert encoder.trim(text).similarity_fn_name == "dot"


def test_the_docs_list_every_member_of_sentence_transformers():
  theirs = pytest.importorskip("sentence_transformers", reason=NEEDS).SentenceTransformer
  module = pytest.importorskip("torch", reason=NEEDS).nn.Module
  page = Path(__file__).parents[3] / "docs/how-to/sentence_transformers.md"
  _, _, section = page.read_text(encoding="utf-8").partition(
    "## An encoder as a SentenceTransformer"
  )
  listed = {}
  for names, there in re.findall(r"^\| (`.*?`) \| (yes|no) \|", section, re.MULTILINE):
    listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), there == "yes")
  members = {name for name in dir(theirs) if not name.startswith("_")}
  assert set(listed) == members - (set(dir(module)) - {"eval"})
  assert listed == {name: hasattr(vmsst.Encoder, name) for name in listed}


def test_tensors_are_those_of_sentence_transformers(both):
  torch = pytest.importorskip("torch", reason=NEEDS)
  ours, opened = both
  for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
    found, expected = (x.encode(ENGLISH, normalize_embeddings=True, **options) for x in both)
    assert type(found) is type(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
  for one, other in ((found, expected), (found[0], expected[1:])):
    torch.testing.assert_close(ours.similarity(one, other), opened.similarity(one, other))
