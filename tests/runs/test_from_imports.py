"""Trains from an imported mT5 or mE5, as `t5x train` does. The runs take minutes."""

import json
import math

import commands
import numpy as np
import opus_tree
import pytest
import released_folders
import tiny_encoders
import tiny_tokenizers

import vmsst
from vmsst import cli
from vmsst.data import sample
from vmsst.formats import mt5, tokenizers

pytestmark = pytest.mark.slow

ROOT = vmsst.gin_dir()
FILES = sorted(path.name for path in ROOT.glob("*_mt5.gin"))
STEPS = 20

# All runs share one process, because imports take longer than training.
_TRAIN = """
import json, sys
import gin, jax
import vmsst
from vmsst.train import gin_utils
from vmsst.train.train import train

plan = json.load(sys.stdin)
jax.config.update("jax_compilation_cache_dir", plan["cache"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

def infer(model, **others):
  assert model.optimizer_def is None

def parse(files, bindings):
  gin.clear_config()
  gin_utils.parse_gin_flags([str(vmsst.gin_dir())], files, bindings)

gin.register(train, "__main__")
gin.register(infer, "__main__")
for files, bindings in plan["runs"]:
  parse(files, [*plan["bindings"], *bindings])
  gin.get_configurable(train)()
  if files[0].startswith("soft"):
    # Inference does not read the training data, which tell the number of steps.
    folder = gin.query_parameter("MODEL_DIR/gin.macro.value")
    elsewhere = ["OPUS_DATA_DIR = '/missing'", "EVAL_TASK = 'x'", "CHECKPOINT_PATH = '/x'"]
    parse([f"{folder}/config.gin", "runs/infer.gin"], elsewhere)
    gin.get_configurable(infer)()
"""


MT5_SIZES = {
  "vocab_size": 3600, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16,
  "num_encoder_layers": 2, "num_decoder_layers": 2, "relpos_buckets": 32,
}  # fmt: skip
TINY = """
EMBED_DIM = 16
MAX_LENGTH = 8
VOCAB_SIZE = 3600
BATCH_SIZE = 8
STATS_PERIOD = 1
t5.T5Config.num_encoder_layers = 2
t5.T5Config.num_heads = 2
t5.T5Config.head_dim = 8
t5.T5Config.mlp_dim = 16
utils.create_learning_rate_scheduler.factors = 'constant'
utils.create_learning_rate_scheduler.base_learning_rate = 0.05
train.train_eval_dataset_cfg = None
"""


def save_pairs(folder):
  """Writes pairs of the sample corpus to `folder`/spa-eng.tsv; returns its path."""
  path = folder / "spa-eng.tsv"
  rows = [f"{sample.sentence(i, 'es')}\t{sample.sentence(i, 'en')}\n" for i in range(40)]
  path.write_text("".join(rows), encoding="utf-8")
  return path


def train(start, files, *more):
  """Trains with files and their bindings, and with `more` files; returns the runs' folders."""
  folder, bindings = start
  runs = {file: folder / "runs" / file.removesuffix(".gin") for file in files}
  given = [
    ([file, *more], [*own, f"MODEL_DIR = {str(runs[file])!r}"]) for file, own in files.items()
  ]
  plan = {"cache": str(folder / "cache"), "bindings": bindings, "runs": given}
  commands.script(_TRAIN, cwd=folder, text=json.dumps(plan))
  return runs


def losses_of(run):
  lines = (run / "train" / "metrics.jsonl").read_text().splitlines()
  return [row for row in map(json.loads, lines) if "loss" in row]


@pytest.fixture(scope="module")
def mt5_runs(tmp_path_factory):
  """Trains with all files; returns the parameters of the import, and the folders of the runs."""
  folder = tmp_path_factory.mktemp("from_mt5")
  weights = released_folders.weights(mt5.rows(MT5_SIZES), 0.2)
  released_folders.save_weights(folder / "hf", released_folders.mt5_config(MT5_SIZES), weights)
  imported = released_folders.import_encoder(folder / "hf", folder / "import")
  bindings = [
    *TINY.strip().splitlines(),
    f"VOCABULARY_PATH = {sample.vocabulary_path()!r}",
    f"PATTERNS = [{str(save_pairs(folder))!r}]",
    f"INITIAL_CHECKPOINT_PATH = {str(imported.checkpoint)!r}",
    f"TRAIN_STEPS = {STEPS}",
    f"CHECKPOINT_PERIOD = {STEPS}",
  ]
  runs = train((folder, bindings), dict.fromkeys(FILES, ()), "data/files.gin")
  return tiny_encoders.read_arrays(imported.checkpoint), runs


@pytest.mark.parametrize("file", FILES)
def test_every_model_starts_from_the_same_import_and_learns(mt5_runs, file):
  imported, runs = mt5_runs
  start = tiny_encoders.read_arrays(runs[file] / "checkpoint_0")
  shared = set(imported) & set(start)
  expected = {"token_embedder/embedding"}
  expected |= {name for name in imported if name.startswith("encoder/")}
  if not file.startswith("contrastive"):
    expected |= {name for name in imported if name.startswith(("decoder/", "logits"))}
  if file.startswith("vmsst"):
    expected = set(imported)
  assert shared == expected
  for name in shared:
    np.testing.assert_array_equal(start[name], imported[name], err_msg=name)
  found = [row["loss"] for row in losses_of(runs[file])]
  assert len(found) == STEPS
  assert np.mean(found[-4:]) < 0.95 * np.mean(found[:4])


# --------------------------------------------------------------------------------------------
# The files of the soft contrastive paper, from a tiny folder like mE5's

CODES = ("es", "fr")
ROWS, VALIDATION, BATCH = 40, 12, 8
PAIRS = len(CODES) * (ROWS - VALIDATION)  # of training

TINY_SOFT = """
MAX_LENGTH = 32
BATCH_SIZE = 8
EVAL_BATCH_SIZE = 8
STATS_PERIOD = 1
DROPOUT_RATE = 0.0
train.train_eval_dataset_cfg = None
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
  """Writes an import of a tiny mE5 and a dataset; returns the folder and bindings."""
  folder = tmp_path_factory.mktemp("soft")
  texts = [sample.sentence(i, code) for code in (*CODES, "en") for i in range(ROWS)]
  tokenizers = tiny_tokenizers.save(folder, texts)
  sizes = released_folders.save_me5(folder / "multilingual-e5-tiny", tokenizers["xlmr"])
  imported = released_folders.import_encoder(folder / "multilingual-e5-tiny", folder / "me5")
  assert vmsst.load(imported.checkpoint).vocabulary.prefix == "query: "
  pairs = {
    (code, "en"): [
      (sample.sentence(i, code), sample.sentence(i, "en"), "Tatoeba") for i in range(ROWS)
    ]
    for code in CODES
  }
  dataset = opus_tree.write_dataset(folder, "soft_contrastive", pairs, validation=VALIDATION)
  paths = [str(folder / "me5"), str(folder / "vectors"), f"{dataset}/*.tfrecord*"]
  assert cli.main(["data", "embed", *paths]) == 0
  macros = {"vocab_size": "VOCAB_SIZE", "emb_dim": "EMBED_DIM"}
  bindings = [
    *TINY_SOFT.strip().splitlines(),
    *(
      f"{macros.get(k, f'transformer.TransformerConfig.{k}')} = {value!r}"
      for k, value in sizes.items()
    ),
    f"OPUS_DATA_DIR = {str(folder)!r}",
    f"INITIAL_CHECKPOINT_PATH = {str(imported.checkpoint)!r}",
  ]
  return folder, bindings


@pytest.fixture(scope="module")
def soft_runs(start):
  folder, _ = start
  return train(
    start,
    {
      "soft/me5.gin": [
        f"TEACHER_VECTORS = {str(folder / 'vectors')!r}",
        "LEARNING_RATE = 0.01",
        "EPOCHS = 3",
        "train.infer_eval_dataset_cfg = None",
        "KEEP_CHECKPOINTS = None",
      ],
    },
  )


def test_me5_can_be_its_own_teacher(start, soft_runs):
  folder, _ = start
  run = soft_runs["soft/me5.gin"]
  rows = losses_of(run)
  assert len(rows) == math.ceil(3 * PAIRS / BATCH)
  # The student starts close to its teacher, but with another prefix. So L_mono is a little above
  # its lower bound, the entropy of both directions.
  excess = [row["loss/mono"] - 2 * row["label/entropy"] for row in rows]
  assert 0 < min(excess) < max(excess) < 0.5
  found, expected = (
    tiny_encoders.read_arrays(path / "checkpoint_0") for path in (run, folder / "me5")
  )
  assert set(found) == set(expected)
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array, err_msg=name)
  # The student inherits pooling and normalization. Only the teacher has a prefix.
  encoder = vmsst.load(run)
  vector_NS = encoder.encode(["Hello", "a b c"], progress=False)
  np.testing.assert_allclose(np.linalg.norm(vector_NS, axis=1), 1, rtol=1e-5)
  assert encoder.vocabulary == tokenizers.HuggingFaceVocabulary(encoder.vocabulary.path, "")
