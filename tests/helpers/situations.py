"""Runs subcommands of `vmsst` in drawn situations and checks the files that they leave.

A situation is a state of an input, a state of the output and an event while the command runs.
Whatever it is, a command leaves its inputs as they are, exits with 0 only after a correct result,
otherwise reports one line, and leaves no new files but the state that it resumes from.
"""

import contextlib
import dataclasses
import io
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import mutations
import trials

from vmsst import cli
from vmsst.files import work_folders

SENTENCES = [f"{a} {b}" for a in ("old", "new", "big") for b in ("house", "river", "road")]
WORK = "the work folder"
"""Stands for `.OUT.vmsst` among the places that an interrupted command leaves."""


@dataclasses.dataclass(frozen=True)
class Subcommand:
  """A subcommand and a folder that it works in.

  Attributes:
    argv: Its arguments; OUT stands for the output.
    files: Content of the input files, by path. A content that is a folder is copied.
    texts: Names of the input files that situations change; lines of text.
    folder: Whether the output is a folder.
    stream: Whether the output may be a device or pipe.
    blank: Whether texts of blank lines alone are accepted.
    resumes: What an interrupted command may leave, as suffixes of the output's name.
    result: Reads the output, by default the bytes of a file.
  """

  argv: str
  files: Mapping[str, bytes | pathlib.Path]
  texts: tuple[str, ...] = ()
  folder: bool = False
  stream: bool = True
  blank: bool = True
  resumes: tuple[str, ...] = ()
  result: Callable[[pathlib.Path], Any] = pathlib.Path.read_bytes


def _changed(change: Callable[[bytes], bytes]) -> Callable[[pathlib.Path], Any]:
  return lambda path: path.write_bytes(change(path.read_bytes()))


# What changes an input file, by state: of the same text in other formats, and of what is no text.
SAME: dict[str, Callable[[pathlib.Path], Any]] = {
  "plain": lambda path: None,
  "with a byte order mark": _changed(lambda content: b"\xef\xbb\xbf" + content),
  "with CR LF": _changed(lambda content: content.replace(b"\n", b"\r\n")),
  "without a last newline": _changed(lambda content: content[:-1]),
  "a link": lambda path: path.symlink_to(path.rename(path.with_name("elsewhere")).name),
}
_KINDS = (
  "a folder", "a pipe", "a link to itself", "missing", "empty", "0xFF", "Latin-1", "gzipped",
  "in utf-16",
)  # fmt: skip
SOURCES = {
  **SAME,
  "blank": _changed(lambda content: b"\n" * content.count(b"\n")),
  **{x.name: x.apply for x in mutations.fixed() if x.name in _KINDS},
}


def _file(name: str) -> str:
  pathlib.Path(name).write_text("old\n")
  return name


def _link(target: str, make: Callable[[str, str], None] = os.symlink) -> str:
  if make == os.link and not os.path.isfile(target):
    return target
  make(target, "out")
  return "out"


# What prepares an output and returns its path, given that of an input.
_Targets = dict[str, Callable[[str], str]]
_NEW: _Targets = {"new": lambda name: "out", "in new folders": lambda name: "new/deep/out"}
_STREAMS: _Targets = {
  "/dev/null": lambda name: "/dev/null",
  "a link to /dev/null": lambda name: _link("/dev/null"),
}
_REFUSED: _Targets = {
  "the input": lambda name: name,
  "below a file": lambda name: f"{_file('old')}/out",
  "empty": lambda name: "",
}
_FILES: _Targets = {
  "an old file": lambda name: _file("out"),
  "a link to an old file": lambda name: _link(_file("old")),
  "a dangling link": lambda name: _link("missing"),
  "next to a file of similar name": lambda name: _file("out.part")[:3],
}
_REFUSED_FILES: _Targets = {
  "the input by another path": lambda name: f"./../{pathlib.Path.cwd().name}/{name}",
  "a hard link to the input": lambda name: _link(name, os.link),
  "a link to the input": lambda name: _link(name),
  "a folder": lambda name: os.mkdir("out") or "out",
  "/dev/full": lambda name: "/dev/full",
}


def targets(command: Subcommand) -> tuple[_Targets, _Targets]:
  """Returns the states of an output that the command can write, and those that it refuses."""
  if command.folder:
    return _NEW, {**_REFUSED, "an old file": _FILES["an old file"], **_STREAMS}
  good, bad = {**_NEW, **_FILES}, {**_REFUSED, **_REFUSED_FILES}
  (good if command.stream else bad).update(_STREAMS)
  return good, bad


@contextlib.contextmanager
def _full_disk(rng: random.Random):
  """Lets no file become longer than a few bytes, as on a full disk."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


_countdown: list[int] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
  if not _countdown:
    return
  writes = event == "open" and isinstance(args[2], int) and args[2] & trials.WRITES
  if writes or event in ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"):
    _countdown[0] -= 1
    if _countdown[0] < 0:
      _, number = _countdown
      _countdown.clear()
      signal.raise_signal(number)


def _interrupted(number: int) -> Callable[[random.Random], Any]:
  """Returns what sends a signal just before a file is opened for writing, renamed or removed."""

  @contextlib.contextmanager
  def inside(rng: random.Random):
    if not getattr(sys, "_vmsst_interrupts", False):
      sys.addaudithook(_hook)
      sys._vmsst_interrupts = True  # type: ignore[attr-defined]
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # the process may ignore it
    _countdown[:] = [rng.randrange(12), number]
    try:
      yield
    finally:
      _countdown.clear()
      signal.signal(signal.SIGINT, former)

  return inside


_ENDS = {130: "interrupted", 143: "terminated"}
_EVENTS: dict[str, Any] = {
  "the disk is full": _full_disk,
  "Ctrl-C": _interrupted(signal.SIGINT),
  "SIGTERM": _interrupted(signal.SIGTERM),
}
_CHANGES = {
  "the input changes between runs": (b"house", b"hut"),
  "the encoder changes between runs": (b"seed 1", b"seed 2"),
}
_WEIGHTS = {"nothing happens": 5, "Ctrl-C": 2, "SIGTERM": 2}


def check(command: Subcommand, count: int, place: pathlib.Path) -> None:
  """Raises AssertionError with the drawn situations that end wrongly, of `count`."""
  rng = random.Random(command.argv)
  events = ["nothing happens", *_EVENTS, *_CHANGES]
  weights = [_WEIGHTS.get(event, 1) for event in events]
  good, bad = targets(command)
  drawn = [
    (
      rng.choice(command.texts or ("",)),
      rng.choice(list(SOURCES)) if command.texts and rng.random() < 0.6 else "plain",
      rng.choice([*good, *bad]),
      *rng.choices(events, weights),
    )
    for _ in range(count)
  ]
  faults, results = [], {}
  for number, (text, source, target, event) in enumerate(drawn):
    key = text, "plain" if source in SAME else source
    if key not in results:
      with _folder(command, place / "undisturbed"):
        SOURCES[source](pathlib.Path(text)) if text else None
        done = _call(command, "out")[0] == 0
        results[key] = command.result(pathlib.Path("out")) if done else None
    try:
      with _folder(command, place / str(number)):
        _run(command, text, source, target, event, results[key])
    except AssertionError as error:
      faults.append(f"{text} is {source}, output is {target}, {event}: {error}")
  assert not faults, f"{command.argv}: {len(faults)} of {count}\n" + "\n".join(faults)


def _run(
  command: Subcommand, text: str, source: str, target: str, event: str, expected: Any
) -> None:
  SOURCES[source](pathlib.Path(text)) if text else None
  good, bad = targets(command)
  output = {**good, **bad}[target](text or next(iter(command.files)))
  readable = source in SAME or (source == "blank" and command.blank)
  assert readable == (expected is not None), "the undisturbed command ends otherwise"
  fine = readable and target in good
  before = _snapshot()

  def finished() -> None:
    if not os.path.realpath(output).startswith("/dev/"):
      assert command.result(pathlib.Path(output)) == expected, "another result"
    if os.path.islink(output) or output in before:
      assert os.path.islink(output) == (before[output][:1] == ("link",)), "a link was replaced"

  rng = random.Random(f"{text} {source} {target} {event}")
  changed = {**dict.fromkeys(_CHANGES, text), "the encoder changes between runs": "encoder"}
  if event in _EVENTS:
    code, message = _call(command, output, _EVENTS[event](rng))
    _check_end(command, code, message, before, output)
    at_once = command.folder and not command.resumes
    if fine and (code == 0 or (at_once and os.path.isdir(output))):  # It had finished.
      finished()
      return
  elif fine and event in _CHANGES and changed[event] in command.files:
    _call(command, output, _EVENTS["Ctrl-C"](rng))
    path = pathlib.Path(changed[event])
    path.write_bytes(path.read_bytes().replace(*_CHANGES[event]))
    states = [end for end in command.resumes if end]  # next to the output; it may remove them
    found = {k: x for k, x in _snapshot().items() if not _is_below(k, _own(output), states)}
    before = {**found, **{k: x for k, x in before.items() if k != os.path.relpath(path.resolve())}}
    code, message = _call(command, output)
    _check_end(command, code, message, before, output)
    if code == 0 and not os.path.realpath(output).startswith("/dev/"):
      assert _call(command, "fresh")[0] == 0
      results = [command.result(pathlib.Path(name)) for name in (output, "fresh")]
      assert results[0] == results[1], "a stale result"
    return
  code, message = _call(command, output)
  _check_end(command, code, message, before, output)
  assert (code == 0) == fine, f"exit {code}: {message}"
  if fine:
    finished()


def check_owned(command: Subcommand, place: pathlib.Path) -> None:
  """Asserts that a command is refused while another one writes its output."""
  # Folders of imports and exports appear at once.
  inside = command.folder and command.argv.split()[0] not in ("import", "export")
  with _folder(command, place / "owned"):
    with futures.ThreadPoolExecutor(1) as other, contextlib.ExitStack() as owner:
      owned = work_folders.owned(os.path.abspath("OUT"), is_folder=inside)
      other.submit(owner.enter_context, owned).result()
      before = _snapshot()
      code, message = _call(command, "OUT")
      assert (code, message.count("\n")) == (1, 1), message
      assert "OUT is being written by another command (process " in message
      assert _snapshot() == before
    assert _call(command, "OUT")[0] == 0


def _own(output: str) -> set[str]:
  """Returns the paths of the output, of which one may be a link."""
  paths = os.path.normpath(output), os.path.relpath(os.path.realpath(output))
  return {*paths} if output else {""}


def _is_below(name: str, own: set[str], ends: Any) -> bool:
  """Returns whether a path is, or is in, an output's path with one of the ends added."""
  places = [
    os.path.join(os.path.dirname(each), f".{os.path.basename(each)}.vmsst")
    if end == WORK
    else each + end
    for each in own
    for end in ends
  ]
  return any(f"{name}/".startswith(f"{place}/") for place in places)


def _check_end(
  command: Subcommand, code: int, message: str, before: Mapping[str, Any], output: str
) -> None:
  """Asserts what must hold after any run."""
  after, own = _snapshot(), _own(output)
  for name, content in before.items():
    assert name in after, f"{name} is gone"
    # An interrupted command may have finished.
    if code == 1 or not _is_below(name, own, [""]):
      assert after[name] == content, f"{name} has changed"
  if code == 0:
    return
  lines = [line for line in message.splitlines() if re.match("vmsst: (?!note:)", line)]
  assert len(lines) == 1, f"exit {code}, {len(lines)} lines: {message}"
  assert lines[0].startswith(f"vmsst: {_ENDS.get(code, 'error: ')}"), message
  assert code in _ENDS or (code == 1 and len(lines[0]) > 30), message
  assert not re.search("Traceback|Error:|Warning:", message), message
  new = [name for name in after if name not in before]
  left = [
    name
    for name in new
    if not _is_below(name, own, command.resumes)
    and not (code in _ENDS and _is_below(name, own, [""]))
    and not any(each.startswith(f"{name}/") for each in own)
  ]
  assert not left, f"left {left}"
  assert not new or any(after[name] != ("folder",) for name in new), f"left the folders {new}"


def _call(command: Subcommand, output: str, context: Any = None) -> tuple[int, str]:
  """Returns exit code and standard error of a command; an exception is an AssertionError."""
  argv = [output if word == "OUT" else word for word in command.argv.split()]
  errors = io.StringIO()
  with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
    try:
      with context or contextlib.nullcontext():
        code = cli.main(argv)
    except BaseException as error:
      raise AssertionError(f"{type(error).__name__}: {error}: {errors.getvalue()}") from error
  return code, errors.getvalue()


@contextlib.contextmanager
def _folder(command: Subcommand, folder: pathlib.Path):
  """Makes a folder with the input files of a command the working one, then removes it."""
  folder.mkdir(parents=True)
  for name, content in command.files.items():
    if isinstance(content, pathlib.Path):
      shutil.copytree(content, folder / name)
    else:
      trials.lay_out({name: content}, folder)
  try:
    with contextlib.chdir(folder):
      yield
  finally:
    shutil.rmtree(folder)


def _snapshot() -> dict[str, Any]:
  """Returns all paths below the working folder with their content."""
  found: dict[str, Any] = {}
  for where, folders, names in os.walk("."):
    for name in (*folders, *names):
      path = os.path.normpath(os.path.join(where, name))
      if os.path.islink(path):
        found[path] = ("link", os.readlink(path))
      elif os.path.isfile(path):
        found[path] = pathlib.Path(path).read_bytes()
      else:
        found[path] = ("folder",) if os.path.isdir(path) else ("special",)
  return found
