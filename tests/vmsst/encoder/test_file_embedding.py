import errno
import json

import line_files
import memory_store
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst import cli, errors, storage
from vmsst.data import derived_files, readers, tables, teacher_vectors
from vmsst.encoder import file_embedding
from vmsst.jobs import atomic_files
from vmsst.networks import sentence_encoder

PAIRS = [("eins", "one"), ("", "nothing"), ("zwei und drei", "two and three")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=5)
  folder = tmp_path_factory.mktemp("run")
  return tiny_encoders.save_run(folder, tiny_encoders.model_of(network), step=3)


def test_every_line_has_the_vectors_that_the_encoder_gives(run, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(file_embedding, "_WINDOW", 4)
  path = line_files.write_tsv(tmp_path / "data" / "x.de-en.tsv", PAIRS)
  line_files.write_lines(tmp_path / "data" / "y.de-en.jsonl", ['{"de": "eins", "en": "one"}'])
  out = str(tmp_path / "out")
  assert cli.main(["data", "embed", str(run), out, str(tmp_path / "data" / "*")]) == 0
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
  assert cli.main(["data", "embed", str(run), out, str(path), "--languages", "fr", "en"]) == 1
  assert 'languages is ["deu", "eng"], not ["fra", "eng"]' in capsys.readouterr().err
  # Training may name the languages otherwise, but needs the same texts.
  (undetermined,) = readers.find_bitext(str(path), ("und", "und"))
  tables.open_files("train", [undetermined], teacher=out)
  swapped = readers.find_bitext(str(tmp_path / "data" / "*.jsonl"), ("en", "de"))
  with pytest.raises(errors.InputError, match=r'languages is \["deu", "eng"\], not \["eng", "deu"'):
    tables.open_files("train", swapped, teacher=out)
  # A refresh ends when it has replaced the first file.
  described = []

  def write_once(path, content):
    described.append(path)
    if len(described) > 1:
      raise OSError(errno.ENOSPC, "No space left on device", path)
    atomic_files.write_text(path, json.dumps(content))

  again = ["data", "embed", str(run), out, str(tmp_path / "data" / "*"), "--refresh"]
  with monkeypatch.context() as patch:
    patch.setattr(derived_files.atomic_files, "write_json", write_once)
    assert cli.main(again) == 1
  with pytest.raises(errors.InputError, match="they are to be made again"):
    tables.open_files("train", [undetermined], teacher=out)
  assert cli.main(again[:-1]) == 0
  tables.open_files("train", [undetermined], teacher=out)
  line_files.write_tsv(path, PAIRS[::-1])
  with pytest.raises(errors.InputError, match=f"does not have the vectors of {path} .*embed"):
    tables.open_files("train", [undetermined], teacher=out)


@pytest.mark.parametrize("place", ["folder", "store"])
def test_training_refuses_vectors_that_have_changed(run, tmp_path, monkeypatch, place):
  memory_store.installed(monkeypatch)
  out = storage.path(tmp_path / "out" if place == "folder" else "gs://bucket/out")
  for name, rows in (("x", PAIRS), ("y", PAIRS[::-1])):
    line_files.write_tsv(tmp_path / "data" / f"{name}.de-en.tsv", rows)
  files = readers.find_bitext(str(tmp_path / "data" / "*"))
  assert cli.main(["data", "embed", str(run), str(out), str(tmp_path / "data" / "*")]) == 0
  first, second = (out / teacher_vectors.relative_path(file) for file in files)
  content, other = first.read_bytes(), second.read_bytes()
  for changed in (other, content[:-1] + bytes([content[-1] ^ 1]), content):
    storage.cached_copy.cache_clear()
    first.write_bytes(changed)
    if changed == content:
      tables.open_files("train", files, teacher=str(out))
      continue
    with pytest.raises(errors.InputError, match=rf"{first}: .*has changed since .*recompute"):
      tables.open_files("train", files, teacher=str(out))


def test_vectors_in_a_store_are_those_on_disk_and_copied_once(run, tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  path = line_files.write_tsv(tmp_path / "data" / "x.de-en.tsv", PAIRS)
  (file,) = readers.find_bitext(str(path))
  for out in (str(tmp_path / "out"), "gs://bucket/out"):
    assert cli.main(["data", "embed", str(run), out, str(path)]) == 0
  url = teacher_vectors.vectors_path("gs://bucket/out", file)
  assert store.cat_file(url) == (tmp_path / "out" / "data" / "x.de-en.tsv.npy").read_bytes()
  found, expected = (
    teacher_vectors.open_vectors(folder, file)
    for folder in ("gs://bucket/out", str(tmp_path / "out"))
  )
  np.testing.assert_array_equal(found, expected)
  teacher_vectors.check_count("gs://bucket/out", file, 3)
  assert found.filename == teacher_vectors.open_vectors("gs://bucket/out", file).filename
  # A finished file is not written again, and its settings are compared.
  monkeypatch.setattr(memory_store.MemoryStore, "put_file", None)
  assert cli.main(["data", "embed", str(run), "gs://bucket/out", str(path)]) == 0
  store.rm(url)
  with pytest.raises(errors.InputError, match=f"{url}: no such file"):
    teacher_vectors.open_vectors("gs://bucket/out", file)
