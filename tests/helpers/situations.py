"""Runs subcommands of `vmsst` in sampled situations and checks the files that they leave.

A situation is a state of an input, a state of the output and an event while the command runs.
Whatever it is, a command leaves its inputs as they are, exits with 0 only after a correct result,
otherwise reports one line, and leaves no new files but the state that it resumes from.
"""

import contextlib
import dataclasses
import gzip
import io
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

from vmsst import cli
from vmsst.files import work_folders

SENTENCES = [f"{a} {b}" for a in ("old", "new", "big") for b in ("house", "river", "road")]


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
    resumes: Names that an interrupted command may leave, as suffixes of the output's name.
    result: Reads the output, by default all files.
  """

  argv: tuple[str, ...]
  files: Mapping[str, bytes | pathlib.Path]
  texts: tuple[str, ...]
  folder: bool = False
  stream: bool = True
  blank: bool = True
  resumes: tuple[str, ...] = ()
  result: Callable[[pathlib.Path], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Situation:
  """States of an input and of the output, and an event."""

  text: str
  source: str
  target: str
  event: str

  def __str__(self) -> str:
    return f"{self.text} is {self.source}, output is {self.target}, {self.event}"


# --------------------------------------------------------------------------------------------
# Inputs: name -> (changes a file, whether the command can read it)


def _changed(change: Callable[[bytes], bytes]) -> Callable[[pathlib.Path], None]:
  return lambda path: (path.write_bytes(change(path.read_bytes())), None)[1]


def _as_link(path: pathlib.Path) -> None:
  path.rename(path.with_name("elsewhere"))
  path.symlink_to("elsewhere")


def _as_folder(path: pathlib.Path) -> None:
  path.unlink()
  path.mkdir()


def _as_pipe(path: pathlib.Path) -> None:
  path.unlink()
  os.mkfifo(path)


def _as_loop(path: pathlib.Path) -> None:
  path.unlink()
  path.symlink_to(path.name)


# The same text in other formats.
SAME = {
  "plain": lambda path: None,
  "with a byte order mark": _changed(lambda content: b"\xef\xbb\xbf" + content),
  "with CR LF": _changed(lambda content: content.replace(b"\n", b"\r\n")),
  "without a last newline": _changed(lambda content: content[:-1]),
  "a link": _as_link,
}
UNREADABLE = {
  "missing": lambda path: path.unlink(),
  "a folder": _as_folder,
  "a pipe": _as_pipe,
  "a link to itself": _as_loop,
  "UTF-16": _changed(lambda content: content.decode().encode("utf-16")),
  "Latin-1": _changed(lambda content: b"caf\xe9\n" * content.count(b"\n")),
  "an image": _changed(lambda content: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe\n"),
  "gzip without the name": _changed(gzip.compress),
}
SPECIAL = {
  "empty": _changed(lambda content: b""),
  "blank": _changed(lambda content: b"\n" * content.count(b"\n")),
}
SOURCES = {**SAME, **UNREADABLE, **SPECIAL}

# --------------------------------------------------------------------------------------------
# Outputs: name -> function that prepares it and returns its path, below the working folder

WRITABLE_FILES = {
  "new": lambda name: "out",
  "in new folders": lambda name: "new/deep/out",
  "an old file": lambda name: _old("out"),
  "a link to an old file": lambda name: _link("out", _old("old")),
  "a dangling link": lambda name: _link("out", "missing"),
  "after a stale part": lambda name: _stale("out"),
}
STREAMS = {
  "/dev/null": lambda name: "/dev/null",
  "a link to /dev/null": lambda name: _link("out", "/dev/null"),
}
REFUSED_FILES = {
  "the input": lambda name: name,
  "the input by another path": lambda name: f"./../{pathlib.Path.cwd().name}/{name}",
  "a hard link to the input": lambda name: _hard_link("out", name),
  "a link to the input": lambda name: _link("out", name),
  "a folder": lambda name: _folder("out"),
  "below a file": lambda name: f"{_old('old')}/out",
  "empty": lambda name: "",
  "/dev/full": lambda name: "/dev/full",
}
WRITABLE_FOLDERS = {
  "new": lambda name: "out",
  "in new folders": lambda name: "new/deep/out",
}
REFUSED_FOLDERS = {
  "an old file": lambda name: _old("out"),
  "the input": lambda name: name,
  "below a file": lambda name: f"{_old('old')}/out",
  "empty": lambda name: "",
  "/dev/null": lambda name: "/dev/null",
}
EVENTS = {  # with weights
  "nothing happens": 5,
  "the disk is full": 1,
  "Ctrl-C": 2,
  "SIGTERM": 2,
  "the input changes between runs": 1,
  "the encoder changes between runs": 1,
}
STOPPED = (130, 143)
WORK = "the work folder"
"""Stands for `.OUT.vmsst` among the places that an interrupted command leaves."""
_SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}


def _old(name: str) -> str:
  pathlib.Path(name).write_text("old\n")
  return name


def _folder(name: str) -> str:
  pathlib.Path(name).mkdir()
  return name


def _link(name: str, target: str) -> str:
  os.symlink(target, name)
  return name


def _hard_link(name: str, target: str) -> str:
  if os.path.isfile(target):
    os.link(target, name)
    return name
  return target


def _stale(name: str) -> str:
  pathlib.Path(f"{name}.part").write_text("of a killed process")
  return name


def _real(path: pathlib.Path) -> str:
  return os.path.relpath(os.path.realpath(path))


def targets(command: Subcommand) -> dict[str, tuple[Callable[[str], str], bool]]:
  """Returns the states of an output, and whether the command can write it."""
  if command.folder:
    good, bad = WRITABLE_FOLDERS, REFUSED_FOLDERS
  else:
    good, bad = dict(WRITABLE_FILES), dict(REFUSED_FILES)
    (good if command.stream else bad).update(STREAMS)
  return {
    **{name: (make, True) for name, make in good.items()},
    **{name: (make, False) for name, make in bad.items()},
  }


def draw(command: Subcommand, count: int, seed: int = 0) -> list[Situation]:
  """Returns distinct situations; each state of inputs and outputs comes early."""
  rng = random.Random(f"{command.argv[0]} {seed}")
  sources, outputs = list(SOURCES), list(targets(command))
  found: dict[Situation, None] = {}
  width = max(len(sources), len(outputs))
  for _ in range(1000):
    rng.shuffle(sources)
    rng.shuffle(outputs)
    for index in range(width):
      odd_source = rng.random() < 0.6
      found[
        Situation(
          rng.choice(command.texts) if command.texts else "",
          sources[index % len(sources)] if odd_source and command.texts else "plain",
          outputs[index % len(outputs)],
          rng.choices(list(EVENTS), list(EVENTS.values()))[0],
        )
      ] = None
    if len(found) >= count:
      break
  return list(found)[:count]


# --------------------------------------------------------------------------------------------
# Running


def check(command: Subcommand, situations: Sequence[Situation], place: pathlib.Path) -> str:
  """Runs situations; returns their counts in a line, and raises AssertionError for faults."""
  counts = {"done": 0, "refused": 0, "interrupted": 0}
  faults = []
  reference = _Reference(command, place)
  for number, situation in enumerate(situations):
    folder = place / str(number)
    _lay_out(command, folder)
    former = os.getcwd()
    os.chdir(folder)
    try:
      outcome = _run_one(command, situation, reference)
    except AssertionError as error:
      faults.append(f"{situation}: {error}")
    else:
      counts[outcome] += 1
    finally:
      os.chdir(former)
      shutil.rmtree(folder)
  name = " ".join(command.argv[:2])
  assert not faults, f"{name}: {len(faults)} of {len(situations)}\n" + "\n".join(faults)
  return f"{name}: {len(situations)} situations, " + ", ".join(
    f"{n} {k}" for k, n in counts.items()
  )


def check_owned(command: Subcommand, place: pathlib.Path) -> None:
  """Asserts that a command is refused while another one writes its output."""
  folder = place / "owned"
  _lay_out(command, folder)
  former = os.getcwd()
  os.chdir(folder)
  try:
    # Only folders that appear at once are locked from outside.
    inside = command.folder and command.argv[0] not in ("import", "export")
    with futures.ThreadPoolExecutor(1) as other, contextlib.ExitStack() as owner:
      other.submit(
        owner.enter_context, work_folders.owned(str(folder / "OUT"), is_folder=inside)
      ).result()
      before = _snapshot()
      code, message = _call(command, "OUT")
      assert (code, message.count("\n")) == (1, 1), message
      assert "OUT is being written by another command (process " in message
      assert _snapshot() == before
    assert _call(command, "OUT")[0] == 0
  finally:
    os.chdir(former)


class _Reference:
  """Results of undisturbed runs, by the state of the input."""

  def __init__(self, command: Subcommand, place: pathlib.Path):
    self._command, self._place = command, place
    self._results: dict[tuple[str, str], Any] = {}

  def of(self, situation: Situation) -> Any:
    """Returns the result of an input's content; formats of the same text have the same."""
    source = "plain" if situation.source in SAME else situation.source
    key = (situation.text, source)
    if key not in self._results:
      folder = self._place / f"reference {len(self._results)}"
      _lay_out(self._command, folder)
      former = os.getcwd()
      os.chdir(folder)
      try:
        if self._command.texts:
          SOURCES[source](pathlib.Path(situation.text))
        code, message = _call(self._command, "out")
        assert code == 0, message
        self._results[key] = result(self._command, "out")
      finally:
        os.chdir(former)
        shutil.rmtree(folder)
    return self._results[key]


def result(command: Subcommand, output: str) -> Any:
  """Returns the result of a command, without the paths of this folder."""
  path = pathlib.Path(output)
  if command.result is not None:
    return command.result(path)
  return path.read_bytes()


def _run_one(command: Subcommand, situation: Situation, reference: _Reference) -> str:
  if command.texts:
    SOURCES[situation.source](pathlib.Path(situation.text))
  make, writable = targets(command)[situation.target]
  output = make(situation.text or next(iter(command.files)))
  readable = situation.source in SAME
  readable |= situation.source == "blank" and command.blank
  fine = readable and writable
  before = _snapshot()
  changes = {
    "the input changes between runs": situation.text,
    "the encoder changes between runs": "encoder",
  }
  # A first run, disturbed; then the same command, undisturbed.
  if situation.event == "the disk is full":
    code, message = _call(command, output, context=_full_disk())
    _check_end(command, code, message, before, output, failed_ok=True)
  elif situation.event in _SIGNALS:
    stop = _SIGNALS[situation.event]
    context = _interrupted(random.Random(str(situation)), stop)
    code, message = _call(command, output, context=context)
    _check_end(command, code, message, before, output, failed_ok=True)
    assert code in (0, 1, 128 + stop), f"exit {code}"
    if fine and code == 0:  # finished before the signal
      _check_result(command, situation, reference, output, before)
      return "done"
    if fine and code == 128 + stop:
      code, message = _call(command, output)
      assert code == 0, f"does not resume: {message}"
      _check_result(command, situation, reference, output, before)
      return "interrupted"
  elif fine and changes.get(situation.event) in command.files:
    _call(command, output, context=_interrupted(random.Random(str(situation))))
    path = pathlib.Path(changes[situation.event])
    changed = path.read_bytes().replace(b"house", b"hut").replace(b"seed 1", b"seed 2")
    path.write_bytes(changed)
    states = [end for end in command.resumes if end]  # beside the output; it may remove them
    found = {k: x for k, x in _snapshot().items() if not _is_below(k, _own(output), states)}
    before = {**found, **{k: x for k, x in before.items() if k != _real(path)}}
    code, message = _call(command, output)
    _check_end(command, code, message, before, output, failed_ok=True)
    if code == 0 and not os.path.realpath(output).startswith("/dev/"):
      assert _call(command, "fresh")[0] == 0
      assert result(command, output) == result(command, "fresh"), "a stale result"
    return "done" if code == 0 else "refused"
  code, message = _call(command, output)
  _check_end(command, code, message, before, output, failed_ok=not fine)
  if fine:
    assert code == 0, f"fails: {message}"
    _check_result(command, situation, reference, output, before)
    return "done"
  assert code, "does not fail"
  return "refused"


def _own(output: str) -> set[str]:
  """Returns the paths of the output, of which one may be a link."""
  return {os.path.normpath(output), _real(pathlib.Path(output))} if output else {""}


def _is_below(name: str, own: set[str], ends: Sequence[str]) -> bool:
  """Returns whether a path is, or is in, an output's path with one of the ends added."""
  places = [
    os.path.join(os.path.dirname(each), f".{os.path.basename(each)}.vmsst")
    if end == WORK
    else each + end
    for each in own
    for end in ends
  ]
  return any(f"{name}/".startswith(f"{place}/") for place in places)


def _check_result(
  command: Subcommand,
  situation: Situation,
  reference: _Reference,
  output: str,
  before: Mapping[str, Any],
) -> None:
  if os.path.realpath(output).startswith("/dev/"):
    assert not pathlib.Path("/dev/null").is_file()
    return
  assert result(command, output) == reference.of(situation), "another result"
  if os.path.islink(output) or output in before:
    assert os.path.islink(output) == (before[output][:1] == ("link",)), "a link was replaced"


def _check_end(
  command: Subcommand,
  code: int,
  message: str,
  before: Mapping[str, Any],
  output: str,
  *,
  failed_ok: bool,
) -> None:
  """Asserts what must hold after any run."""
  lines = [line for line in message.splitlines() if re.match("vmsst: (?!note:)", line)]
  after = _snapshot()
  own = _own(output)
  for name, content in before.items():
    assert name in after, f"{name} is gone"
    if code not in (0, *STOPPED) or name not in own:  # an interrupted command may have finished
      assert after[name] == content, f"{name} has changed"
  if code == 0:
    return
  assert failed_ok, f"exit {code}: {message}"
  assert len(lines) == 1, f"{len(lines)} lines: {message}"
  expected = {130: "interrupted", 143: "terminated"}.get(code, "error: ")
  assert lines[0].startswith(f"vmsst: {expected}"), message
  assert code in STOPPED or len(lines[0]) > 30, message
  assert not re.search("Traceback|Error:|Warning:", message), message
  left = [
    name
    for name in after
    if name not in before
    and not _is_below(name, own, command.resumes)
    and not (code in STOPPED and name in own)
    and not any(each.startswith(f"{name}/") for each in own)
  ]
  assert not left, f"left {left}"
  if not any(name not in before for name in after if after[name] != ("folder",)):
    new = [name for name in after if name not in before]
    assert not new, f"left the folders {new}"


def _call(
  command: Subcommand,
  output: str,
  context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext(),  # noqa: B008
) -> tuple[int, str]:
  """Returns exit code and standard error of a command; an exception is an AssertionError."""
  argv = [output if word == "OUT" else word for word in command.argv]
  errors = io.StringIO()
  errors.isatty = lambda: False  # type: ignore[method-assign]
  with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
    try:
      with context:
        code = cli.main(argv)
    except SystemExit as error:
      raise AssertionError(f"exits: {error}: {errors.getvalue()}") from error
    except BaseException as error:
      raise AssertionError(f"{type(error).__name__}: {error}") from error
  return code, errors.getvalue()


def _lay_out(command: Subcommand, folder: pathlib.Path) -> None:
  folder.mkdir(parents=True)
  for name, content in command.files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pathlib.Path):
      shutil.copytree(content, path)
    else:
      path.write_bytes(content)


def _snapshot() -> dict[str, Any]:
  """Returns all paths below the working folder with their content."""
  found: dict[str, Any] = {}
  for where, folders, names in os.walk("."):
    for name in (*folders, *names):
      path = os.path.normpath(os.path.join(where, name))
      if os.path.islink(path):
        found[path] = ("link", os.readlink(path))
      elif os.path.isdir(path):
        found[path] = ("folder",)
      elif os.path.isfile(path):
        found[path] = pathlib.Path(path).read_bytes()
      else:
        found[path] = ("special",)
  return found


@contextlib.contextmanager
def _full_disk():
  """Lets no file become longer than a few bytes, as on a full disk."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


_EVENTS = {"os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"}
_countdown: list[int] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
  if not _countdown:
    return
  writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
  if writes or event in _EVENTS:
    _countdown[0] -= 1
    if _countdown[0] < 0:
      _, number = _countdown
      _countdown.clear()
      signal.raise_signal(number)


@contextlib.contextmanager
def _interrupted(rng: random.Random, number: int = signal.SIGINT):
  """Sends a signal just before a file is opened for writing, renamed or removed."""
  if not getattr(sys, "_vmsst_interrupts", False):
    sys.addaudithook(_hook)
    sys._vmsst_interrupts = True  # type: ignore[attr-defined]
  former = signal.signal(signal.SIGINT, signal.default_int_handler)  # test processes may ignore it
  _countdown[:] = [rng.randrange(8), number]
  try:
    yield
  finally:
    _countdown.clear()
    signal.signal(signal.SIGINT, former)
