"""Subcommands of `vmsst` in hostile situations: inputs, outputs, disks and signals.

A situation is a state of an input, a state of the output and an event while the command runs.
Whatever it is, a command leaves its inputs as they are, exits with 0 only after a correct result,
otherwise reports one line, and leaves no new files but the state that it resumes from.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import pathlib
import re
import shutil
import signal
from concurrent import futures

import entry_points
import fake_encoders
import line_files
import pytest
import trials
from entry_points import COMMANDS, WORK

from vmsst import cli
from vmsst.encoder import loading
from vmsst.jobs import work_folders


def _changed(change):
  return lambda path: path.write_bytes(change(path.read_bytes()))


# What changes an input file, by state: of the same text in other formats, and of what is no text.
SAME = {
  "plain": lambda path: None,
  "with a byte order mark": _changed(lambda content: b"\xef\xbb\xbf" + content),
  "with CR LF": _changed(lambda content: content.replace(b"\n", b"\r\n")),
  "without a last newline": _changed(lambda content: content[:-1]),
  "a link": lambda path: path.symlink_to(path.rename(path.with_name("elsewhere")).name),
}
_KINDS = ("a folder", "a pipe", "a link to itself", "missing", "empty", "0xFF", "gzipped")
SOURCES = SAME | {case.name: case.apply for case in trials.fixed() if case.name in _KINDS}


def _old(name):
  pathlib.Path(name).write_text("old\n")
  return name


def _link(target, name="out"):
  os.symlink(target, name)
  return name


def targets(command):
  """Returns the states of an output that the command can write, and those that it refuses.

  Each is a function that prepares the output and returns its path, given that of an input.
  """
  good = {
    "new": lambda name: "out",
    "in new folders": lambda name: "new/deep/out",
    "next to foreign files": lambda name: _link(_old("out.part"), "out.vmsst-part")[:3],
  }
  bad = {
    "the input": lambda name: name,
    "below a file": lambda name: f"{_old('old')}/out",
    "empty": lambda name: "",
  }
  files = {
    "an old file": lambda name: _old("out"),
    "a link to an old file": lambda name: _link(_old("old")),
    "a dangling link": lambda name: _link("missing"),
  }
  devices = {"a link to /dev/null": lambda name: _link("/dev/null")}
  if command.folder:
    return good, bad | files | devices
  bad |= {
    "a link to the input": lambda name: _link(name),
    "a folder": lambda name: os.mkdir("out") or "out",
    "/dev/full": lambda name: "/dev/full",
  }
  return (good | files | devices, bad) if command.stream else (good | files, bad | devices)


@contextlib.contextmanager
def _signal(number, count):
  """Sends a signal just before the next file after `count` is opened to write or is renamed."""
  left = [count]

  def listen(event, args):
    known = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir")
    if event in known or trials.opens_to_write(event, args):
      left[0] -= 1
      if left[0] == -1:
        signal.raise_signal(number)

  with trials.listening(listen):
    yield


_ENDS = {130: "interrupted", 143: "terminated"}
# What changes between an interrupted run and the next.
_CHANGES = {"the input changes": (b"house", b"hovel"), "the encoder changes": (b"1", b"2")}
_INTERRUPTS = {
  f"signal {number} at write {count}": functools.partial(_signal, number, count)
  for number, counts in ((signal.SIGINT, (0, 2, 5, 9)), (signal.SIGTERM, (1, 3, 7, 11)))
  for count in counts
}
EVENTS = {
  "the disk is full": lambda: line_files.largest_file(4),
  **_INTERRUPTS,
  **dict.fromkeys(_CHANGES, lambda: _signal(signal.SIGINT, 6)),
}


def situations(command):
  """Yields inputs, their states, states of the output, and events; one of them is unusual."""
  words = command.argv.split()
  texts = [word for word in words if word.endswith((".txt", ".tsv"))]
  for each in texts:
    yield from ((each, state, "new", "") for state in SOURCES)
  text = (texts or [""])[0]
  good, bad = targets(command)
  yield from ((text, "plain", target, "") for target in (*good, *bad))
  for event in EVENTS:
    if event not in _CHANGES or (text if "input" in event else "encoder" in words):
      yield text, "plain", "new", event
  if not command.folder:
    yield from ((text, "plain", "a link to an old file", event) for event in _INTERRUPTS)


def check(command, text, source, target, event, expected):
  """Asserts that a command does what it must do in a situation of the working folder."""
  good, bad = targets(command)
  if text:
    SOURCES[source](pathlib.Path(text))
  output = (good | bad)[target](text or next(filter(os.path.exists, command.argv.split())))
  fine = source in SAME and target in good
  before = snapshot()
  code = 1
  if event:
    code, message = call(command, output, EVENTS[event]())
    check_end(command, code, message, before, output)
    at_once = command.folder and not command.resumes
    code = 0 if at_once and os.path.isdir(output) else code  # It had finished.
  if event in _CHANGES:
    path = pathlib.Path(text if "input" in event else "encoder")
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(*_CHANGES[event]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    states = places(output, [WORK, *filter(None, command.resumes)])  # It may remove them.
    before = {name: x for name, x in snapshot().items() if not is_below(name, states)}
    code, message = call(command, output)
    check_end(command, code, message, before, output)
    if code == 0:
      assert call(command, "fresh")[0] == 0
      results = [command.result(pathlib.Path(name)) for name in (output, "fresh")]
      assert results[0] == results[1], "a stale result"
    return
  if code:
    code, message = call(command, output)
    check_end(command, code, message, before, output)
    assert (code == 0) == fine, f"exit {code}: {message}"
  if fine:
    if not os.path.realpath(output).startswith("/dev/"):
      assert command.result(pathlib.Path(output)) == expected, "another result"
    if os.path.islink(output) or output in before:
      assert os.path.islink(output) == (before[output][:1] == ("link",)), "a link was replaced"


def places(output, ends):
  """Returns the output's paths, of which one may be a link, with the ends added."""
  paths = {os.path.normpath(output), os.path.relpath(os.path.realpath(output))} if output else {""}
  work = {os.path.join(os.path.dirname(x), f".{os.path.basename(x)}.vmsst") for x in paths}
  return {x for end in ends for x in (work if end == WORK else {path + end for path in paths})}


def is_below(name, folders):
  return any(f"{name}/".startswith(f"{folder}/") for folder in folders)


def check_end(command, code, message, before, output):
  """Asserts what must hold after any run."""
  after, own = snapshot(), places(output, [""])
  for name, content in before.items():
    assert name in after, f"{name} is gone"
    # An interrupted command may have finished.
    assert after[name] == content or (code != 1 and is_below(name, own)), f"{name} has changed"
  if code == 0:
    return
  lines = [line for line in message.splitlines() if re.match("vmsst: (?!note:)", line)]
  assert len(lines) == 1, f"exit {code}, {len(lines)} lines: {message}"
  assert lines[0].startswith(f"vmsst: {_ENDS.get(code, 'error: ')}"), message
  assert code in _ENDS or (code == 1 and len(lines[0]) > 30), message
  assert not re.search("Traceback|Error:|Warning:", message), message
  new = after.keys() - before.keys()
  # A signal may leave a work folder, which the next run removes.
  work = places(output, [WORK]) if code in _ENDS else set()
  kept = places(output, command.resumes) | (own | work if code in _ENDS else set())
  above = {name for name in new if any(each.startswith(f"{name}/") for each in own)}
  new = {name for name in new - above if after[name] != ("folder",)}
  left = [name for name in new if not is_below(name, kept)]
  assert not left, f"left {left}"


def call(command, output, context=None, changes=()):
  """Returns exit code and standard error of a command; an exception is an AssertionError."""
  argv = [output if word == "OUT" else word for word in command.argv.split()]
  argv = [dict(changes).get(place, word) for place, word in enumerate(argv)]
  errors = io.StringIO()
  with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
    try:
      with context or contextlib.nullcontext():
        code = cli.main(argv)
    except BaseException as error:
      raise AssertionError(f"{type(error).__name__}: {error}: {errors.getvalue()}") from error
  return code, errors.getvalue()


@contextlib.contextmanager
def inside(command, inputs, folder):
  """Makes a folder with the input files of a command the working one, then removes it."""
  for path in (inputs / word for word in command.argv.split()):
    if path.exists():
      target = folder / path.relative_to(inputs)
      target.parent.mkdir(parents=True, exist_ok=True)
      (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
  with contextlib.chdir(folder):
    yield
  shutil.rmtree(folder)


def snapshot():
  """Returns all paths below the working folder with their content."""
  found = {}
  for path in pathlib.Path().rglob("*"):
    if path.is_symlink():
      found[str(path)] = ("link", os.readlink(path))
    elif path.is_file():
      found[str(path)] = path.read_bytes()
    else:
      found[str(path)] = ("folder",) if path.is_dir() else ("special",)
  return found


REAL = loading.open_encoder


def fake(path):
  """Returns an encoder whose vectors depend on the content of its file."""
  content = pathlib.Path(path).read_bytes()
  encoder = fake_encoders.FakeEncoder(lambda x: fake_encoders.random_vector(f"{content} {x}"))
  encoder.digest = hashlib.sha256(content).hexdigest()
  return encoder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
  folder = trials.lay_out({"encoder": b"seed 1"}, tmp_path_factory.mktemp("situations"))
  entry_points.write_inputs(folder, fake(folder / "encoder"))
  return folder


@pytest.fixture(params=COMMANDS)
def command(request, monkeypatch):
  """Returns a subcommand; encoders are fake, and the translator is loaded once."""
  if request.param == "export onnx":
    pytest.importorskip("onnx", reason="needs onnx to write models")

  def open_encoder(path, *arguments, **options):
    return (path, fake(path)) if os.path.isfile(path) else REAL(path, *arguments, **options)

  monkeypatch.setattr(loading, "open_encoder", open_encoder)
  monkeypatch.setattr(loading, "load_translator", functools.cache(loading.load_translator))
  return COMMANDS[request.param]


@pytest.mark.slow
def test_a_command_in_all_situations(command, inputs, tmp_path):
  with inside(command, inputs, tmp_path / "undisturbed"):
    assert call(command, "out")[0] == 0
    expected = command.result(pathlib.Path("out"))
  faults = []
  for number, situation in enumerate(situations(command)):
    try:
      with inside(command, inputs, tmp_path / str(number)):
        check(command, *situation, expected)
    except AssertionError as error:
      faults.append(f"{situation}: {error}")
  assert not faults, f"{command.argv}: {len(faults)}\n" + "\n".join(faults)


def _words(command, inputs):
  """Yields the place and the word of each path among the arguments of a command."""
  words = command.argv.split()
  name = next(x for x in cli.COMMANDS if [*x] == words[: len(x)])
  for place, word in enumerate(words):
    if place >= len(name) and (word == "OUT" or (inputs / word).exists()):
      yield place, word


def test_a_message_repeats_neither_line_ends_nor_credentials(
  command, inputs, tmp_path, monkeypatch
):
  opened = loading.open_encoder
  monkeypatch.setattr(
    loading,
    "open_encoder",
    lambda path, **how: (opened if path == "encoder" else REAL)(path, **how),
  )
  forged, secret = "no\nvmsst: error: forged", "s3://AKIA:qu/z@bucket/x"
  with inside(command, inputs, tmp_path / "messages"):
    for place, word in _words(command, inputs):
      for name in (secret,) if word == "OUT" else (forged, secret):
        code, message = call(command, "OUT", changes={place: name})
        assert code == 1, (place, name)
        lines = message.splitlines()
        assert sum(line.startswith("vmsst: error: ") for line in lines) == 1, message
        assert not re.search("AKIA|qu/|z@", message), message


# Commands with encoders, and what is wrong with their other inputs or outputs.
UNUSABLE = {
  "embed encoder none OUT": "none: cannot be opened",
  "embed encoder a.txt none OUT": "none: cannot be opened",
  "embed encoder a.txt a.txt/OUT": "a.txt is not a folder",
  "score encoder none b.txt": "none: cannot be opened",
  "score encoder a.txt none": "none: cannot be opened",
  "score encoder a.txt t": "t: cannot be opened: Is a directory",
  "score encoder a.txt a.txt --output t": "t is a folder",
  "mine none b.txt OUT --encoder encoder": "none: cannot be opened",
  "mine a.txt b.txt OUT --encoder encoder --gold none": "none: cannot be opened",
  "mine a.txt b.txt OUT --encoder encoder --gold gold/text": "gold/text:1: 'one' is not",
  "mine a.txt b.txt OUT --encoder encoder --gold gold/number": "gold/number:2: there is no line 10",
  "mine a.txt blank OUT --encoder encoder --gold gold/blank": "gold/blank:1: line 2 of blank is em",
  "mine a.txt b.txt OUT --encoder encoder --index none none": "none: not a folder",
  "search none corpus vectors": "none: cannot be opened",
  "search b.txt none vectors": "none: cannot be opened",
  "search b.txt corpus none": "none: no vectors.json",
  "search b.txt corpus vectors --index none": "none: not a folder",
  "search b.txt corpus vectors --index t": "t: no index.json",
  "translate run --to de --input none": "none: cannot be opened",
  "translate run --to de --input a.txt --output t": "t is a folder",
  "eval encoder --out OUT --data none": "none: not a folder",
  "eval encoder --out OUT --sts none": "none",
  "eval encoder --out a.txt --bitext t/x.de-en.tsv": "a.txt is not a folder",
  "eval encoder --out OUT --bitext t/x.de-en.tsv --seen xq": "xq",
  "data embed run OUT none": "none",
  "data embed run a.txt t/x.de-en.tsv": "a.txt is not a folder",
  "data mine-negatives run OUT none": "none",
  "export safetensors run t": "t exists already",
  "push run me/x --results none": "none: not a folder",
}


@pytest.mark.parametrize("argv", UNUSABLE)
def test_inputs_are_checked_before_an_encoder_is_loaded(argv, inputs, tmp_path, monkeypatch):
  def refuse(*_, **__):
    raise AssertionError("an encoder was loaded")

  for name in ("load", "load_translator", "open_encoder"):
    monkeypatch.setattr(loading, name, refuse)
  monkeypatch.setattr(saved_encoders, "read", refuse)
  folder = shutil.copytree(inputs, tmp_path / "inputs")
  with contextlib.chdir(folder):
    line_files.write_lines(folder / "blank", ["a", ""])
    gold = {"text": ["one"], "number": ["1\t9", "10\t1"], "blank": ["1\t2"]}
    for name, lines in gold.items():
      line_files.write_lines(folder / "gold" / name, lines)
    before = snapshot()
    code, message = call(dataclasses.replace(COMMANDS["embed"], argv=argv), "OUT")
    assert (code, message.count("\n")) == (1, 1), message
    assert UNUSABLE[argv] in message
    assert snapshot() == before


def test_an_output_has_one_writer(command, inputs, tmp_path):
  # Folders of imports and exports appear at once.
  is_folder = bool(command.folder and command.resumes)
  with inside(command, inputs, tmp_path / "owned"):
    with futures.ThreadPoolExecutor(1) as other, contextlib.ExitStack() as owner:
      owned = work_folders.owned(os.path.abspath("OUT"), is_folder=is_folder)
      other.submit(owner.enter_context, owned).result()
      before = snapshot()
      code, message = call(command, "OUT")
      assert (code, message.count("\n")) == (1, 1), message
      assert "OUT is being written by another command (process " in message
      assert snapshot() == before
    assert call(command, "OUT")[0] == 0


_DAMAGE = {
  "emptied": lambda content: b"",
  "halved": lambda content: content[: len(content) // 2],
  "a flipped bit": lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
}


@pytest.mark.parametrize(
  "command", ["embed", "index", "data embed", "data mine-negatives", "eval"], indirect=True
)
def test_damaged_results_are_refused_or_made_again(command, inputs, tmp_path):
  with inside(command, inputs, tmp_path / "damaged"):
    assert call(command, "out")[0] == 0
    whole = snapshot()
    for name in (name for name in whole if is_below(name, ["out"]) and os.path.isfile(name)):
      for how, damaged in _DAMAGE.items():
        pathlib.Path(name).write_bytes(damaged(whole[name]))
        before = snapshot()
        code, message = call(command, "out")
        assert snapshot() == (before if code else whole), (name, how)
        assert not code or (code, message.count("\n")) == (1, 1), (name, how, message)
        pathlib.Path(name).write_bytes(whole[name])
