"""Commands on a Ray cluster, parts of which are killed: results are those of an undisturbed run."""

import subprocess
import sys

import embed_lines
import killed_commands
import line_files
import opus_tree
import pytest
import ray_clusters


@pytest.fixture(scope="module")
def nodes():
  pytest.importorskip("ray")
  with ray_clusters.cluster() as found:
    yield found


def command(nodes, argv, folder, engine):
  return nodes.driver(
    [sys.executable, "-m", "vmsst.cli", *argv, *engine],
    cwd=folder,
    stdout=subprocess.DEVNULL,
  )


def check(nodes, argv, whole, disturbed, fault, done):
  """Runs a command locally, and on the cluster, where a part is killed; compares all files."""
  local = command(nodes, argv, whole, ["--engine=local", "--workers=1"])
  assert local.wait() == 0
  ray = ["--engine=ray", f"--ray-address={nodes.address}"]
  process = command(nodes, argv, disturbed, ray)
  ray_clusters.wait_for_files(disturbed, done, 2)
  if fault == "driver":
    process.kill()
    assert process.wait() < 0
    process = command(nodes, argv, disturbed, ray)
  elif fault == "node":
    nodes.kill_node()
  else:
    nodes.kill_worker()
  assert process.wait(timeout=600) == 0
  expected, found = (
    {
      path: content.replace(str(folder).encode(), b"")
      for path, content in killed_commands.contents(folder / "out").items()
    }
    for folder in (whole, disturbed)
  )
  assert sorted(found) == sorted(expected)
  assert [path for path in expected if found[path] != expected[path]] == []


FAULTS = pytest.mark.parametrize("fault", ["worker", "driver", "node"])


@pytest.mark.slow
@FAULTS
def test_build(nodes, tmp_path, fault):
  pytest.importorskip("tensorflow_datasets")
  parts = [
    opus_tree.Part(
      corpus,
      "v1",
      ("de", "en"),
      [(f"{corpus} Satz Nummer {n} ist hier", f"Sentence {n} is here.") for n in range(15_000)],
    )
    for corpus in ("Europarl", "Tanzil", "Books", "QED", "Wikipedia", "EMEA", "ECB", "KDE4")
  ]
  for folder in ("whole", "disturbed"):
    opus_tree.write(tmp_path / folder / "opus", parts)
    sets = tmp_path / folder / "evaluation" / "tatoeba"
    sets.mkdir(parents=True)
    for code in ("deu", "eng"):
      (sets / f"tatoeba.deu-eng.{code}").write_text("Sentence 3 is here\n")
    (tmp_path / folder / "mine.yaml").write_text(opus_tree.RECIPE)
  argv = ["data", "build", "--recipe=mine.yaml", "--input=opus", "--held-out=evaluation"]
  argv += ["--output=out"]
  check(nodes, argv, tmp_path / "whole", tmp_path / "disturbed", fault, "clean/*.json")


@pytest.mark.slow
@FAULTS
def test_embed(nodes, tmp_path, fault):
  for folder in ("whole", "disturbed"):
    (tmp_path / folder).mkdir()
    embed_lines.make_encoder(tmp_path / folder / "encoder")
    for name in ("a.txt.gz", "b.txt"):
      line_files.write_lines(tmp_path / folder / name, embed_lines.make_lines(45_000))
  argv = ["embed", "encoder", "a.txt.gz", "b.txt", "out/vectors"]
  check(nodes, argv, tmp_path / "whole", tmp_path / "disturbed", fault, "vectors-*.npy.json")
