import json

import line_files
import memory_store
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst import cli, errors
from vmsst.data import readers, teacher_vectors
from vmsst.encoder import bitext_vectors
from vmsst.networks import sentence_encoder

PAIRS = [("eins", "one"), ("", "nothing"), ("zwei und drei", "two and three")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=5)
  folder = tmp_path_factory.mktemp("run")
  return tiny_encoders.save_run(folder, tiny_encoders.model_of(network), step=3)


def test_every_line_has_the_vectors_that_the_encoder_gives(run, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(bitext_vectors, "_WINDOW", 4)
  path = line_files.write_tsv(tmp_path / "data" / "x.de-en.tsv", PAIRS)
  out = str(tmp_path / "out")
  assert cli.main(["data", "embed", str(run), out, str(path)]) == 0
  assert "x.de-en.tsv.npy: 3 pairs of vectors of dimension 5" in capsys.readouterr().out
  (file,) = readers.find_bitext(str(path))
  found = teacher_vectors.open_vectors(out, file)
  assert isinstance(found, np.memmap)
  encoder = vmsst.load(run)
  for side in (0, 1):
    expected = encoder.encode([pair[side] for pair in PAIRS])
    np.testing.assert_allclose(found[:, side], expected, atol=2e-6)
  description = json.loads((tmp_path / "out" / "description.json").read_text())
  assert description["encoder"]["name"] == str(run / "checkpoint_3")
  assert description["files"]["data/x.de-en.tsv.npy"]["lines"] == 3


def test_vectors_in_a_store_are_those_on_disk_and_copied_once(run, tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  path = line_files.write_tsv(tmp_path / "data" / "x.de-en.tsv", PAIRS)
  (file,) = readers.find_bitext(str(path))
  for out in (str(tmp_path / "out"), "gs://bucket/out"):
    assert cli.main(["data", "embed", str(run), out, str(path)]) == 0
  url = teacher_vectors.path_of("gs://bucket/out", file)
  assert store.cat_file(url) == (tmp_path / "out" / "data" / "x.de-en.tsv.npy").read_bytes()
  found, expected = (
    teacher_vectors.open_vectors(folder, file)
    for folder in ("gs://bucket/out", str(tmp_path / "out"))
  )
  np.testing.assert_array_equal(found, expected)
  teacher_vectors.check_count("gs://bucket/out", file, 3)
  local = teacher_vectors.local_path("gs://bucket/out", file)
  assert local == teacher_vectors.local_path("gs://bucket/out", file)
  # A finished file is not written again, and its settings are compared.
  monkeypatch.setattr(memory_store.MemoryStore, "put_file", None)
  assert cli.main(["data", "embed", str(run), "gs://bucket/out", str(path)]) == 0
  store.rm(url)
  with pytest.raises(errors.InputError, match=f"{url}: no such file"):
    teacher_vectors.local_path("gs://bucket/out", file)
