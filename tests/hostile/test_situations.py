"""Subcommands of `vmsst` in sampled situations: hostile inputs, outputs, disks and signals.

A situation is a state of an input, a state of the output and an event while the command runs.
Whatever it is, a command leaves its inputs as they are, exits with 0 only after a correct result,
otherwise reports one line, and leaves no new files but the state that it resumes from.
"""

import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import commands
import fake_encoders
import full_disks
import model_readers
import pytest
import tiny_encoders
import trials
from trials import files_below

import vmsst
from vmsst import cli
from vmsst.files import work_folders
from vmsst.inference import loading
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks
from vmsst.vectors import file_embedding

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
  **{x.name: x.apply for x in trials.fixed() if x.name in _KINDS},
}


def _old(name: str) -> str:
  pathlib.Path(name).write_text("old\n")
  return name


def _link(target: str, make: Callable[[str, str], None] = os.symlink) -> str:
  if make == os.link and not os.path.isfile(target):
    return target
  make(target, "out")
  return "out"


_Targets = dict[str, Callable[[str], str]]


def targets(command: Subcommand) -> tuple[_Targets, _Targets]:
  """Returns the states of an output that the command can write, and those that it refuses.

  Each is a function that prepares the output and returns its path, given that of an input.
  """
  new: _Targets = {"new": lambda name: "out", "in new folders": lambda name: "new/deep/out"}
  streams: _Targets = {
    "/dev/null": lambda name: "/dev/null",
    "a link to /dev/null": lambda name: _link("/dev/null"),
  }
  refused: _Targets = {
    "the input": lambda name: name,
    "below a file": lambda name: f"{_old('old')}/out",
    "empty": lambda name: "",
  }
  if command.folder:
    return new, {**refused, "an old file": lambda name: _old("out"), **streams}
  good = new | {
    "an old file": lambda name: _old("out"),
    "a link to an old file": lambda name: _link(_old("old")),
    "a dangling link": lambda name: _link("missing"),
    "next to a file of similar name": lambda name: _old("out.part")[:3],
  }
  bad = refused | {
    "the input by another path": lambda name: f"./../{pathlib.Path.cwd().name}/{name}",
    "a hard link to the input": lambda name: _link(name, os.link),
    "a link to the input": lambda name: _link(name),
    "a folder": lambda name: os.mkdir("out") or "out",
    "/dev/full": lambda name: "/dev/full",
  }
  (good if command.stream else bad).update(streams)
  return good, bad


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
  "the disk is full": lambda rng: full_disks.largest_file(4),
  "Ctrl-C": _interrupted(signal.SIGINT),
  "SIGTERM": _interrupted(signal.SIGTERM),
}

_CHANGES = {
  "the input changes between runs": (b"house", b"hut"),
  "the encoder changes between runs": (b"seed 1", b"seed 2"),
}


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
  for path in pathlib.Path().rglob("*"):
    if path.is_symlink():
      found[str(path)] = ("link", os.readlink(path))
    elif path.is_file():
      found[str(path)] = path.read_bytes()
    else:
      found[str(path)] = ("folder",) if path.is_dir() else ("special",)
  return found


OTHER = "".join(f"{line[::-1]}\n" for line in SENTENCES).encode()

LINES = "".join(f"{line}\n" for line in SENTENCES).encode()

PAIRS = "".join(f"{line[::-1]}\t{line}\n" for line in SENTENCES).encode()


def files(*ends):
  """Returns what reads the files with these name endings in a folder."""
  return lambda folder: {k: x for k, x in files_below(folder).items() if k.endswith(ends)}


def params(folder):
  arrays = tiny_encoders.read_arrays(folder.resolve() / "checkpoint_0")
  return {name: array.tobytes() for name, array in arrays.items()}


def scores(folder):
  found = json.loads((folder / "results.json").read_text())["benchmarks"]
  return {name: each["results"] for name, each in found.items()}


COMMANDS = {
  "embed": ("embed encoder a.txt OUT",
            {"folder": True, "resumes": ("",), "result": files(".npy")}),
  "score": ("score encoder a.txt b.txt --output OUT", {"resumes": (WORK,)}),
  "score by likelihood": (
    "score run a.txt b.txt --output OUT --by likelihood --languages en de", {"resumes": (WORK,)}),
  "mine": ("mine a.txt b.txt OUT --encoder encoder",
           {"stream": False, "blank": False,
            "resumes": (WORK, ".source.vectors", ".target.vectors")}),
  "search": ("search b.txt corpus vectors --output OUT --encoder encoder", {}),
  "index": ("index vectors OUT --factory IVF2,SQ8",
            {"folder": True, "resumes": ("",), "result": files("")}),
  "translate": ("translate run --to de --input a.txt --output OUT", {}),
  "vocab train": ("vocab train --input a.txt --output OUT --size 21",
                  {"stream": False, "blank": False}),
  **{f"export {kind}": (f"export {kind} run OUT", {"folder": True, "result": files("")})
     for kind in ("safetensors", "sentence-transformers", "onnx")},
  **{f"data {kind}": (f"data {kind} run OUT t/x.de-en.tsv",
                      {"folder": True, "resumes": ("",), "blank": False,
                       "result": files(".npy", ".gz")})
     for kind in ("embed", "mine-negatives")},
  **{f"import {kind}": (f"import {kind} m OUT", {"folder": True, "result": params})
     for kind in ("mt5", "bert", "vmsst")},
  "import ems": ("import ems x.safetensors OUT --vocabulary x.model",
                 {"folder": True, "result": params}),
  "eval": ("eval --encoder encoder --data data --out OUT --suite tatoeba",
           {"folder": True, "resumes": ("",), "result": scores}),
  "report": ("report results --out OUT",
             {"folder": True, "resumes": ("",), "result": files("")}),
}  # fmt: skip


def fake(content):
  """Returns an encoder whose vectors depend on the content of its file."""
  seed = content.decode()
  encoder = fake_encoders.FakeEncoder(lambda text: fake_encoders.random_vector(f"{seed} {text}"))
  encoder.digest = hashlib.sha256(content).hexdigest()
  return encoder


def open_fake(path, *args, **options):
  with open(path, "rb") as stream:
    return path, fake(stream.read())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
  """Returns files and folders by their first word, which commands name."""
  folder = tmp_path_factory.mktemp("situations")
  network = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
  encoder = sentence_encoder.SentenceEncoder(network.config, network.latent_dim)
  run = tiny_encoders.save_run(folder / "run", tiny_encoders.model_of(encoder, network=network))
  (folder / "corpus").write_bytes(LINES)
  file_embedding.embed_file(
    fake(b"seed 1"), str(folder / "corpus"), folder / "vectors", name="encoder"
  )
  (folder / "data" / "tatoeba").mkdir(parents=True)
  for code, content in (("deu", OTHER), ("eng", LINES)):
    (folder / "data" / "tatoeba" / f"tatoeba.deu-eng.{code}").write_bytes(content)
  chosen = vmsst.get_benchmarks(["tatoeba"])
  vmsst.evaluate(fake(b"seed 1"), chosen, folder / "data", folder / "results", name="x")
  return {
    **{name: folder / name for name in ("vectors", "data", "results")},
    "encoder": b"seed 1", "a.txt": LINES, "b.txt": OTHER, "corpus": LINES, "t/x.de-en.tsv": PAIRS,
    "run": run, **model_readers.ems_files(),
  }  # fmt: skip


@pytest.fixture
def subcommand(name, inputs, monkeypatch):
  """Returns a subcommand; encoders are fake, and the translator is loaded once."""
  if name == "export onnx":
    pytest.importorskip("onnx", reason="needs onnx to write models")
  monkeypatch.setattr(loading, "open_encoder", open_fake)
  translator = []

  def load_translator(path, load=loading.load_translator):
    translator[:] = translator or [load(path)]
    return translator[0]

  monkeypatch.setattr(loading, "load_translator", load_translator)
  argv, options = COMMANDS[name]
  kind = {"import mt5": model_readers.mt5_files, "import bert": model_readers.bert_files,
          "import vmsst": model_readers.vmsst_files}.get(name, dict)  # fmt: skip
  used = {word: inputs[word] for word in argv.split() if word in inputs}
  texts = tuple(word for word in used if word.endswith((".txt", ".tsv")))
  return Subcommand(argv, {**used, **kind()}, texts, **options)


_READ = {
  "TASK_FEATURE_LENGTHS": ("None", "3", "{'inputs': 'x'}", "{}"),
  "VOCABULARY": ("None", "3", "'x'"),
  "MODEL": ("None", "3"),
  "NOTHING": ("3",),
}

_OUTPUTS = ("3", "None", "'full/file'", "'/dev/null/x'")

_SIZES = ("2.5", "'x'", "-1", "True", "[2]", "1e400", "{}", "@nothing")
SETTINGS = {
  "train": {
    **dict.fromkeys(("TRAIN_STEPS", "EVAL_PERIOD", "BATCH_SIZE", "EMBED_DIM"), (*_SIZES, "None")),
    "CHECKPOINT_PERIOD": _SIZES,
    "RANDOM_SEED": ("2.5", "'x'", "99999999999999999999", "True"),
    "NUM_MICROBATCHES": ("2.5", "'x'", "-1", "3"),
    "MIXTURE_OR_TASK_NAME": ("'nowhere'", "None", "3", "''"),
    "OPTIMIZER": ("None", "3"),
    "INITIAL_CHECKPOINT_PATH": ("'nowhere'", "3", "'/nowhere'", "'/etc/passwd'"),
    "utils.create_learning_rate_scheduler.base_learning_rate": ("'x'", "None", "-1"),
    "train/utils.DatasetConfig.split": ("'nowhere'", "None", "3"),
    "nothing.nothing": ("3",),
    **_READ,
  },
  "eval": {
    "CHECKPOINT_PATH": ("'nowhere'", "'/nowhere'", "3", "None", "'/etc/passwd'", "'/etc'"),
    "CHECKPOINT_MODE": ("'nowhere'", "3", "None"),
    "EVAL_OUTPUT_DIR": _OUTPUTS,
    **_READ,
  },
  "infer": {
    "INFER_BATCH_SIZE": _SIZES,
    "INFER_TASK": ("'nowhere'", "None", "3"),
    "INFER_SPLIT": ("'nowhere'", "None", "3"),
    "INFER_OUTPUT_DIR": _OUTPUTS,
    "infer_script.infer.mode": ("'nowhere'", "3"),
    **_READ,
  },
}

MODEL_DIRS = (
  "run",
  "new/deep/run",
  "old",
  "full",
  "full/file",
  "full/file/run",
  "link",
  "az://b/x",
)

_T5X = """
import contextlib, io, json, pathlib, sys, traceback
import gin
from vmsst.launch.main import main

def snapshot():
  return sorted(
    (str(path), path.is_symlink() or (path.is_file() and path.read_bytes()))
    for path in pathlib.Path().rglob("*"))

outcomes = []
for arguments in json.load(sys.stdin):
  gin.clear_config(clear_constants=True)
  before = snapshot()
  try:
    with contextlib.redirect_stderr(io.StringIO()) as shown:
      main(arguments)
    outcome = "no error"
  except SystemExit:
    outcome = shown.getvalue().strip()
  except BaseException:
    outcome = traceback.format_exc()
  outcomes.append((outcome, snapshot() == before))
with open(sys.argv[1], "w") as stream:
  json.dump(outcomes, stream)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", SETTINGS)
def test_t5x_refuses_a_faulty_setting_or_model_dir_and_leaves_nothing(command, tmp_path):
  place = tmp_path / "place"
  (place / "old").mkdir(parents=True)
  (place / "full").mkdir()
  (place / "full" / "file").write_text("of the user")
  (place / "link").symlink_to("missing")
  settings = [(name, value) for name, values in SETTINGS[command].items() for value in values]
  # `t5x eval` and `t5x infer` find no checkpoint in any of the folders.
  unusable = MODEL_DIRS[4:6] if command == "train" else MODEL_DIRS[:6]
  drawn = [*itertools.product(settings, MODEL_DIRS), *itertools.product([("A", "2")], unusable)]
  random.Random(0).shuffle(drawn)
  drawn = drawn[: 120 if command == "train" else 50]
  given = [*commands.TINY, *([] if command == "train" else [f"--gin_file=runs/{command}.gin"])]
  arguments = [
    [command, *given, f"--gin.MODEL_DIR='{'' if '://' in path else f'{place}/'}{path}'",
     f"--gin.{name}={value}"]
    for (name, value), path in drawn
  ]  # fmt: skip
  ends = tmp_path / "ends.json"
  commands.script(_T5X, ends, cwd=place, text=json.dumps(arguments), timeout=1500)
  faults = []
  for situation, (outcome, unchanged) in zip(drawn, json.loads(ends.read_text()), strict=True):
    if not (unchanged and outcome.startswith("t5x: error: ") and "\n" not in outcome):
      faults.append(f"{situation}: {'' if unchanged else 'files have changed; '}{outcome[-400:]}")
  assert not faults, f"{len(faults)} of {len(drawn)}\n" + "\n".join(faults)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_many_situations(name, subcommand, tmp_path):
  command, rng = subcommand, random.Random(name)
  count = 20 if name.startswith(("import", "export", "report", "score by")) else 100
  good, bad = targets(command)
  faults, results = [], {}
  for number in range(count):
    text = rng.choice(command.texts or ("",))
    source = rng.choice(list(SOURCES)) if command.texts and rng.random() < 0.6 else "plain"
    target = rng.choice([*good, *bad])
    event = rng.choice(["nothing happens"] * 3 + ["Ctrl-C", "SIGTERM", *_EVENTS, *_CHANGES])
    key = text, "plain" if source in SAME else source
    if key not in results:
      with _folder(command, tmp_path / "undisturbed"):
        SOURCES[source](pathlib.Path(text)) if text else None
        done = _call(command, "out")[0] == 0
        results[key] = command.result(pathlib.Path("out")) if done else None
    try:
      with _folder(command, tmp_path / str(number)):
        _run(command, text, source, target, event, results[key])
    except AssertionError as error:
      faults.append(f"{text} is {source}, output is {target}, {event}: {error}")
  assert not faults, f"{command.argv}: {len(faults)} of {count}\n" + "\n".join(faults)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_has_one_writer(name, subcommand, tmp_path):
  # Folders of imports and exports appear at once.
  inside = subcommand.folder and not name.startswith(("import", "export"))
  with _folder(subcommand, tmp_path / "owned"):
    with futures.ThreadPoolExecutor(1) as other, contextlib.ExitStack() as owner:
      owned = work_folders.owned(os.path.abspath("OUT"), is_folder=inside)
      other.submit(owner.enter_context, owned).result()
      before = _snapshot()
      code, message = _call(subcommand, "OUT")
      assert (code, message.count("\n")) == (1, 1), message
      assert "OUT is being written by another command (process " in message
      assert _snapshot() == before
    assert _call(subcommand, "OUT")[0] == 0
