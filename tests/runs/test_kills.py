"""Kills and reruns commands. The results are the same as without kills."""

import entry_points
import killed_commands
import line_files
import naive_search
import numpy as np
import opus_tree
import pytest
import tiny_encoders
from entry_points import COMMANDS

_RANDOM = "/checkpoint_0/"  # Orbax gives files random names.


def check(whole, killed):
  """Asserts that all runs have the same files, apart from the names of their folders."""

  def files(folder):
    own = str(folder).encode()
    found = {
      path: x.replace(own, b"")
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
  """Writes two texts with vectors, so that the nearest neighbor of a line is its translation."""
  rng = np.random.default_rng(0)
  vectors_ND = rng.normal(size=(count, 8)).astype(np.float32)
  for side in ("source", "target"):
    line_files.write_lines(start / f"{side}.txt", [f"{side} {i}" for i in range(count)])
    near_ND = vectors_ND + 0.1 * rng.normal(size=vectors_ND.shape).astype(np.float32)
    naive_search.write_vectors(
      start / f"{side}.vectors", near_ND, inputs={"encoder": {"name": "x"}}
    )


@pytest.mark.slow
def test_build(start):
  pytest.importorskip("tensorflow_datasets")

  def texts(language, count):
    return [(f"{language} number {n} is here", f"Sentence {n} is here.") for n in range(count)]

  parts = [
    opus_tree.Part("Europarl", "v8", ("de", "en"), texts("Satz", 400)),
    opus_tree.Part("Tanzil", "v1", ("en", "tr"), [row[::-1] for row in texts("cümle", 200)], "tmx"),
  ]
  argv = opus_tree.write_build(start, parts, *["Sentence 3 is here"] * 2)
  argv += ["--output=tfds", "--workers=1"]
  imports = [
    "vmsst.opus.builder",
    "vmsst.evaluation.benchmarks",
  ]
  check(*killed_commands.run(imports, argv, start.parent, moments=(20, [100, 2000, 9000])))


IMPORTS = [
  "orbax.checkpoint",
  "vmsst.data.training_sets",
  "vmsst.evaluation.benchmarks",
  "vmsst.evaluation.report",
  "vmsst.encoder.encoder",
  "vmsst.encoder.loading",
  "vmsst.mining.bitext_mining",
  "vmsst.mining.hard_negative_mining",
  "vmsst.mining.text_search",
  "vmsst.search.device_search",
  "vmsst.cli.vector_jobs",
  "vmsst.search.faiss_index",
]
# Commands with several tasks: arguments, a setting that makes tasks small, and moments of kills.
PARTS = {
  "mine": (
    "mine source.txt target.txt OUT --vectors source.vectors target.vectors",
    {"vmsst.search.exact_search._LEAST_SOURCES": 64},
    (40, [1, 500, 5000, 9000]),
  ),
  "index": (
    "index source.vectors OUT --factory IVF4,SQ8",
    {"vmsst.search.faiss_index.SHARD_ROWS": 150},
    (20, [200, 3000]),
  ),
  "embed": (
    "embed run source.txt OUT",
    {"vmsst.cli.vector_jobs._SPAN_LINES": 80},
    (8, [200, 1500]),
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_resumed(name, start):
  if name == "export onnx":
    pytest.importorskip("onnx", reason="needs onnx to write models")
  entry_points.write_inputs(start)
  write_texts(start, 500)
  windows = {f"vmsst.mining.{x}_mining._WINDOW": 4 for x in ("bitext", "hard_negative")}
  default = COMMANDS[name], windows, (7, [10])
  argv, settings, moments = PARTS.get(name, default)
  words = {"OUT": "out/made"} | ({} if name == "import encoder" else {"encoder": "run"})
  check(
    *killed_commands.run(
      IMPORTS,
      [words.get(word, word) for word in argv.split()],
      start.parent,
      moments=moments,
      settings=settings,
      atomic=name.startswith(("import", "export")),
    )
  )


@pytest.mark.slow
def test_finetune(start):
  pytest.importorskip("grain", reason="needs vmsst[train] to train")
  entry_points.write_inputs(start)
  argv = (
    "finetune run t/x.de-en.tsv out --steps=6 --eval-every=2 --batch-size=4 --dev t/y.fr-en.tsv"
  )
  imports = [*IMPORTS, "vmsst.finetuning", "vmsst.train.train"]
  whole, killed = killed_commands.run(
    imports, argv.split(), start.parent, moments=(10, []), share=0.9
  )
  expected = tiny_encoders.read_arrays(whole / "out" / "checkpoint_6")
  for name, folder in killed.items():
    found = tiny_encoders.read_arrays(folder / "out" / "checkpoint_6")
    assert found.keys() == expected.keys(), name
    for key, array in expected.items():
      np.testing.assert_array_equal(found[key], array, f"{name}: {key}")
