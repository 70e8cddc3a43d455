"""Malformed exports and sources of exports: read, or refused without a trace."""

import os

import export_readers
import model_readers
import pytest
import trials

from vmsst import errors
from vmsst.checkpoints.importers import bert, mt5, vmsst_release

pytest.importorskip("tokenizers", reason="needs tokenizers to make its files")

# Their files are made when the first test needs them, not while tests are collected.
_NAMES = (
  *(
    f"export {kind} of {source}"
    for source in ("a run", "an export", "an import")
    for kind in ("safetensors", "sentence-transformers")
  ),
  "import mt5 of a sentence-transformers export",
  "export onnx of an import",
  "import bert of a sentence-transformers export",
  "vmsst.load of a safetensors export",
  "vmsst.load of a sentence-transformers export",
)


def reader_of(name):
  if name.startswith("export onnx"):
    pytest.importorskip("onnx", reason="needs onnx to write models")
  return next(each for each in export_readers.readers() if each.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", _NAMES)
def test_malformed_files_are_read_or_refused(name, tmp_path):
  reader = reader_of(name)
  print(trials.run(reader, trials.cases(reader, 5), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", _NAMES)
def test_many_more_malformed_files_are_read_or_refused(name, tmp_path):
  reader = reader_of(name)
  print(trials.run(reader, trials.cases(reader, 300, seed=1), tmp_path))


def test_all_readers_are_tested():
  assert [reader.name for reader in export_readers.readers()] == list(_NAMES)


@pytest.mark.parametrize(
  ("name", "hostile"),
  [
    ("export safetensors of an import", "SHA256SUMS"),
    ("export safetensors of an import", "manifest.ocdbt"),
    ("vmsst.load of a safetensors export", "model.safetensors"),
  ],
)
def test_a_pipe_in_place_of_a_file_with_a_checksum_does_not_hang(name, hostile, tmp_path):
  reader = reader_of(name)
  lay_out(reader.files, tmp_path)
  path = next(path for path in sorted(tmp_path.rglob("*")) if path.name == hostile)
  path.unlink()
  os.mkfifo(path)
  assert trials.attempt(reader, tmp_path)[0] == "refused"


def lay_out(files, place):
  for name, content in files.items():
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content)


@pytest.mark.parametrize(
  ("read", "match"),
  [
    (bert.import_bert, r"'model_type' is 't5'"),
    (vmsst_release.import_vmsst, r"spiece\.model|projection"),
  ],
  ids=["import bert", "import vmsst"],
)
def test_a_sentence_transformers_export_of_t5_is_refused_in_one_line(read, match, tmp_path):
  lay_out(export_readers.t5_export(), tmp_path)
  with pytest.raises(errors.InputError, match=match) as found:
    read(tmp_path / "m", tmp_path / "out")
  assert "\n" not in str(found.value)
  assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", ["import bert", "import mt5", "import vmsst"])
def test_a_safetensors_export_is_refused_by_importers_in_one_line(name, tmp_path):
  run = {"bert": bert.import_bert, "mt5": mt5.import_mt5, "vmsst": vmsst_release.import_vmsst}
  spm = model_readers.sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  lay_out(model_readers.export_files(spm), tmp_path / "m")
  with pytest.raises(errors.InputError, match=r"encoder\.json|vmsst\.load") as found:
    run[name.split()[1]](tmp_path / "m", tmp_path / "out")
  print(found.value)
  assert "\n" not in str(found.value)
  assert [path.name for path in tmp_path.iterdir()] == ["m"]
