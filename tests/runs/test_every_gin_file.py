"""Trains with all run files, as `t5x train` does. test_gin_files.py only parses them."""

import concurrent.futures
import json
import re

import commands
import line_files
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst.data import sample, vocabularies

pytestmark = pytest.mark.slow
ROOT = vmsst.gin_dir()
RUN_FILES = sorted(
  path.relative_to(ROOT).as_posix()
  for pattern in ("*.gin", "ablations/*.gin", "ems/*.gin", "soft/*.gin")
  for path in ROOT.glob(pattern)
)
# These files start from a released encoder; see test_from_imports.py and test_finetuning.py.
FROM_IMPORTS = re.compile(r".*_mt5\.gin|ems_xlmr\.gin|soft/.*\.gin|finetune\.gin")
FILES = [file for file in RUN_FILES if not FROM_IMPORTS.fullmatch(file)]
# This file reads a dataset of `vmsst data build`; other files of paper size read text files here.
OF_OPUS = "soft_contrastive.gin"
STEPS, PERIOD = 20, 5

TINY = """
EMBED_DIM = 16
MAX_LENGTH = 8
VOCAB_SIZE = 3600
BATCH_SIZE = 8
STATS_PERIOD = 5
CHECKPOINT_PERIOD = None
utils.create_learning_rate_scheduler.factors = 'constant'
utils.create_learning_rate_scheduler.base_learning_rate = 0.05
train.train_eval_dataset_cfg = None
train.infer_eval_dataset_cfg = None
"""
TINY_T5 = """
t5.T5Config.num_encoder_layers = 1
t5.T5Config.num_heads = 2
t5.T5Config.head_dim = 8
t5.T5Config.mlp_dim = 16
t5.T5Config.remat = 'none'
"""
TINY_EMS = """
transformer.TransformerConfig.num_layers = 1
transformer.TransformerConfig.num_heads = 2
transformer.TransformerConfig.mlp_dim = 16
utils.create_learning_rate_scheduler.base_learning_rate = 0.01
"""
TINY_STUDENT = (
  TINY_EMS
  + """
transformer.TransformerConfig.max_positions = 10
DROPOUT_RATE = 0.0
LEARNING_RATE = 0.01
vocabularies.SentencePieceVocabulary.lowercase = False
"""
)
TINY_LASER = """
lstm.LstmConfig.num_layers = 1
lstm.LstmConfig.hidden_dim = 8
laser_network.LaserNetwork.target_emb_dim = 8
laser_network.LaserNetwork.decoder_dim = 16
laser_network.LaserNetwork.decoder_output_dim = 16
utils.create_learning_rate_scheduler.base_learning_rate = 0.01
"""
OF_ONE_FILE = {
  # The action of this file keeps the checkpoint with the best evaluation.
  "soft_contrastive.gin": [f"EVAL_PERIOD = {PERIOD}", f"CHECKPOINT_PERIOD = {PERIOD}"],
  "quickstart.gin": ["bitext.sample.num_meanings = 50"],
  # One compiled layer instead of twelve.
  "ablations/vmsst_24l_12_decoder_layers.gin": ["t5.T5Config.scan_layers = True"],
  "laser_transformer.gin": [
    *TINY_EMS.strip().splitlines(),
    "decoder/transformer.TransformerConfig.emb_dim = 56",  # 8 + 32 + 16
  ],
  "ems/t5_encoder.gin": TINY_T5.strip().splitlines(),
  "ems/lstm_encoder.gin": ["lstm.LstmConfig.num_layers = 1", "lstm.LstmConfig.hidden_dim = 8"],
}

# Trains with several files in one process.
_TRAIN = """
import json, pathlib, sys
import gin
import vmsst
from vmsst.cli import data
from vmsst.train import eval as eval_lib, gin_utils, infer as infer_lib
from vmsst.train import train as train_lib

plan = json.load(sys.stdin)
import opus_tree
pairs = {(code, "eng"): rows for code, rows in plan["opus"].items()}
dataset = opus_tree.write_dataset(plan["folder"], "soft_contrastive", pairs)
data.embed_bitext(plan["folder"], plan["vectors"], [f"{dataset}/*.tfrecord*"])
for function in (train_lib.train, eval_lib.evaluate, infer_lib.infer):
  globals()[function.__name__] = function
  gin.register(function, "__main__")

def parse(files, bindings, **options):
  gin.clear_config()
  gin_utils.parse_gin_flags([plan["root"]], files, bindings, **options)
  return {scope for scope, selector in gin.config._CONFIG if selector == "gin.macro"}

for file, own in plan["files"].items():
  files = [file]
  defined = parse(files, [], finalize_config=False)
  if "OPUS_CONFIG" in defined and file != plan["of_opus"]:
    files.append("data/files.gin")
    defined = parse(files, [], finalize_config=False)
  required = gin_utils.unset_macros()
  folder = pathlib.Path(plan["folder"], file.removesuffix(".gin"))
  macros = {**dict.fromkeys(required, plan["folder"]), **plan["macros"], "MODEL_DIR": str(folder)}
  if "TEACHER_VECTORS" in required:
    macros["TEACHER_VECTORS"] = plan["vectors"]
  bindings = [f"{name} = {value!r}" for name, value in macros.items() if name in defined]
  parse(files, [*plan["bindings"], *own, *bindings])
  gin.get_configurable(train)()
  lines = (folder / "train" / "metrics.jsonl").read_text().splitlines()
  metrics = [row for row in map(json.loads, lines) if "loss" in row]
  texts = ["x", "y z"]
  vectors = vmsst.load(folder, backend="jax").encode(texts, language="en", progress=False)
  print(json.dumps({"file": file, "metrics": metrics, "vectors": vectors.tolist()}))
"""


def bitext():
  """Returns rows with hard negatives of three language pairs, in the languages of Table 6."""
  rows = {}
  for code, name in {"es": "spa", "ar": "ara", "tr": "tur"}.items():
    rows[name] = []
    for i in range(40):
      english = [sample.sentence(j, "en") for j in (i, i + 1, i + 2, i + 3)]
      rows[name].append([sample.sentence(i, code), *english])
  return rows


def write_teacher(folder):
  """Writes a run with more steps than any run here: runs that start from it count from 0."""
  config = tiny_encoders.bert_config(vocab_size=3600, emb_dim=16, mlp_dim=16, max_positions=10)
  encoder = tiny_encoders.encoder(config, head=False)
  vocabulary = vocabularies.SentencePieceVocabulary(sample.vocabulary_path())
  model = tiny_encoders.model_of(encoder, vocabulary, max_length=8)
  tiny_encoders.save_run(folder, model, step=STEPS + 10)


def bindings_of(file):
  """Returns bindings that make the model of a file tiny."""
  tiny = TINY_STUDENT if "soft" in file else TINY_EMS if file.startswith("ems") else TINY_T5
  if file.startswith("laser"):
    tiny = TINY_LASER
  return [*tiny.strip().splitlines(), *OF_ONE_FILE.get(file, [])]


def train(folder, files):
  """Trains with all files; returns metrics, and vectors of two sentences from the checkpoints."""
  (folder / "bitext").mkdir()
  rows = bitext()
  for name, lines in rows.items():
    line_files.write_tsv(folder / "bitext" / f"{name}-eng.tsv", lines)
  write_teacher(folder / "runs")  # the value of required macros
  bindings = [
    f"vocabularies.SentencePieceVocabulary.path = {sample.vocabulary_path()!r}",
    f"utils.SaveCheckpointConfig.checkpoint_steps = [{STEPS}]",
  ]
  plan = {
    "root": str(ROOT),
    "folder": str(folder / "runs"),
    "vectors": str(folder / "vectors"),
    "of_opus": OF_OPUS,
    "opus": {name: [line[:2] for line in lines] for name, lines in rows.items()},
    "files": {file: bindings_of(file) for file in files},
    "bindings": [*TINY.strip().splitlines(), *bindings],
    "macros": {
      "TRAIN_STEPS": STEPS,
      "PATTERNS": [str(folder / "bitext" / "*.tsv")],
      "OPUS_DATA_DIR": str(folder / "runs"),
    },
  }
  done = commands.script(_TRAIN, cwd=folder, text=json.dumps(plan), timeout=2400)
  found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
  return {report["file"]: report for report in found}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
  """Trains with all files in two processes; returns the reports."""
  groups = FILES[::2], FILES[1::2]
  with concurrent.futures.ThreadPoolExecutor() as pool:  # Each thread waits for its own process.
    parts = [pool.submit(train, tmp_path_factory.mktemp("runs"), group) for group in groups]
    return {file: report for part in parts for file, report in part.result().items()}


@pytest.mark.parametrize("file", FILES)
def test_losses_fall_and_sentences_have_different_vectors(reports, file):
  report = reports[file]
  losses = [metrics["loss"] for metrics in report["metrics"]]
  assert len(losses) == STEPS / PERIOD
  assert losses[-1] < 0.98 * losses[0]
  for metrics in report["metrics"]:
    assert np.isfinite([value for name, value in metrics.items() if name != "step"]).all(), metrics
    if report["file"].startswith(("vmsst", "bitranslation")):
      assert 0 < metrics["nll/translation"] < 20
    if report["file"].startswith("vmsst"):  # the model gets the step; mean of five
      assert metrics["kl_weight"] == pytest.approx((metrics["step"] - (PERIOD + 1) / 2) / 1e6)
      assert metrics["kl/semantic"] > 0
    if report["file"].startswith("vmsst_contrastive"):
      assert "loss/contrastive" in metrics
  vectors_NS = np.array(report["vectors"])
  assert vectors_NS.shape == (2, 16)
  assert np.isfinite(vectors_NS).all()
  assert np.abs(vectors_NS[0] - vectors_NS[1]).max() > 0
