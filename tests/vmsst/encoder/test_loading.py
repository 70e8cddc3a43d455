"""Encoders of this library and of sentence-transformers in `vmsst eval` and in evaluators."""

import json

import line_files
import numpy as np
import pytest
import released_folders
import tiny_encoders

import vmsst
from vmsst import cli, errors
from vmsst.checkpoints.exporters import sentence_transformers_folder
from vmsst.encoder import loading
from vmsst.networks import sentence_encoder

NETWORK = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
GERMAN = ["Hallo Welt", "Wie geht es dir?", "Das Wetter ist gut", "heute", "Welt"]
ENGLISH = ["hello world", "How are you?", "The weather is good", "today", "world"]
NEEDS = "needs sentence-transformers"


@pytest.fixture
def run(tmp_path):
  """Saves a run whose `encoder.json` lists German and English."""
  model = tiny_encoders.model_of(NETWORK)
  return tiny_encoders.save_run(tmp_path / "run", model, languages=["deu", "eng"])


@pytest.fixture
def data(tmp_path):
  for code, texts in (("deu", GERMAN), ("fra", ENGLISH[::-1])):
    for side, lines in ((code, texts), ("eng", ENGLISH)):
      line_files.write_lines(tmp_path / "data" / "tatoeba" / f"tatoeba.{code}-eng.{side}", lines)
  return tmp_path / "data"


def evaluate(encoder, data, out, *options):
  command = ["eval", str(encoder), "--data", str(data), "--out", str(out)]
  assert cli.main([*command, "--suite", "tatoeba", "sib200", *options]) == 0
  return json.loads((out / "results.json").read_text())


def found(encode, sources, targets):
  """Returns the share of sources whose nearest target has the same index, by a loop."""
  right = 0
  for row, source in enumerate(sources):
    first = encode([source])[0]
    cosines = [first @ x / np.linalg.norm(first) / np.linalg.norm(x) for x in encode(targets)]
    right += cosines.index(max(cosines)) == row
  return 100 * right / len(sources)


def test_a_run_goes_through_the_benchmarks_that_are_there(run, data, tmp_path, capsys):
  results = evaluate(run, data, tmp_path / "out")
  encode = vmsst.load(run, backend="jax").encode
  forward, backward = found(encode, GERMAN, ENGLISH), found(encode, ENGLISH, GERMAN)
  summary = results["benchmarks"]["tatoeba"]["summary"]
  assert summary["average seen (incomplete)"] == pytest.approx((forward + backward) / 2)
  assert results["encoder"]["name"] == str(run / "checkpoint_0")
  assert results["seen"] == ["English", "German"]
  assert "sib200" in results["absent"]
  printed = capsys.readouterr()
  assert "sib200" in printed.out
  assert "absent: no folder" in printed.out
  assert "tatoeba: reading" in printed.err
  evaluate(run, data, tmp_path / "named", "--name", "My encoder")
  folders = [str(tmp_path / name) for name in ("out", "named")]
  assert cli.main(["report", *folders, "--out", str(tmp_path / "report")]) == 0
  report = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
  assert "Tatoeba" in report
  assert "My encoder" in report


def test_max_length_of_eval_cuts_texts_and_is_part_of_the_results(run, data, tmp_path, capsys):
  for length in (3, 20):
    evaluate(run, data, tmp_path / str(length), "--max-length", str(length))
  results = [json.loads((tmp_path / x / "results.json").read_text()) for x in ("3", "20")]
  # Bytes are tokens: two letters and EOS.
  encode = vmsst.load(run, backend="jax").encode
  short = found(encode, [x[:2] for x in GERMAN], [x[:2] for x in ENGLISH])
  german = {x["name"]: x["metrics"] for x in results[0]["benchmarks"]["tatoeba"]["results"]}["deu"]
  assert german["to English"] == pytest.approx(short)
  assert short != found(encode, GERMAN, ENGLISH)
  assert [each["max_length"] for each in results] == [3, 20]
  assert results[0]["encoder"]["digest"] != results[1]["encoder"]["digest"]
  capsys.readouterr()
  command = ["eval", str(run), "--data", str(data), "--out", str(tmp_path / "3")]
  assert cli.main([*command, "--suite", "tatoeba"]) == 1
  assert "max_length is 3, not 20" in capsys.readouterr().err
  out = tmp_path / "report"
  assert cli.main(["report", *(str(tmp_path / x) for x in ("3", "20")), "--out", str(out)]) == 0
  text = (out / "report.html").read_text(encoding="utf-8")
  assert " 3 tokens" in text
  assert " 20 tokens" in text


def test_max_length_beyond_the_position_table_is_an_error(tmp_path):
  model = tiny_encoders.model_of(tiny_encoders.NETWORKS["e5"])
  run = tiny_encoders.save_run(tmp_path / "run", model)
  assert vmsst.load(run, max_length=28).max_length == 28
  for length in (0, 29, 2.5):
    with pytest.raises(errors.InputError, match=f"run is {length}; .* from 1 to 28"):
      vmsst.load(run, max_length=length)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_encoder_of_sentence_transformers_does_unchanged(data, tmp_path):
  st = pytest.importorskip("sentence_transformers", reason=NEEDS)
  pooling = {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}  # not ours
  changes = {"1_Pooling/config.json": pooling}
  folder = str(released_folders.write(tmp_path / "theirs", "bert", changes))
  made = st.SentenceTransformer(folder, device="cpu")
  results = evaluate(folder, data, tmp_path / "out")
  assert results["encoder"]["name"] == folder
  german = results["benchmarks"]["tatoeba"]["results"][0]["metrics"]
  assert german["to English"] == pytest.approx(found(made.encode, GERMAN, ENGLISH))
  assert german["from English"] == pytest.approx(found(made.encode, ENGLISH, GERMAN))
  assert results["max_length"] == made.max_seq_length
  _, cut = loading.open_encoder(folder, max_length=5)
  assert cut.max_seq_length == 5
  assert cut.digest != results["encoder"]["digest"]
  with pytest.raises(errors.InputError, match=r"max_length of .*theirs is 99"):
    loading.open_encoder(folder, max_length=99)
  (tmp_path / "theirs" / "modules.json").write_text("{")
  with pytest.raises(errors.InputError, match="theirs"):
    loading.open_encoder(folder)


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
  sentence_transformers_folder.export_sentence_transformers(run, folder / "export")
  return vmsst.load(run), theirs.SentenceTransformer(str(folder / "export"), device="cpu")


def retrieval(evaluation, **options):
  queries, corpus = ({str(i): x for i, x in enumerate(side)} for side in (ENGLISH, GERMAN * 3))
  relevant = {key: {key} for key in queries}
  return evaluation.InformationRetrievalEvaluator(queries, corpus, relevant, **options)


def reranking(evaluation):
  samples = zip(ENGLISH, GERMAN, [*GERMAN[1:], GERMAN[0]], strict=True)
  return evaluation.RerankingEvaluator(
    [{"query": query, "positive": [right], "negative": [wrong]} for query, right, wrong in samples]
  )


SCORES = [0.9, 0.3, 0.5, 0.1, 0.7]
EVALUATORS = {
  "similarity": lambda x: x.EmbeddingSimilarityEvaluator(ENGLISH, GERMAN, SCORES),
  "translation": lambda x: x.TranslationEvaluator(ENGLISH, GERMAN, show_progress_bar=True),
  "retrieval": retrieval,
  "truncated": lambda x: retrieval(x, truncate_dim=3),
  "prompts": lambda x: retrieval(x, query_prompt="query: ", corpus_prompt="passage: "),
  "reranking": reranking,
}


@pytest.mark.parametrize("name", EVALUATORS)
def test_an_evaluator_reports_the_numbers_of_sentence_transformers(evaluation, both, name):
  ours, opened = (EVALUATORS[name](evaluation)(encoder) for encoder in both)
  assert ours == pytest.approx(opened, abs=1e-4)


def test_the_error_to_a_teacher_is_that_of_sentence_transformers(evaluation, both):
  for teacher in both:
    evaluator = evaluation.MSEEvaluator(ENGLISH, GERMAN, teacher_model=teacher)
    ours, opened = (evaluator(student)["negative_mse"] for student in both)
    assert ours == pytest.approx(opened, rel=1e-4)


def test_tensors_are_those_of_sentence_transformers(both):
  torch = pytest.importorskip("torch", reason=NEEDS)
  ours, opened = both
  for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
    found, expected = (x.encode(ENGLISH, normalize_embeddings=True, **options) for x in both)
    assert type(found) is type(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
  for one, other in ((found, expected), (found[0], expected[1:])):
    torch.testing.assert_close(ours.similarity(one, other), opened.similarity(one, other))
