"""Readers that export, or import exports again; their files are small and need no torch."""

import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import model_readers
from trials import Reader

import vmsst
from vmsst.checkpoints.importers import bert, mt5
from vmsst.exports import onnx_folder, safetensors_folder, sentence_transformers_folder

_CODE = (".gin", ".py", ".pkl")
Write = Callable[[pathlib.Path, pathlib.Path], Any]


def _writes(write: Write) -> Callable[[pathlib.Path], None]:
  """Returns what writes `out/made` from a folder `m` and removes it again."""

  def read(folder: pathlib.Path) -> None:
    write(folder / "m", folder / "out" / "made")
    assert [path.name for path in (folder / "out").iterdir()] == ["made"]
    shutil.rmtree(folder / "out")

  return read


def _made(write: Write, files: Mapping[str, bytes]) -> dict[str, bytes]:
  """Returns the files that `write` makes of a folder, below `m`."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for path, content in files.items():
      (folder / "in" / path).parent.mkdir(parents=True, exist_ok=True)
      (folder / "in" / path).write_bytes(content)
    write(folder / "in" / "m", folder / "m")
    return {
      str(path.relative_to(folder)): path.read_bytes()
      for path in sorted((folder / "m").rglob("*"))
      if path.is_file()
    }


def _reader(name: str, files: Mapping[str, bytes], write: Write) -> Reader:
  hostile = tuple(path for path in files if not path.endswith(_CODE))
  json = tuple(path for path in hostile if path.endswith((".json", "_METADATA")))
  return Reader(name, files, _writes(write), hostile=hostile, json=json, writes=True)


def _load(folder: pathlib.Path) -> None:
  encoder = vmsst.load(folder / "m")
  assert encoder.encode(["hello world"]).shape == (1, 6)


@functools.cache
def readers() -> list[Reader]:
  """Exports of runs, exports and imports, and imports of exports."""
  spm = model_readers.sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  export = {f"m/{name}": content for name, content in model_readers.export_files(spm).items()}
  run = {f"m/{name}": content for name, content in model_readers.run_files().items()}
  imported = _made(bert.import_bert, model_readers.bert_files())
  to_safetensors = safetensors_folder.export_safetensors
  to_sentence_transformers = sentence_transformers_folder.export_sentence_transformers
  found = []
  for source, files in (("a run", run), ("an export", export), ("an import", imported)):
    found += [
      _reader(f"export safetensors of {source}", files, to_safetensors),
      _reader(f"export sentence-transformers of {source}", files, to_sentence_transformers),
    ]
  plain = _made(to_safetensors, export)
  theirs = _made(to_sentence_transformers, imported)
  found += [
    _reader("import mt5 of a sentence-transformers export", t5_export(), mt5.import_mt5),
    _reader("export onnx of an import", imported, onnx_folder.export_onnx),
    _reader("import bert of a sentence-transformers export", theirs, bert.import_bert),
    Reader("vmsst.load of a safetensors export", plain, _load, json=("m/encoder.json",)),
    Reader(
      "vmsst.load of a sentence-transformers export",
      t5_export(),
      _load,
      json=("m/config.json", "m/encoder.json", "m/modules.json"),
    ),
  ]
  return found


def t5_export() -> dict[str, bytes]:
  """Returns a sentence-transformers export of a T5 encoder, below `m`."""
  run = {f"m/{name}": content for name, content in model_readers.run_files().items()}
  return _made(sentence_transformers_folder.export_sentence_transformers, run)
