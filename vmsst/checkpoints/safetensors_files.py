"""Writes safetensors files like other files: modes follow the umask, a full disk is an OSError."""

import pathlib
import stat
from collections.abc import Mapping

import numpy as np
import safetensors
from safetensors.numpy import save_file


def write(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
  """Writes arrays to a new safetensors file.

  Raises:
    OSError: the file cannot be written; the message names it.
  """
  # safetensors makes a temporary file, with mode 0600, and renames it.
  path.touch()
  mode = stat.S_IMODE(path.stat().st_mode)
  try:
    save_file(dict(arrays), path, metadata)
  except safetensors.SafetensorError as error:
    raise OSError(f"{path.name}: {error}") from error
  path.chmod(mode)
