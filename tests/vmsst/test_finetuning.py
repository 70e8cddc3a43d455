"""`vmsst.finetune`: from a folder of sentence-transformers to a better one."""

import json
import os
import pathlib
import signal
import sys

import commands
import gin
import numpy as np
import pytest
import released_folders
import tiny_encoders

import vmsst
from vmsst import cli, errors, finetuning
from vmsst.data import packing, sample, vocabularies
from vmsst.encoder import loading, starting_encoders
from vmsst.formats import t5x, tensors
from vmsst.networks import sentence_encoder
from vmsst.train import dev_sets, train


def pairs_of(first, last):
  return [(sample.sentence(i, "de"), sample.sentence(i, "en")) for i in range(first, last)]


OPTIONS = {"steps": 4, "batch_size": 8, "eval_every": 2, "learning_rate": 1e-3}
OPTIONS |= {"dev": pairs_of(30, 60), "freeze_tokens": True, "max_length": 20}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  return released_folders.write(tmp_path_factory.mktemp("finetune") / "source", "bert", {})


@pytest.fixture(scope="module")
def chained(source):
  """A folder with several layers after the pooling."""
  layers = [("LayerNorm", {}), released_folders.dense("modules.activation.GELU"), ("Normalize", {})]
  files = released_folders.chain({"pooling_mode": ["cls", "weightedmean"]}, *layers)
  files["config_sentence_transformers.json"] = {"prompts": {"query": "query: "}}
  return released_folders.write(source.parent / "chained", "bert", files)


@pytest.fixture(scope="module")
def tuned(chained):
  """The folder of a run, of a process of its own."""
  output = chained.parent / "tuned"
  records = [dict(zip(("anchor", "positive"), pair, strict=True)) for pair in pairs_of(0, 30)]
  code = """
import json, sys, vmsst
source, output = sys.argv[1:]
tuned = vmsst.finetune(vmsst.load(source), output=output, **json.load(sys.stdin))
slow = {"tensorflow", "seqio", "gin"} & sys.modules.keys()
assert not slow, slow
assert tuned.path.startswith(output), tuned.path
"""
  text = json.dumps({"pairs": records, **OPTIONS})
  commands.fresh_script(code, str(chained), str(output), cwd=chained.parent, text=text)
  return output


def test_the_result_is_the_best_checkpoint_of_a_run_with_a_report(chained, tuned):
  rows = (tuned / "inference_eval" / "dev-metrics.jsonl").read_text().splitlines()
  accuracy = {row["step"]: row["accuracy/dev"] for row in map(json.loads, rows)}
  assert sorted(accuracy) == [0, 2, 4]
  best = max(accuracy, key=lambda step: (accuracy[step], -step))
  named = t5x.read_best(tuned)
  assert (named["checkpoint"], named["value"]) == (f"checkpoint_{best}", accuracy[best])
  encoder = vmsst.load(tuned)
  assert encoder.path == str(tuned / f"checkpoint_{best}")
  assert {f"checkpoint_{best}", "checkpoint_4"} <= {path.name for path in tuned.iterdir()}
  assert f"Best: checkpoint_{best}" in (tuned / "report.md").read_text()
  assert (encoder.prompts, encoder.max_length) == (vmsst.load(chained).prompts, 20)


def test_only_the_frozen_table_keeps_its_values(chained, tuned):
  before, after = (
    tensors.separate(loading.read(x).arrays) for x in (chained, tuned / "checkpoint_4")
  )
  same = {name for name, array in before.items() if np.array_equal(array, after[name])}
  assert "token_embedder/embedding" in same
  trained = {"encoder/layers_0/mlp/wi/kernel", "head_0/scale", "head_1/kernel"}
  assert trained <= before.keys() - same


def test_a_finished_run_stays_as_it_is(chained, tuned):
  before = {path: path.read_bytes() for path in tuned.rglob("*") if path.is_file()}
  trimmed = vmsst.load(chained).trim(["red"])
  for start, change, message in (
    (chained, {"learning_rate": 0.1, "steps": 8}, "learning_rate is 0.001, not 0.1; give another"),
    (chained, {"dev": pairs_of(30, 50)}, "dev is "),
    (trimmed, {}, "encoder is "),
  ):
    with pytest.raises(errors.InputError, match=f"belongs to another job: {message}"):
      vmsst.finetune(start, pairs_of(0, 30), output=tuned, **OPTIONS | change)
  assert {path: path.read_bytes() for path in tuned.rglob("*") if path.is_file()} == before


def test_a_command_that_is_stopped_resumes_with_other_steps(source, tmp_path, capsys, monkeypatch):
  """It leaves gin's configuration alone."""
  rows = ["\t".join((*pair, "the red apple", "")) for pair in pairs_of(0, 20)]
  pairs, output = tmp_path / "pairs.tsv", tmp_path / "out"
  pairs.write_text("\n".join(rows))
  command = ["finetune", *map(str, (source, pairs, output, "--dev", pairs)), "--batch-size", "4"]
  command += ["--negatives", "2", "--steps"]
  gin.parse_config("OF_THE_PROGRAM = 1")
  before = gin.config_str()
  evaluate = dev_sets.DevSets.evaluate

  def terminate(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return evaluate(*arguments)

  with monkeypatch.context() as patch:
    patch.setattr(dev_sets.DevSets, "evaluate", terminate)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
      cli.main([*command, "2"])
  assert not (output / "report.md").exists()
  assert "opens the encoder" not in capsys.readouterr().out
  assert cli.main([*command, "1"]) == 0
  assert gin.config_str() == before
  assert f"vmsst.load('{output}')" in capsys.readouterr().out
  assert vmsst.load(output).encode("red").shape == (16,)
  assert "\n| 0 |  | " in (output / "report.md").read_text()


def test_lora_in_bfloat16_with_averages_is_saved_as_a_float32_encoder(source, tmp_path):
  options = {**OPTIONS, "freeze_tokens": False, "lora_rank": 2, "compute_dtype": "bfloat16"}
  tuned = vmsst.finetune(source, pairs_of(0, 30), tmp_path / "out", average=2, **options)
  assert tuned.path == str(tmp_path / "out" / "average" / "checkpoint_0")
  before, after = (tensors.separate(loading.read(x).arrays) for x in (source, tuned.path))
  changed = {name for name, array in before.items() if not np.array_equal(array, after[name])}
  assert changed == {name for name in before if name.endswith("kernel")}
  expected = vmsst.load(tmp_path / "out", backend="jax", dtype="float32").encode(["red"])
  np.testing.assert_allclose(tuned.encode(["red"]), expected, atol=1e-5)
  source_ND, target_ND = map(tuned.encode, zip(*OPTIONS["dev"], strict=True))
  ranks = tuned.similarity(source_ND, target_ND).argmax(axis=1)
  *_, last = (tmp_path / "out" / "report.md").read_text().splitlines()
  step, loss, _, to_target, *_ = last.strip("| ").split(" | ")
  assert (step, loss, float(to_target)) == (
    "average", "", pytest.approx(100 * np.mean(ranks == np.arange(len(ranks))), rel=1e-3)
  )  # fmt: skip


def test_an_encoder_trained_for_fewer_layers_is_cut_to_them(source, tmp_path, monkeypatch):
  options = {"steps": 2, "freeze_tokens": False, "dev": None, "learning_rate": 1e-2}
  options |= {"matryoshka_layers": (1,), "matryoshka_dims": (4,)}
  with monkeypatch.context() as patch:
    patch.setattr(t5x, "open_params", None)  # The last step's parameters are in memory.
    tuned = vmsst.finetune(source, pairs_of(0, 30), tmp_path / "out", **OPTIONS | options)
  losses = json.loads((tmp_path / "out" / "train" / "metrics.jsonl").read_text().splitlines()[-1])
  assert {"loss", "first_4/loss", "layers_1/loss", "layers_1/first_4/loss"} <= losses.keys()
  assert tuned.path == str(tmp_path / "out" / "checkpoint_2")
  again = vmsst.load(tmp_path / "out")
  assert (again.path, again.digest) == (tuned.path, tuned.digest)
  np.testing.assert_allclose(again.encode(["red"]), tuned.encode(["red"]), atol=1e-6)
  tuned.truncate(1).save(tmp_path / "short")
  short = vmsst.load(tmp_path / "short")
  np.testing.assert_allclose(short.encode(["red"]), tuned.truncate(1).encode(["red"]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["distillation", "soft_contrastive", "ems", "margin_mse"])
def test_other_objectives_train_and_show_the_loss_of_held_out_pairs(source, tmp_path, objective):
  options = {"objective": objective, "steps": 1, "batch_size": 4, "dev": pairs_of(20, 30)}
  pairs = pairs_of(0, 20)
  if objective in ("distillation", "soft_contrastive"):  # a teacher with another tokenizer
    options["teacher"] = released_folders.write(tmp_path / "teacher", "xlmr", {})
  if objective == "margin_mse":
    pairs = [{"query": x, "pos": [y], "neg": ["a"], "label": [2, 1]} for x, y in pairs]
  tuned = vmsst.finetune(source, pairs, tmp_path / "out", **options)
  assert tuned.encode("red").shape == (16,)
  assert tuned.digest == vmsst.load(tmp_path / "out").digest
  header, _, *rows = (tmp_path / "out" / "report.md").read_text().splitlines()[4:]
  place = header.split(" | ").index("loss/dev |")
  assert all(float(row.split(" | ")[place].strip(" |")) > 0 for row in rows)


@pytest.mark.parametrize("change", ["trimmed", "prompted"])
def test_an_encoder_in_memory_is_saved_and_resumes(tmp_path, change, monkeypatch):
  source = released_folders.write(tmp_path / "source", "xlmr", {})
  encoder = vmsst.load(source, backend="jax", max_length=7)
  encoder = encoder.trim(["red", "a"]) if change == "trimmed" else encoder.with_prompt("red ")
  starts = []

  def interrupt(*, model, checkpoint_cfg, model_dir, **_):
    assert model.max_length == 7
    starts.append(vmsst.load(checkpoint_cfg.restore.path).encode(["red"]))
    pathlib.Path(model_dir, "model-info.txt").touch()
    raise KeyboardInterrupt

  monkeypatch.setattr(train, "train", interrupt)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      vmsst.finetune(encoder, pairs_of(0, 9), output=tmp_path / "out")
  np.testing.assert_allclose(starts, [encoder.encode(["red"])] * 2, atol=1e-5)
  with pytest.raises(errors.InputError, match="to another job: encoder is"):
    vmsst.finetune(tmp_path / "source", pairs_of(0, 9), output=tmp_path / "out")


def test_several_sets_have_their_own_objectives_and_prompts(chained, tmp_path):
  pairs = pairs_of(0, 20)
  questions = [{"query": x, "pos": [y], "neg": ["a", "b"][: 1 + len(x) % 2]} for x, y in pairs]
  graded = [{"sentence1": x, "sentence2": y, "score": len(y) % 3} for x, y in pairs]
  taught = [{"anchor": x, "positive": y, "negative": "an apple", "label": [2, 1]} for x, y in pairs]
  prompts = {"prompts": ("question: ", "answer: ")}
  by_id = {str(number): pair for number, pair in enumerate(pairs)}
  answers = vmsst.RetrievalSet(
    {key: x for key, (x, _) in by_id.items()},
    {key: y for key, (_, y) in by_id.items()},
    {key: {key: 1} for key in by_id},
  )
  steps = 3
  tuned = vmsst.finetune(
    chained,
    {
      "questions": vmsst.TrainingSet(questions, weight=1, **prompts),
      "graded": vmsst.TrainingSet(graded, objective="similarity", weight=1),
      "taught": vmsst.TrainingSet(taught, objective="kl_divergence", weight=1),
    },
    tmp_path / "out",
    **OPTIONS
    | {
      "steps": steps,
      "eval_every": steps,
      "dev_metric": "ndcg@10/answers",
      "dev": {
        "graded": vmsst.TrainingSet(graded, objective="similarity"),
        "answers": vmsst.TrainingSet(answers, **prompts),
      },
    },
  )
  assert (tuned.prompts["query"], tuned.prompts["document"]) == ("question: ", "answer: ")
  losses = json.loads((tmp_path / "out" / "train" / "metrics.jsonl").read_text().splitlines()[1])
  assert {"contrastive/loss", "similarity/loss", "kl_divergence/loss"} <= losses.keys()
  path = tmp_path / "out" / "inference_eval" / "dev-metrics.jsonl"
  metrics = json.loads(path.read_text().splitlines()[-1])
  report = (tmp_path / "out" / "report.md").read_text()
  assert {"ndcg@10/answers", "spearman/graded", "loss/graded"} <= {*report.split()}
  assert metrics["score"] == metrics["ndcg@10/answers"]


_BFLOAT16 = """
import gzip, json, pathlib, sys
import vmsst
from vmsst.evaluation.metrics import retrieval

encoders, bitext, folder = map(pathlib.Path, sys.argv[1:])
with gzip.open(bitext, "rt", encoding="utf-8") as lines:
  pairs = [tuple(line.rstrip("\\n").split("\\t")) for line in lines]

def accuracy(encoder):
  texts = tuple(map(list, zip(*pairs[-1000:])))
  vectors = [encoder.encode(side) for side in texts]
  return 100 * retrieval.translation_accuracy(*vectors, texts=texts)["average"]

def accuracies(dtype):
  names = ("all-MiniLM-L6-v2", "multilingual-e5-small")
  scores = [accuracy(vmsst.load(encoders / name, backend="jax", dtype=dtype)) for name in names]
  tuned = vmsst.finetune(
    encoders / names[0], pairs[:2000], folder / dtype, steps=20, batch_size=32,
    learning_rate=1e-4, max_length=24, compute_dtype=dtype,
  )
  return [*scores, accuracy(tuned)]

print(json.dumps([accuracies(dtype) for dtype in ("float32", "bfloat16")]))
"""


@pytest.mark.slow
def test_bfloat16_changes_the_accuracy_of_released_encoders_by_at_most_three_tenths(
  released_encoders, data_root, tmp_path
):
  """Of 1,000 pairs: two encoders as they are, and one after fine-tuning."""
  bitext = data_root / "bitext_tatoeba" / "deu-eng.tsv.gz"
  command = [sys.executable, "-c", _BFLOAT16, released_encoders, bitext, tmp_path]
  done = commands.run(command, cwd=tmp_path, variables=commands.OPTIMIZED)
  exact, rounded = json.loads(done.stdout.splitlines()[-1])
  assert exact[2] > exact[0] + 5  # The training has an effect.
  assert rounded == pytest.approx(exact, abs=0.3)


def test_a_temperature_divides_the_scores_of_a_teacher_next_to_other_objectives(source):
  parts = starting_encoders.network(source), vmsst.load(source).vocabulary, None
  objectives = ("contrastive", "kl_divergence")
  model = finetuning.model(objectives, *parts, negatives=True, temperature=0.01)
  assert model.models["kl_divergence"].temperature == 0.01


@pytest.mark.slow
def test_a_run_with_a_vocabulary_of_its_own_continues_from_its_vectors(tmp_path):
  vocabulary = vocabularies.SentencePieceVocabulary(sample.vocabulary_path())
  config = tiny_encoders.t5_config(vocab_size=vocabulary.size)
  network = sentence_encoder.SentenceEncoder(config, 6)
  run = tiny_encoders.save_run(tmp_path / "run", tiny_encoders.model_of(network, vocabulary))
  options = {"steps": 1, "batch_size": 4, "learning_rate": 1e-9}
  tuned = vmsst.finetune(run, pairs_of(0, 9), output=tmp_path / "out", **options)
  np.testing.assert_allclose(
    tuned.encode(["red"]), vmsst.load(run, backend="jax").encode(["red"]), atol=1e-6
  )


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"objective": "distillation"}, "require a teacher"),
    (
      {"teacher": "x"},
      "'contrastive',. do not use a teacher; pass `teacher`",
    ),
    ({"objective": "ems", "negatives": 1}, "'ems' does not use hard negatives"),
    ({"objective": "similarity"}, "pairs: the objective 'similarity' needs a score column"),
    ({"pairs": [{"a": "b", "c": "d", "label": 0}]}, "'contrastive' ignores scores and labels"),
    ({"pairs": ["one text"]}, "no file matches '.*one text'"),
    ({"eval_every": 0}, "eval_every is 0; set it to an integer of 1 or more"),
    ({"learning_rate": float("nan")}, "learning_rate is nan; set it to a number in"),
    ({"batch_size": 4, "slices": 3}, "slices is 3; set it to a divisor of batch_size=4"),
    ({"patience": 2}, "patience needs pairs to evaluate on"),
    ({"dev_metric": "accuracy/dev"}, "dev_metric needs pairs to evaluate on"),
    ({"output": "gs://bucket/out"}, "fine-tuning output folder cannot be in an object store"),
    ({}, "out has files that this command did not write; give another folder"),
  ],
)
def test_what_cannot_be_used_is_named(source, tmp_path, options, message, monkeypatch):
  monkeypatch.chdir(tmp_path)
  given = {"encoder": source, "pairs": pairs_of(0, 9), "output": tmp_path / "out", **options}
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "report.md").write_text("of the user")
  with pytest.raises(errors.InputError, match=message):
    vmsst.finetune(given.pop("encoder"), given.pop("pairs"), **given)
  assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["of the user"]


def test_a_run_packs_texts_and_resumes_with_other_slices(source, tmp_path, monkeypatch, caplog):
  packed_slices = []
  pack = packing.pack

  def record(batch, slices):
    packed_slices.append(slices)
    return pack(batch, slices)

  monkeypatch.setattr(packing, "pack", record)
  last = []
  for name, starts in (("whole", [(4, 1)]), ("resumed", [(2, 1), (4, 2)])):
    for steps, slices in starts:
      options = {**OPTIONS, "dev": None, "steps": steps, "slices": slices}
      vmsst.finetune(str(source), pairs_of(0, 30), tmp_path / name, **options)
    metrics = (tmp_path / name / "train" / "metrics.jsonl").read_text().splitlines()
    last.append(json.loads(metrics[-1]))
  assert {*packed_slices} == {1, 2}
  assert "data iterator state" not in caplog.text
  assert [x["step"] for x in last] == [4, 4]
  assert last[0]["tokens_per_example"] == last[1]["tokens_per_example"]
