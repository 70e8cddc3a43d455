"""Subcommands of `vmsst` with unusable inputs, outputs in use, and damaged results."""

import contextlib
import functools
import hashlib
import io
import os
import pathlib
import shutil
from concurrent import futures

import entry_points
import fake_encoders
import line_files
import pytest
import trials
from entry_points import COMMANDS, FOLDERS

from vmsst import cli
from vmsst.encoder import loading
from vmsst.jobs import outputs


def call(command, output):
  """Returns exit code and standard error of a command; an exception is an AssertionError."""
  argv = [output if word == "OUT" else word for word in command.split()]
  errors = io.StringIO()
  with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
    try:
      code = cli.main(argv)
    except BaseException as error:
      raise AssertionError(f"{type(error).__name__}: {error}: {errors.getvalue()}") from error
  return code, errors.getvalue()


@contextlib.contextmanager
def inside(command, inputs, folder):
  """Makes a folder with the input files of a command the working one, then removes it."""
  for path in (inputs / word for word in command.split()):
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


# Commands with encoders, and what is wrong with their other inputs or outputs.
UNUSABLE = {
  "embed encoder a.txt none OUT": "none: cannot be opened",
  "score encoder a.txt t": "t: cannot be opened: Is a directory",
  "score encoder a.txt a.txt --output t": "t is a folder",
  "mine a.txt b.txt OUT --encoder encoder --gold gold/text": "gold/text:1: 'one' is not",
  "mine a.txt b.txt OUT --encoder encoder --index none none": "none: not a folder",
  "search b.txt corpus none": "none: no job.json",
  "translate run --to de --input none": "none: cannot be opened",
  "eval encoder --out OUT --data none": "none: not a folder",
  "eval encoder --out OUT --bitext t/x.de-en.tsv --seen xq": "xq",
  "data embed run a.txt t/x.de-en.tsv": "a.txt is not a folder",
  "data mine-negatives run t/x.de-en.tsv OUT --corpus none": "none: cannot be opened",
  "export safetensors run t": "t exists already",
  "push run me/x --results none": "none: not a folder",
}


@pytest.mark.parametrize("argv", UNUSABLE)
def test_inputs_are_checked_before_an_encoder_is_loaded(argv, inputs, tmp_path, monkeypatch):
  def refuse(*_, **__):
    raise AssertionError("an encoder was loaded")

  for name in ("load", "load_translator", "open_encoder", "read"):
    monkeypatch.setattr(loading, name, refuse)
  folder = shutil.copytree(inputs, tmp_path / "inputs")
  with contextlib.chdir(folder):
    line_files.write_lines(folder / "gold" / "text", ["one"])
    before = snapshot()
    code, message = call(argv, "OUT")
    assert (code, message.count("\n")) == (1, 1), message
    assert UNUSABLE[argv] in message
    assert snapshot() == before


def test_an_output_has_one_writer(command, inputs, tmp_path):
  with inside(command, inputs, tmp_path / "owned"):
    with futures.ThreadPoolExecutor(1) as other, contextlib.ExitStack() as owner:
      owned = outputs.ownership(os.path.abspath("OUT"), is_folder=command.startswith(FOLDERS))
      other.submit(owner.enter_context, owned).result()
      before = snapshot()
      code, message = call(command, "OUT")
      assert (code, message.count("\n")) == (1, 1), message
      assert "OUT is being written by another command" in message
      assert snapshot() == before
    assert call(command, "OUT")[0] == 0


_DAMAGE = {
  "emptied": lambda content: b"",
  "halved": lambda content: content[: len(content) // 2],
  "a flipped bit": lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
}


@pytest.mark.parametrize("command", ["embed", "index", "data embed", "eval"], indirect=True)
def test_damaged_results_are_refused_or_made_again(command, inputs, tmp_path):
  with inside(command, inputs, tmp_path / "damaged"):
    assert call(command, "out")[0] == 0
    whole = snapshot()
    for name in (name for name in whole if name.startswith("out/") and os.path.isfile(name)):
      for how, damaged in _DAMAGE.items():
        pathlib.Path(name).write_bytes(damaged(whole[name]))
        before = snapshot()
        code, message = call(command, "out")
        assert snapshot() == (before if code else whole), (name, how)
        assert not code or (code, message.count("\n")) == (1, 1), (name, how, message)
        pathlib.Path(name).write_bytes(whole[name])
