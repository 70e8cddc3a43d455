"""Malformed files, made of valid ones by a random generator: the same for the same seed."""

import gzip
import json
import os
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple


class Case(NamedTuple):
  """What a malformed file is, and what puts it in the place of a valid one at a path."""

  name: str
  apply: Callable[[str], Any]


def _nested(depth: int) -> list:
  value: list = []
  for _ in range(depth):
    value = [value]
  return value


_NUMBERS = (0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
_VALUES: tuple[Any, ...] = (
  None, True, -1, 0, 3, 1 << 31, 1 << 63, 10**18, 10**400, 0.5, -1e308, float("nan"), float("inf"),
  "", "x", "\ud800", "\0", "../../outside", "/etc/passwd", "file:///etc/passwd", "x" * 5000,
  "\udce9", [], {}, [[]], [None], {"x": None}, [0] * 1000, _nested(800),
)  # fmt: skip
_INSERTED = (
  b"\0", b"\n", b"\r", b"\t", b"\t\t\t", b'"', b"\\u0000", b"<", b"&x;", b"\xff", b"{", b"-",
  b"nan", b"inf", b"1e999", b"9" * 400, "\u2028".encode(), b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
)  # fmt: skip
_PLACES: dict[str, Callable[[str], Any]] = {
  "a folder": os.mkdir,
  "a pipe": os.mkfifo,
  "a broken link": lambda path: os.symlink("nowhere", path),
  "a link to itself": lambda path: os.symlink(os.path.basename(path), path),
  "an endless device": lambda path: os.symlink("/dev/zero", path),
  "missing": lambda path: None,
}
_CONTENTS: dict[str, Callable[[bytes], bytes]] = {
  "empty": lambda valid: b"",
  "a line end": lambda valid: b"\n",
  "NULs": lambda valid: bytes(5000),
  "0xFF": lambda valid: b"\xff" * 5000,
  "a long line": lambda valid: b"a" * 3_000_000,
  "deep lists": lambda valid: b"[" * 50_000,
  "deep objects": lambda valid: b'{"a":' * 50_000,
  "deep elements": lambda valid: b"<a>" * 50_000,
  "a long number": lambda valid: b"9" * 5000,
  "a pickle": lambda valid: b"\x80\x04\x8c\x08builtins\x8c\x05print\x93)R.",
  "a zip": lambda valid: b"PK\x05\x06" + bytes(18),
  "its first byte": lambda valid: valid[:1],
  "its first half": lambda valid: valid[: len(valid) // 2],
  "without its last byte": lambda valid: valid[:-1],
  "twice": lambda valid: valid + valid,
  "gzipped": lambda valid: gzip.compress(valid, mtime=0),
  "half of its gzip": lambda valid: gzip.compress(valid, mtime=0)[: len(valid) // 4 + 12],
  "with a byte order mark": lambda valid: b"\xef\xbb\xbf" + valid,
  "with a lone surrogate": lambda valid: valid[: len(valid) // 2] + b"\xed\xa0\x80" + valid,
  "all lines empty": lambda valid: b"\n" * (valid.count(b"\n") + 1),
  "with CR line ends": lambda valid: valid.replace(b"\n", b"\r"),
  "Latin-1": lambda valid: b"caf\xe9\n" * (valid.count(b"\n") + 1),
  **{
    f"said to be in {to.decode()}": lambda valid, to=to: valid.replace(b"UTF-8", to).replace(
      b"utf-8", to
    )
    for to in (b"utf-16", b"shift_jis", b"rot13", b"unknown")
  },
  **{
    f"in {to}": lambda valid, to=to: valid.decode("utf-8", "replace").encode(to, "replace")
    for to in ("utf-16", "utf-32", "utf-7", "shift_jis", "cp500")
  },
}


def _content(change: Callable[[bytes], bytes]) -> Callable[[str], None]:
  def apply(path: str) -> None:
    with open(path, "rb") as stream:
      valid = stream.read()
    with open(path, "wb") as stream:
      stream.write(change(valid))

  return apply


def contents() -> list[Case]:
  """Returns contents that are wrong for every format."""
  return [Case(name, _content(change)) for name, change in _CONTENTS.items()]


def fixed() -> list[Case]:
  """Returns `contents`, and other things in the place of a file."""
  return [
    *contents(),
    *(
      Case(name, lambda path, make=make: (os.remove(path), make(path)))
      for name, make in _PLACES.items()
    ),
  ]


def noise(random: Random) -> Iterator[Case]:
  """Yields random changes of some bytes, without end."""
  while True:
    seed = random.random()
    yield Case("noise", _content(lambda valid, seed=seed: _changed(valid, Random(seed))))


def _changed(valid: bytes, random: Random) -> bytes:
  start = random.randrange(len(valid) + 1)
  end = start + random.choice((1, 3, 20, 200))
  kind = random.randrange(8)
  if kind == 0:
    changed = bytearray(valid or b"\0")
    for _ in range(random.choice((1, 1, 2, 8, 64))):
      changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)
  if kind == 1:  # a count, length or offset of a header
    packed = struct.pack(random.choice(("<Q", ">Q")), random.choice(_NUMBERS))
    number = packed[: random.choice((2, 4, 8))]
    start = random.randrange(min(len(valid), 200) + 1)
    return valid[:start] + number + valid[start + len(number) :]
  if kind == 2:
    return valid[:start] + valid[end:]
  if kind == 3:
    return valid[:end] + valid[start:end] * random.choice((1, 3, 100)) + valid[end:]
  if kind == 4:
    return valid[:start] + random.choice((*_INSERTED, random.randbytes(9))) + valid[start:]
  if kind == 5:
    return valid[:start]
  parts = valid.split(mark := b"\n" if kind == 6 else b"\t")
  if kind == 6:
    random.shuffle(parts)
    return mark.join(parts[: random.randrange(1, len(parts) + 1)])
  parts[random.randrange(len(parts))] = random.choice((b"", b"-1", *_INSERTED))
  return mark.join(parts)


def json_values(valid: bytes, random: Random) -> Iterator[Case]:
  """Yields JSON with another value, without a key or with one more, without end.

  Args:
    valid: A JSON document; or JSON Lines, of which the first changes. None is yielded of others.
    random: Chooses.
  """
  try:
    json.loads(valid)
    rest = b""
  except ValueError:
    valid, line_end, rest = valid.partition(b"\n")
    rest = line_end + rest
  try:
    paths = list(_paths({"": json.loads(valid)}))[1:]
  except ValueError:
    return
  while len(paths) > 1:
    record = {"": json.loads(valid)}
    path, value = random.choice(paths), random.choice(_VALUES)
    what = random.choice(("value", "value", "value", "missing", "more"))
    parent: Any = record
    for step in path[:-1]:
      parent = parent[step]
    if what == "value" or len(path) == 1:
      parent[path[-1]] = value
    elif what == "missing":
      del parent[path[-1]]
    elif isinstance(parent, dict):
      parent["\u0001"] = value
    else:
      parent.append(value)
    # A key may be there twice.
    key = json.dumps(random.choice((path[-1], "unknown")))
    text = json.dumps(record[""]).replace(json.dumps("\u0001"), key).encode() + rest
    name = f"{what} at {'.'.join(map(str, path))}: {json.dumps(value)[:40]}"
    yield Case(name, _content(lambda _, text=text: text))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
  yield path
  if isinstance(value, (dict, list)):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items)[:12]:
      yield from _paths(inner, (*path, key))
