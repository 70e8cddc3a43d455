"""Malformed exports and sources of exports: read, or refused without a trace."""

import export_readers
import model_readers
import pytest
import trials

import vmsst
from vmsst import errors
from vmsst.checkpoints.importers import bert, mt5, vmsst_release

pytest.importorskip("tokenizers", reason="needs tokenizers to make its files")

_READERS = {reader.name: reader for reader in export_readers.readers()}
_SLOW = {"export stablehlo of an export": 40}


@pytest.mark.parametrize("name", _READERS)
def test_malformed_files_are_read_or_refused(name, tmp_path):
  reader = _READERS[name]
  print(trials.run(reader, trials.cases(reader, 3 if name in _SLOW else 8), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", _READERS)
def test_many_more_malformed_files_are_read_or_refused(name, tmp_path):
  reader = _READERS[name]
  print(trials.run(reader, trials.cases(reader, _SLOW.get(name, 300), seed=1), tmp_path))


def lay_out(files, place):
  for name, content in files.items():
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content)


@pytest.mark.parametrize(
  ("read", "match"),
  [
    (bert.import_bert, r"'model_type' is 't5'"),
    (vmsst_release.import_vmsst, r"spiece\.model|projection"),
    (lambda folder, out: vmsst.load(folder), r"sentence-transformers|import"),
  ],
  ids=["import bert", "import vmsst", "load"],
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
