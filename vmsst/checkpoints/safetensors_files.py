"""Writes safetensors files whose tensors can be mapped into memory."""

import json
import pathlib
from collections.abc import Mapping

import numpy as np

# JAX uses mapped arrays only if they start at a multiple.
ALIGNMENT = 64
_KINDS = {"f": "F", "i": "I", "u": "U"}


def write(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
  """Writes arrays of numbers to a new safetensors file.

  The library's own writer does not align tensors, and gives the file the mode 0600.

  Raises:
    OSError: the file cannot be written; the message names it.
  """
  header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
  # Tensors follow each other without gaps: those that would misalign the next come last.
  names = sorted(arrays, key=lambda name: (arrays[name].nbytes % ALIGNMENT != 0, name))
  end = 0
  for name in names:
    array, start = arrays[name], end
    end += array.nbytes
    kind = f"{_KINDS[array.dtype.kind]}{8 * array.dtype.itemsize}"
    header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (start, end)}
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-(8 + len(text)) % ALIGNMENT)
  try:
    with path.open("wb") as stream:
      stream.write(len(text).to_bytes(8, "little") + text)
      for name in names:
        stream.write(np.ascontiguousarray(arrays[name]).data)
  except OSError as error:
    raise OSError(error.errno, error.strerror, path.name) from error
