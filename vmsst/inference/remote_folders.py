"""Copies the required files of encoders in object stores to this machine.

fsspec reads the store, with a package for it (gcsfs, s3fs). If gcsfs is missing and TensorFlow is
installed, etils reads `gs://` with TensorFlow.
"""

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, Protocol

from etils import epath

from vmsst import errors
from vmsst.checkpoints import encoder_json, hugging_face
from vmsst.files import checksums
from vmsst.text.hugging_face_vocabulary import TOKENIZER_FILE

_ASSETS = (encoder_json.ENCODER_FILE, encoder_json.VOCABULARY_FILE, TOKENIZER_FILE)
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
  target = pathlib.Path(tempfile.mkdtemp(dir=_process_folder()))
  try:
    name = _copy(_store(url), url, target)
  except errors.InputError:
    raise
  except Exception as error:  # each store raises its own types
    raise errors.InputError(f"{url} cannot be read: {type(error).__name__}: {error}") from error
  yield Copy(name, target)


class _Store(Protocol):
  """An object store."""

  def names(self, url: str) -> set[str]:
    """Returns the names in a folder; none if it does not exist."""

  def copy(self, url: str, target: pathlib.Path) -> None:
    """Copies a file, or a folder with its content."""


class _Fsspec:
  """A store that fsspec reads."""

  def __init__(self, system: Any):
    self._system = system

  def names(self, url: str) -> set[str]:
    self._system.invalidate_cache()
    try:
      entries = self._system.ls(self._system._strip_protocol(url), detail=False)
    except FileNotFoundError:
      return set()
    return {entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries}

  def copy(self, url: str, target: pathlib.Path) -> None:
    self._system.get(url, os.fspath(target), recursive=True)


class _Epath:
  """A store that etils reads with TensorFlow."""

  def names(self, url: str) -> set[str]:
    folder = epath.Path(url)
    return {child.name for child in folder.iterdir()} if folder.is_dir() else set()

  def copy(self, url: str, target: pathlib.Path) -> None:
    source = epath.Path(url)
    if not source.is_dir():
      target.write_bytes(source.read_bytes())
      return
    target.mkdir()
    for child in source.iterdir():
      self.copy(os.fspath(child), target / child.name)


def _store(url: str) -> _Store:
  import fsspec

  scheme = url.split("://")[0]
  try:
    return _Fsspec(fsspec.filesystem(scheme))
  except ImportError:
    if scheme == "gs" and importlib.util.find_spec("tensorflow"):
      return _Epath()
    package = _PACKAGES.get(scheme)
    how = f"pip install {package}" if package else "see fsspec's documentation for its package"
    raise errors.InputError(
      f"{url}: no package that reads {scheme}:// is installed; {how}"
    ) from None
  except ValueError as error:  # an unknown scheme
    raise errors.InputError(f"{url}: {error}") from None


def _copy(store: _Store, url: str, target: pathlib.Path) -> str:
  """Copies an encoder into a folder; returns the path of its parameters in the store."""
  names = store.names(url)
  if {hugging_face.WEIGHTS_FILE, encoder_json.ENCODER_FILE} <= names:
    _copy_files(store, url, names & {hugging_face.WEIGHTS_FILE, *_ASSETS}, target)
    return url
  checkpoint, around = _checkpoint(store, url, names)
  inside = store.names(checkpoint)
  local = target / checkpoint.rsplit("/", 1)[-1]
  local.mkdir()
  parent = url if around else url.rsplit("/", 1)[0]
  own = encoder_json.ENCODER_FILE in inside
  there = inside if own else around or store.names(parent)
  _copy_files(store, checkpoint if own else parent, there & set(_ASSETS), local if own else target)
  _copy_files(store, checkpoint, inside & {checksums.NAME, "state"}, local)
  return checkpoint


def _checkpoint(store: _Store, url: str, names: set[str]) -> tuple[str, set[str]]:
  """Returns the checkpoint to load, and the names next to it if they are known."""
  if _CHECKPOINT.fullmatch(url.rsplit("/", 1)[-1]) and "state" in names:
    return url, set()
  steps = {int(found[1]): found[0] for found in map(_CHECKPOINT.fullmatch, names) if found}
  for _, name in sorted(steps.items(), reverse=True):
    if "state" in store.names(f"{url}/{name}"):
      return f"{url}/{name}", names
  if not names:  # TensorFlow does not report a store that it cannot reach
    raise errors.InputError(
      f"{url} does not exist, or its store cannot be reached from here; check the address, the "
      "network and your credentials"
    )
  listing = ", ".join(sorted(names)[:20])
  raise errors.InputError(
    f"{url} holds {listing}: neither checkpoint_<step> folders nor {hugging_face.WEIGHTS_FILE} "
    f"with {encoder_json.ENCODER_FILE}"
  )


def _copy_files(store: _Store, url: str, names: set[str], target: pathlib.Path) -> None:
  for name in names:
    store.copy(f"{url}/{name}", target / name)


@functools.cache
def _process_folder() -> str:
  """Returns a temporary folder that is deleted when the process ends."""
  folder = tempfile.mkdtemp(prefix="vmsst-")
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  return folder
