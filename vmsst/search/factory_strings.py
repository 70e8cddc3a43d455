"""FAISS factory strings: those that indexes support, their sizes, and the default.

A string such as `OPQ64,IVF65536,PQ64` names a rotation, a number of lists of nearby vectors, and
the code of a vector.
"""

import dataclasses
import math
import re

from vmsst import errors

_PATTERN = re.compile(
  r"(?P<transform>(?:OPQ|PCAR?|RR)\d{1,6}(?:_\d{1,6})?,)?"
  r"(?:IVF(?P<lists>\d{1,8}),)?"
  r"(?P<code>Flat|SQ8|SQfp16|RaBitQ|PQ(?P<parts>\d{1,4}))"
)
_EXAMPLES = "such as OPQ64,IVF65536,PQ64 or IVF4096,SQ8 or RaBitQ or Flat"
# Fewer vectors than this are searched exactly in a few milliseconds.
_FLAT_BELOW = 20_000
# A bit per dimension is the default code of fewer vectors than this, of at least this width.
_BITS_BELOW, _BITS_FROM = 10_000_000, 256
_MOST_PARTS = 64  # Bytes of the other default code.
_LEAST_PROBES = 32
# Training vectors: FAISS asks for at least 39 per centroid and uses at most 256.
_PER_CENTROID, _AT_LEAST = 64, 1 << 16


@dataclasses.dataclass(frozen=True)
class Factory:
  """A supported factory string.

  Attributes:
    text: The string, as FAISS reads it.
    lists: Number of inverted lists; 0: none, every code is compared.
    training_rows: Vectors to train on, if there are as many; 0: no training.
  """

  text: str
  lists: int
  training_rows: int


def parse(text: str) -> Factory:
  """Returns a supported factory string.

  Codes are `Flat` (float32), `SQfp16`, `SQ8` (a byte per dimension), `RaBitQ` (a bit per dimension)
  and `PQ64` (64 bytes). `IVF` with a number of lists may precede it, and `OPQ`, `PCA`, `PCAR` or
  `RR` that. Indexes of other strings cannot be filled in shards, or not be searched among some of
  the vectors.

  Raises:
    InputError: the string is not supported.
  """
  if not (found := _PATTERN.fullmatch(text)):
    raise errors.InputError(f"factory {text!r} is not supported: give one {_EXAMPLES}")
  lists = int(found["lists"] or 0)
  if found["lists"] and not lists:
    raise errors.InputError(f"factory {text!r} has no lists: give one {_EXAMPLES}")
  if found["parts"] and not lists:
    raise errors.InputError(f"factory {text!r} needs lists: give IVF1,{text} for a single one")
  trained = found["transform"] or lists or found["code"] not in ("Flat", "SQfp16")
  return Factory(text, lists, max(_AT_LEAST, _PER_CENTROID * lists) if trained else 0)


def default(count: int, dimension: int) -> str:
  """Returns the default for a number of vectors.

  `Flat`, which is exact, below 20,000 vectors. Above, inverted lists: the lowest power of two of at
  least 4 sqrt(count), which is 4,096 at a million and 65,536 at 100 million. Their codes are
  `RaBitQ` after a random rotation below 10 million vectors, the faster and more accurate one there,
  and 64 bytes of `OPQ` and `PQ` from 10 million on, as in CCMatrix, and for vectors of fewer than
  256 dimensions. For widths that are not a multiple of 64, PQ has the largest divisor below 64.
  """
  if count < _FLAT_BELOW:
    return "Flat"
  lists = 1 << math.ceil(math.log2(4 * math.sqrt(count)))
  if count < _BITS_BELOW and dimension >= _BITS_FROM:
    return f"RR{dimension},IVF{lists},RaBitQ"
  parts = max(m for m in range(1, _MOST_PARTS + 1) if dimension % m == 0)
  return f"OPQ{parts},IVF{lists},PQ{parts}"


def default_probes(lists: int) -> int:
  """Returns the number of lists to search for a query: half the square root, but at least 32."""
  return max(_LEAST_PROBES, math.isqrt(lists) // 2)
