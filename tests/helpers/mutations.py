"""Malformed files, made of valid ones by a random generator: the same for the same seed.

A case is a function that is given the path of a valid file and puts something else there.
"""

import copy
import gzip
import json
import os
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple


class Case(NamedTuple):
  """A malformed file: what it is, and what puts it in the place of a valid one."""

  name: str
  apply: Callable[[str], None]


_DEEP = 50_000


def _nested(depth: int) -> list:
  value: list = []
  for _ in range(depth):
    value = [value]
  return value


_LONE_SURROGATE = b"\xed\xa0\x80"
_NUMBERS = (0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
_VALUES: tuple[Any, ...] = (
  None, True, -1, 0, 3, 1 << 31, 1 << 63, 10**18, 10**400, 0.5, -1e308, float("nan"), float("inf"),
  "", "x", "\ud800", "\0", "../../outside", "/etc/passwd", "file:///etc/passwd", "x" * 5000,
  "\udce9", [], {}, [[]], [None], {"x": None}, [0] * 1000, _nested(800),
)  # fmt: skip


def _content(change: Callable[[bytes], bytes]) -> Callable[[str], None]:
  def apply(path: str) -> None:
    with open(path, "rb") as stream:
      valid = stream.read()
    with open(path, "wb") as stream:
      stream.write(change(valid))

  return apply


def _in_place(make: Callable[[str], Any]) -> Callable[[str], None]:
  def apply(path: str) -> None:
    os.remove(path)
    make(path)

  return apply


def places() -> Iterator[Case]:
  """Other things in the place of a file."""
  yield Case("a folder", _in_place(os.mkdir))
  yield Case("a pipe", _in_place(os.mkfifo))
  yield Case("a broken link", _in_place(lambda path: os.symlink("nowhere", path)))
  yield Case("a link to itself", _in_place(lambda path: os.symlink(os.path.basename(path), path)))
  yield Case("an endless device", _in_place(lambda path: os.symlink("/dev/zero", path)))
  yield Case("nothing", os.remove)


def contents() -> Iterator[Case]:
  """Contents that are wrong for every format."""
  fixed = {
    "empty": b"",
    "a line end": b"\n",
    "NULs": bytes(5000),
    "0xFF": b"\xff" * 5000,
    "a long line": b"a" * 3_000_000,
    "deep lists": b"[" * _DEEP,
    "deep objects": b'{"a":' * _DEEP,
    "deep elements": b"<a>" * _DEEP,
    "a long number": b"9" * 5000,
    "a pickle": b"\x80\x04\x8c\x08builtins\x8c\x05print\x93)R.",
    "a zip": b"PK\x05\x06" + bytes(18),
  }
  for name, content in fixed.items():
    yield Case(name, _content(lambda valid, content=content: content))
  for name, change in {
    "its first byte": lambda valid: valid[:1],
    "its first half": lambda valid: valid[: len(valid) // 2],
    "without its last byte": lambda valid: valid[:-1],
    "twice": lambda valid: valid + valid,
    "gzipped": lambda valid: gzip.compress(valid, mtime=0),
    "half of its gzip": lambda valid: gzip.compress(valid, mtime=0)[: len(valid) // 4 + 12],
    "with a byte order mark": lambda valid: b"\xef\xbb\xbf" + valid,
    "with a lone surrogate": lambda valid: valid[: len(valid) // 2] + _LONE_SURROGATE + valid,
    "all lines empty": lambda valid: b"\n" * (valid.count(b"\n") + 1),
    "CR line ends": lambda valid: valid.replace(b"\n", b"\r"),
  }.items():
    yield Case(name, _content(change))
  for encoding in (b"utf-16", b"shift_jis", b"rot13", b"unknown"):
    yield Case(
      f"said to be in {encoding.decode()}",
      _content(lambda valid, to=encoding: valid.replace(b"UTF-8", to).replace(b"utf-8", to)),
    )
  for encoding in ("utf-16", "utf-32", "utf-7", "shift_jis", "cp500"):
    yield Case(
      f"in {encoding}",
      _content(lambda valid, to=encoding: valid.decode("utf-8", "replace").encode(to, "replace")),
    )


def noise(random: Random) -> Iterator[Case]:
  """Random changes of some bytes, without end."""
  makers = (
    _flipped,
    _number_inside,
    _removed,
    _repeated,
    _inserted,
    _cut,
    _shuffled,
    _retabbed,
  )
  while True:
    make = makers[random.randrange(len(makers))]
    own = Random(random.random())
    yield Case(make.__name__.strip("_"), _content(lambda valid, m=make, r=own: m(valid, r)))


def _flipped(valid: bytes, random: Random) -> bytes:
  changed = bytearray(valid or b"\0")
  for _ in range(random.choice((1, 1, 2, 8, 64))):
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
  return bytes(changed)


def _number_inside(valid: bytes, random: Random) -> bytes:
  """A count, length or offset of a header with another value."""
  packed = struct.pack(random.choice(("<Q", ">Q")), random.choice(_NUMBERS))
  number = packed[: random.choice((2, 4, 8))]
  start = random.randrange(min(len(valid), 200) + 1)
  return valid[:start] + number + valid[start + len(number) :]


def _removed(valid: bytes, random: Random) -> bytes:
  start = random.randrange(len(valid) + 1)
  return valid[:start] + valid[start + random.choice((1, 3, 50)) :]


def _repeated(valid: bytes, random: Random) -> bytes:
  start = random.randrange(len(valid) + 1)
  end = start + random.choice((1, 20, 200))
  return valid[:end] + valid[start:end] * random.choice((1, 3, 100)) + valid[end:]


def _inserted(valid: bytes, random: Random) -> bytes:
  start = random.randrange(len(valid) + 1)
  what = random.choice(
    (b"\0", b"\n", b"\r", b"\t", b"\t\t\t", b'"', b"\\u0000", b"<", b"&x;", b"\xff", b"{", b"-",
     b"nan", b"inf", b"1e999", "\u2028".encode(), b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
     random.randbytes(9))
  )  # fmt: skip
  return valid[:start] + what + valid[start:]


def _cut(valid: bytes, random: Random) -> bytes:
  return valid[: random.randrange(len(valid) + 1)]


def _shuffled(valid: bytes, random: Random) -> bytes:
  lines = valid.split(b"\n")
  random.shuffle(lines)
  return b"\n".join(lines[: random.randrange(1, len(lines) + 1)])


def _retabbed(valid: bytes, random: Random) -> bytes:
  fields = valid.split(b"\t")
  fields[random.randrange(len(fields))] = random.choice(
    (b"", b"-1", b"nan", b"x\ty", b"\n", b"9" * 400)
  )
  return b"\t".join(fields)


def json_values(valid: bytes, random: Random) -> Iterator[Case]:
  """A JSON document in which one value is another, a key is missing or there twice; without end."""
  record = json.loads(valid)
  places = list(_paths(record))
  while True:
    changed = copy.deepcopy(record)
    path = random.choice(places)
    value = random.choice(_VALUES)
    what = random.choice(("value", "value", "value", "value", "missing", "more", "twice"))
    text = None
    if not path:
      changed = value
    else:
      parent = changed
      for step in path[:-1]:
        parent = parent[step]
      if what == "value":
        parent[path[-1]] = value
      elif what == "missing":
        del parent[path[-1]]
      elif isinstance(parent, dict):
        text = _with_pair(changed, parent, path[-1] if what == "twice" else "unknown", value)
      else:
        parent.append(value)
    text = json.dumps(changed) if text is None else text
    name = f"{what} at {'.'.join(map(str, path))}: {json.dumps(value)[:40]}"
    yield Case(name, _content(lambda valid, text=text: text.encode()))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
  yield path
  if isinstance(value, (dict, list)):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items)[:12]:
      yield from _paths(inner, (*path, key))


def _with_pair(record: Any, parent: dict, key: str, value: Any) -> str:
  """The document with a pair more in one of its objects, whose key may be there already."""
  parent["\u0001"] = value
  return json.dumps(record).replace(json.dumps("\u0001"), json.dumps(key))
