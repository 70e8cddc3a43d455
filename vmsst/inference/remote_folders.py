"""Copies the required files of encoders in object stores to this machine."""

import contextlib
import dataclasses
import pathlib
import re
import tempfile
from collections.abc import Iterator

from vmsst import errors
from vmsst.checkpoints import (
  encoder_json,
  hugging_face,
  object_stores,
  sentence_transformers_files,
)
from vmsst.files import checksums, storage
from vmsst.text.hugging_face_vocabulary import TOKENIZER_FILE

_ASSETS = (encoder_json.ENCODER_FILE, encoder_json.VOCABULARY_FILE, TOKENIZER_FILE)
# Further files of exports for sentence-transformers.
_MODULES = (hugging_face.CONFIG_FILE, sentence_transformers_files.MODULES_FILE)
_DENSE = re.compile(r"\d+_Dense")
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs"}


@dataclasses.dataclass(frozen=True)
class Copy:
  """The local copy of an encoder.

  Attributes:
    name: Path of the parameters in the store.
    folder: The local folder, which `vmsst.load` opens. It lasts as long as the process.
  """

  name: str
  folder: pathlib.Path


@contextlib.contextmanager
def copied(url: str) -> Iterator[Copy]:
  """Yields a copy of a remote encoder's parameters, `encoder.json` and vocabulary.

  Args:
    url: An export, a checkpoint or a run.

  Raises:
    InputError: there is no encoder, the store cannot be read, or its package is not installed.
  """
  url = url.rstrip("/")
  target = pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder()))
  with storage.explained(url, "read"):
    name = _copy(url, target)
  is_export = (target / hugging_face.WEIGHTS_FILE).exists()
  with storage.naming(str(target), name if is_export else name.rpartition("/")[0]):
    yield Copy(name, target)


def _copy(url: str, target: pathlib.Path) -> str:
  """Copies an encoder into a folder; returns the path of its parameters in the store."""
  names = storage.names(url)
  storage.check_finished(url, names)
  if {hugging_face.WEIGHTS_FILE, encoder_json.ENCODER_FILE} <= names:
    dense = {name for name in names if _DENSE.fullmatch(name)}
    _copy_files(url, names & {hugging_face.WEIGHTS_FILE, *_ASSETS, *_MODULES} | dense, target)
    return url
  checkpoint, around = _checkpoint(url, names)
  inside = storage.names(checkpoint)
  local = target / checkpoint.rsplit("/", 1)[-1]
  local.mkdir()
  parent = url if around else url.rsplit("/", 1)[0]
  own = encoder_json.ENCODER_FILE in inside
  there = inside if own else around or storage.names(parent)
  storage.check_finished(parent, there)
  _copy_files(checkpoint if own else parent, there & set(_ASSETS), local if own else target)
  _copy_files(checkpoint, inside & {checksums.NAME, "state"}, local)
  return checkpoint


def _checkpoint(url: str, names: set[str]) -> tuple[str, set[str]]:
  """Returns the checkpoint to load, and the names next to it if they are known."""
  if _CHECKPOINT.fullmatch(url.rsplit("/", 1)[-1]) and "state" in names:
    return url, set()
  steps = {int(found[1]): found[0] for found in map(_CHECKPOINT.fullmatch, names) if found}
  for _, name in sorted(steps.items(), reverse=True):
    if object_stores.is_complete_among(storage.names(f"{url}/{name}")):
      return f"{url}/{name}", names
  if not names:
    raise errors.InputError(f"{url} does not exist; check the address")
  listing = ", ".join(sorted(names)[:20])
  raise errors.InputError(
    f"{url} holds {listing}: neither checkpoint_<step> folders nor {hugging_face.WEIGHTS_FILE} "
    f"with {encoder_json.ENCODER_FILE}"
  )


def _copy_files(url: str, names: set[str], target: pathlib.Path) -> None:
  for name in names:
    storage.download(f"{url}/{name}", target / name)
