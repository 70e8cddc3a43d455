"""Kills and reruns the commands that write: results are as without kills."""

import re

import killed_commands
import line_files
import model_readers
import numpy as np
import opus_tree
import pytest
import tiny_encoders
import vector_folders

import vmsst
from vmsst.inference import loading
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks
from vmsst.vectors import file_embedding

_RANDOM = "/checkpoint_0/"  # their files have random names
_SECONDS = re.compile(rb'"(embedding|scoring)": [0-9.e-]+')


def check(whole, killed):
  """Asserts that all runs left the same files, and no others; contents may name their folders."""

  def files(folder):
    own = str(folder).encode()
    found = {
      path: _SECONDS.sub(b"", x.replace(own, b""))
      for path, x in killed_commands.contents(folder).items()
      if _RANDOM not in path
    }
    for checkpoint in folder.glob("out/*/checkpoint_0"):
      arrays = tiny_encoders.read_arrays(checkpoint)
      found |= {name: array.tobytes() for name, array in arrays.items()}
    return found

  expected = files(whole)
  assert killed
  print(f"{len(killed)} kills")
  for name, folder in killed.items():
    found = files(folder)
    assert sorted(found) == sorted(expected), name
    differing = [path for path in expected if found[path] != expected[path]]
    assert not differing, name


@pytest.fixture
def start(tmp_path):
  folder = tmp_path / "start"
  folder.mkdir()
  return folder


def write_texts(start, count):
  """Writes two texts, and vectors of which each is nearest to its translation's."""
  rng = np.random.default_rng(0)
  vectors_ND = rng.normal(size=(count, 8)).astype(np.float32)
  for side in ("source", "target"):
    line_files.write_lines(start / f"{side}.txt", [f"{side} {i}" for i in range(count)])
    near_ND = vectors_ND + 0.1 * rng.normal(size=vectors_ND.shape).astype(np.float32)
    settings = {"lines": count, "encoder": "x", "language": None}
    vector_folders.write(start / f"{side}.vectors", near_ND, settings=settings)


@pytest.mark.slow
def test_build(start):
  pytest.importorskip("tensorflow_datasets")

  def texts(language, count):
    return [(f"{language} number {n} is here", f"Sentence {n} is here.") for n in range(count)]

  parts = [
    opus_tree.Part("Europarl", "v8", ("de", "en"), texts("Satz", 400)),
    opus_tree.Part("Tanzil", "v1", ("en", "tr"), [row[::-1] for row in texts("cümle", 200)], "tmx"),
  ]
  opus_tree.write(start / "opus", parts)
  (start / "evaluation" / "tatoeba").mkdir(parents=True)
  for code in ("deu", "eng"):
    (start / "evaluation" / "tatoeba" / f"tatoeba.deu-eng.{code}").write_text(
      "Sentence 3 is here\n"
    )
  (start / "mine.yaml").write_text(opus_tree.RECIPE)
  argv = ["data", "build", "--recipe=mine.yaml", "--input=opus", "--held-out=evaluation"]
  argv += ["--output=tfds", "--workers=1"]
  imports = [
    "vmsst.tasks.opus.builder",
    "vmsst.evaluation.benchmarks",
    "vmsst.evaluation.evaluation_texts",
  ]
  check(*killed_commands.run(imports, argv, start.parent, moments=(20, [100, 2000, 9000])))


NETWORK = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
LOADING = ["vmsst.inference.loading", "orbax.checkpoint"]
# By command: its words, what it imports, and options of `killed_commands.run`.
COMMANDS = {
  "mine": (
    "mine source.txt target.txt out/pairs.tsv --vectors source.vectors target.vectors",
    ["vmsst.mining.bitext_mining", "vmsst.search.device_search", "vmsst.vectors.file_embedding"],
    {
      "settings": {"vmsst.search.sharded_search._LEAST_SOURCES": 64},
      "moments": (40, [1, 500, 5000, 9000]),
    },
  ),
  "index": (
    "index source.vectors out/index --factory IVF4,SQ8",
    ["vmsst.vectors.index_folder"],
    {
      "settings": {"vmsst.vectors.index_folder._SHARD_ROWS": 150},
      "moments": (20, [200, 3000]),
    },
  ),
  "embed": (
    "embed run source.txt out/vectors",
    ["vmsst.vectors.file_embedding", "vmsst.inference.encoder"],
    {
      "settings": {"vmsst.vectors.file_embedding._SHARD_LINES": 80},
      "moments": (8, [200, 1500]),
    },
  ),
  "score": ("score run a.txt b.txt --output out/scores", ["vmsst.mining.pair_scoring"]),
  "score by likelihood": (
    "score run a.txt b.txt --output out/scores --by likelihood --languages en de",
    ["vmsst.mining.pair_scoring"],
  ),
  "search": ("search b.txt a.txt a.vectors --output out/found", ["vmsst.mining.text_search"]),
  "translate": ("translate run --to de --input a.txt --output out/b.txt", []),
  "vocab train": (
    "vocab train --input a.txt --output out/x.model --size 21",
    ["vmsst.text.vocabulary_training"],
  ),
  "export safetensors": ("export safetensors run out/e", ["vmsst.exports.safetensors_folder"]),
  "export onnx": ("export onnx run out/e", ["vmsst.exports.onnx_folder"]),
  "import mt5": ("import mt5 m out/mt5", ["vmsst.checkpoints.importers.mt5"]),
  "export sentence-transformers": (
    "export sentence-transformers run out/e",
    ["vmsst.exports.sentence_transformers_folder"],
  ),
  "import bert": ("import bert m out/bert", ["vmsst.checkpoints.importers.bert"]),
  "import ems": (
    "import ems x.safetensors out/ems --vocabulary x.model",
    ["vmsst.checkpoints.importers.ems"],
  ),
  "import vmsst": ("import vmsst m out/vmsst", ["vmsst.checkpoints.importers.vmsst_release"]),
  "data embed": (
    "data embed run out t/x.de-en.tsv t/y.fr-en.tsv",
    ["vmsst.vectors.bitext_vectors"],
  ),
  "data mine-negatives": (
    "data mine-negatives run out t/x.de-en.tsv t/y.fr-en.tsv",
    ["vmsst.mining.hard_negative_mining"],
  ),
  "eval": (
    "eval --encoder run --data data --out out --suite tatoeba",
    ["vmsst.evaluation.benchmarks"],
  ),
  "report": ("report results --out out", ["vmsst.evaluation.report"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_resumed(name, start):
  if name == "export onnx":
    pytest.importorskip("onnx", reason="needs onnx to write models")
  words, imports, *options = COMMANDS[name]
  write_texts(start, 500)
  encoder = sentence_encoder.SentenceEncoder(NETWORK.config, NETWORK.latent_dim)
  tiny_encoders.save_run(start / "run", tiny_encoders.model_of(encoder, network=NETWORK))
  texts = [f"{a} {b}" for a in ("old", "new", "big") for b in ("house", "river", "road")]
  line_files.write_lines(start / "a.txt", texts)
  line_files.write_lines(start / "b.txt", [text[::-1] for text in texts])
  for bitext in ("x.de-en.tsv", "y.fr-en.tsv"):
    line_files.write_tsv(start / "t" / bitext, [(text[::-1], text) for text in texts])
  for code in ("deu", "eng"):
    (start / "data" / "tatoeba").mkdir(parents=True, exist_ok=True)
    line_files.write_lines(start / "data" / "tatoeba" / f"tatoeba.deu-eng.{code}", texts)
  models = {
    "import mt5": model_readers.mt5_files,
    "import ems": model_readers.ems_files,
    "import vmsst": model_readers.vmsst_files,
  }
  for path, content in models.get(name, model_readers.bert_files)().items():
    (start / path).parent.mkdir(parents=True, exist_ok=True)
    (start / path).write_bytes(content)
  loaded = loading.load(start / "run")
  file_embedding.embed_file(loaded, str(start / "a.txt"), start / "a.vectors", name="run")
  if name == "report":
    chosen = vmsst.get_benchmarks(["tatoeba"])
    vmsst.evaluate(loaded, chosen, start / "data", start / "results", name="run")
  settings = {"vmsst.mining.pair_scoring._WINDOW": 4} if name.startswith("score") else {}
  argv = words.split()
  known = {
    "moments": (7, [10]),
    "settings": settings,
    "atomic": argv[0] in ("import", "export"),
    **dict(*options),
  }
  check(*killed_commands.run(LOADING + imports, argv, start.parent, **known))
