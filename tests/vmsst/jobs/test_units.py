"""Units of work, the engines that do them, and several processes on one machine."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import socket
import sys
import threading
import types

import pytest
import toy_units

from vmsst import errors
from vmsst.jobs import base, engines, ray_cluster, work_folders


def do(units):
  return list(base.do("squares", units))


def test_a_unit_writes_its_file_and_what_it_returns(tmp_path):
  (unit,) = toy_units.squares(tmp_path, 4)[3:]
  assert base.result(unit) is None
  assert do([unit]) == [unit]
  assert toy_units.contents(tmp_path) == {"3.txt": "9"}
  assert base.result(unit)["square"] == 9
  assert str(unit) == unit.path


def test_a_unit_is_done_again_only_if_its_key_file_or_result_differ(tmp_path):
  (unit,) = toy_units.squares(tmp_path, 3)[2:]
  do([unit])
  path, result = pathlib.Path(unit.path), pathlib.Path(base.result_path(unit.path))
  time = result.stat().st_mtime_ns
  do([unit])
  assert result.stat().st_mtime_ns == time
  other = dataclasses.replace(unit, number=5)
  assert other.key != unit.key
  assert base.result(other) is None
  for broken in (b"", b"[]", b"{}", b'{"key": "x"}', result.read_bytes()[:-1]):
    result.write_bytes(broken)
    assert base.result(unit) is None
    do([unit])
    assert base.result(unit)["square"] == 4
  path.write_text("44")
  assert base.result(unit) is None
  path.unlink()
  assert base.result(unit) is None
  do([unit])
  assert path.read_text() == "4"


def test_a_file_of_another_unit_does_not_keep_an_old_result(tmp_path):
  first, second = (toy_units.Square(n, str(tmp_path / "x")) for n in (2, 3))
  do([first])
  with pytest.raises(errors.InputError):
    do([toy_units.Failing(3, str(tmp_path / "x"))])
  assert base.result(first) is None
  assert base.result(second) is None


def test_stages_overlap_in_order_with_those_of_the_neighbors(tmp_path):
  log = tmp_path / "log"
  units = toy_units.squares(tmp_path, 6, toy_units.Staged, log=str(log))
  for n in range(6):
    neighbors = [f"write {n - 1}"] * (n > 0) + [f"read {n + 1}"] * (n < 5)
    units[n] = dataclasses.replace(units[n], neighbors=tuple(neighbors))
  assert do(units) == units
  assert toy_units.contents(tmp_path) == {f"{n}.txt": str(n**2) for n in range(6)}
  lines = log.read_text().splitlines()
  for stage in ("read", "compute", "write"):
    assert [line for line in lines if stage in line] == [f"{stage} {n}" for n in range(6)]
  # At most three are in memory: one is read only when the one before the last is being written.
  for n in range(6 - 3):
    assert lines.index(f"compute {n + 1}") > lines.index(f"compute {n}")
    assert lines.index(f"read {n + 3}") > lines.index(f"compute {n + 1}")


@pytest.mark.parametrize("stage", ["read", "compute", "write"])
def test_what_is_done_before_a_failure_is_kept_and_the_failed_unit_is_named(tmp_path, stage):
  units = toy_units.squares(tmp_path, 5, toy_units.Staged)
  broken = [dataclasses.replace(u, fails_in=stage) if u.number == 2 else u for u in units]
  with pytest.raises(errors.InputError, match=rf"squares of .*2\.txt: {stage} .*to resume"):
    do(broken)
  assert {"0.txt", "1.txt"} <= set(toy_units.contents(tmp_path)) <= {"0.txt", "1.txt", "3.txt"}
  assert all(base.result(unit) is not None for unit in units[:2])
  do(units)
  assert len(toy_units.contents(tmp_path)) == 5


def test_errors_of_the_program_keep_their_type(tmp_path):
  unit = toy_units.Square("no number", str(tmp_path / "x"))
  with pytest.raises(TypeError):
    do([unit])


class Elsewhere(engines.Engine):
  """An engine whose workers see other files, or whose files are seen late."""

  in_process = this_machine = False

  def __init__(self, seen_after=None):
    self.seen_after = seen_after

  def work(self, title, units):
    if self.seen_after is not None:
      make = functools.partial(list, base.do(title, units))
      threading.Timer(self.seen_after, make).start()
    return iter(units)


def test_only_missing_results_are_made(tmp_path):
  units = toy_units.squares(tmp_path, 4)
  engines.run("squares", units[:2], engines.Local())
  stamps = [base.result(unit) for unit in units[:2]]
  made = []

  class Noting(engines.Local):
    def work(self, title, units):
      made.extend(units)
      return super().work(title, units)

  engines.run("squares", units, Noting())
  assert made == units[2:]
  assert [base.result(unit) for unit in units[:2]] == stamps
  engines.run("squares", units, Elsewhere())  # Nothing is to be done.


def test_a_result_that_is_not_here_is_an_error_that_names_the_unit(tmp_path, monkeypatch):
  monkeypatch.setattr(engines, "_VISIBLE_SECONDS", 0.2)
  with pytest.raises(errors.InputError, match=r"squares of .*0\.txt: its result is missing .*sha"):
    engines.run("squares", toy_units.squares(tmp_path, 2), Elsewhere())


def test_results_that_a_network_file_system_shows_late_are_awaited(tmp_path):
  units = toy_units.squares(tmp_path, 2)
  engines.run("squares", units, Elsewhere(seen_after=0.3))
  assert len(toy_units.contents(tmp_path)) == 2


def test_several_processes_make_the_same_files_as_this_one(tmp_path, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
  whole = toy_units.squares(tmp_path / "one", 5)
  engines.run("squares", whole, engines.Local())
  assert {base.result(unit)["process"] for unit in whole} == {os.getpid()}
  units = toy_units.squares(tmp_path / "two", 5)
  engines.run("squares", units, engines.Local(2, gpus_per_worker=1))
  assert toy_units.contents(tmp_path / "two") == toy_units.contents(tmp_path / "one")
  made = [base.result(unit) for unit in units]
  assert os.getpid() not in {each["process"] for each in made}
  gpu_of = {each["process"]: each["gpus"] for each in made}
  assert len(set(gpu_of.values())) == len(gpu_of)
  assert set(gpu_of.values()) <= {"5", "6"}


def test_gpus_that_do_not_exist_are_an_error(tmp_path, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
  with pytest.raises(errors.InputError, match=r"3 workers .* CUDA_VISIBLE_DEVICES=5,6"):
    engines.run("squares", toy_units.squares(tmp_path, 5), engines.Local(3, gpus_per_worker=1))


def test_a_killed_or_failing_worker_is_one_error_that_names_the_unit(tmp_path):
  units = toy_units.squares(tmp_path, 3)
  for kind, problem in (
    (toy_units.Fatal, "a worker process was killed at .*2.txt"),
    (toy_units.Failing, "squares of .*2.txt: .*No space left"),
  ):
    broken = [*units[:2], kind(2, units[2].path)]
    with pytest.raises(errors.InputError, match=f"{problem}.*to resume"):
      engines.run("squares", broken[2:], engines.Local(2))
  # The work of others, which may take hours, is not awaited.
  running = toy_units.Slow(2, units[2].path)
  with pytest.raises(errors.InputError, match="No space left"):
    engines.run("squares", [toy_units.Failing(1, units[1].path), running], engines.Local(2))
  assert not pathlib.Path(running.path).exists()
  engines.run("squares", units, engines.Local(2))
  assert len(toy_units.contents(tmp_path)) == 3


def test_a_writer_resumes_after_the_parts_before_the_first_gap(tmp_path):
  output = tmp_path / "lines.txt"
  with work_folders.owned(output):
    writer = base.LineWriter(output, ["a"])
    for number in range(3):
      writer.append([str(number)])
    writer.append(lines := ["a\u2028b\x85c", ""])  # characters that str.splitlines takes for ends
    assert writer.lines(3) == lines
    # A writer that was killed while it removed its parts.
    (part,) = pathlib.Path(work_folders.work_path(output)).glob("*1")
    part.unlink()
    assert base.LineWriter(output, ["b"]).parts == 0
    again = base.LineWriter(output, ["a"])
    assert again.parts == 1
    for number in (1, 2):
      again.append([str(number)])
    again.finish()
  assert output.read_text() == "0\n1\n2\n"


_DAMAGE = {
  "emptied": lambda content, other: b"",
  "halved": lambda content, other: content[: len(content) // 2],
  "a changed byte": lambda content, other: content.replace(b"line 1", b"line 7"),
  "swapped": lambda content, other: other,
}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_part_is_written_again_and_never_in_the_file(tmp_path, damage):
  output = tmp_path / "lines.txt"
  with work_folders.owned(output):
    writer = base.LineWriter(output, [])
    for number in range(3):
      writer.append([f"line {number}"])
    parts = sorted(pathlib.Path(work_folders.work_path(output)).glob("lines-*"))
    content, other = (parts[number].read_bytes() for number in (1, 2))
    parts[1].write_bytes(_DAMAGE[damage](content, other))
    assert parts[1].read_bytes() != content
    with pytest.raises(errors.InputError, match="000001 has changed; rerun the same command"):
      writer.finish()
    assert not output.exists()
    again = base.LineWriter(output, [])
    assert again.parts == 1
    for number in (1, 2):
      again.append([f"line {number}"])
    again.finish()
  assert output.read_text() == "line 0\nline 1\nline 2\n"


class RayError(Exception):
  pass


class TaskError(RayError):
  def __init__(self, cause):
    self.cause = cause


class FakeRay:
  """Does tasks in this process; the first `losses` of each are lost."""

  exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=TaskError)

  def __init__(self, losses=0, resources=None):
    self.losses, self.resources = losses, resources or {"CPU": 2.0}
    self.started, self.options = [], None

  def is_initialized(self):
    return True

  def cluster_resources(self):
    return self.resources

  def remote(self, **options):
    self.options = options
    return lambda function: types.SimpleNamespace(
      remote=lambda *arguments: types.SimpleNamespace(
        future=lambda: self._future(function, arguments)
      )
    )

  def _future(self, function, arguments):
    self.started.append(arguments)
    future = concurrent.futures.Future()
    try:
      if self.started.count(arguments) <= self.losses:
        raise RayError("The node died.\nIts log: ...")
      try:
        future.set_result(function(*arguments))
      except Exception as error:
        raise TaskError(error) from None
    except RayError as error:
      future.set_exception(error)
    return future


def run(monkeypatch, ray, units, **options):
  monkeypatch.setitem(sys.modules, "ray", ray)
  engines.run("squares", units, ray_cluster.Ray(**options))


def test_ray_must_be_installed(tmp_path, monkeypatch):
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[ray\]'"):
    run(monkeypatch, None, toy_units.squares(tmp_path, 1))


def test_lost_units_are_done_again_but_not_forever(tmp_path, monkeypatch):
  units = toy_units.squares(tmp_path, 3)
  ray = FakeRay(losses=ray_cluster.ATTEMPTS - 1)
  run(monkeypatch, ray, units)
  assert len(ray.started) == 3 * ray_cluster.ATTEMPTS
  assert ray.options == {"max_retries": 0, "max_calls": 0, "num_cpus": 1, "num_gpus": 0}
  assert toy_units.contents(tmp_path) == {"0.txt": "0", "1.txt": "1", "2.txt": "4"}
  (unit,) = toy_units.squares(tmp_path / "other", 1)
  lost = r"squares of .*0\.txt: its worker was lost 4 times, .*: The node died\. .*to resume$"
  with pytest.raises(errors.InputError, match=lost):
    run(monkeypatch, FakeRay(losses=ray_cluster.ATTEMPTS), [unit])


def test_a_failed_unit_is_not_done_again(tmp_path, monkeypatch):
  ray = FakeRay()
  with pytest.raises(errors.InputError, match=r"^squares of .*[01]\.txt: .*No space left"):
    run(monkeypatch, ray, toy_units.squares(tmp_path, 3, toy_units.Failing))
  assert len(ray.started) <= 2  # As many as have room.


def test_a_cluster_without_gpus_is_an_error(tmp_path, monkeypatch):
  units = toy_units.squares(tmp_path, 3)
  with pytest.raises(errors.InputError, match=r"--gpus-per-worker is 2, but .* has 1 GPUs"):
    run(monkeypatch, FakeRay(resources={"CPU": 9.0, "GPU": 1.0}), units, gpus_per_worker=2)
  ray = FakeRay(resources={"CPU": 9.0, "GPU": 4.0})
  run(monkeypatch, ray, units, gpus_per_worker=2)
  assert ray.options["num_gpus"] == 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no such host:1"])
def test_a_cluster_that_does_not_answer_is_an_error(tmp_path, monkeypatch, address):
  ray = FakeRay()
  ray.is_initialized = lambda: False
  with pytest.raises(errors.InputError, match=f"no Ray cluster at {address}: .*; start it"):
    run(monkeypatch, ray, toy_units.squares(tmp_path, 1), address=address)


SETTINGS = b"\0\0\6\4\0\0\0\0\0\0\4\0\0\1\0"  # a frame in HTTP/2


@pytest.mark.parametrize(
  ("answer", "message"),
  [
    (b"", "timed out"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program listens there"),
    (SETTINGS, None),
  ],
)
def test_another_program_at_the_address_of_a_cluster_is_an_error(
  tmp_path, monkeypatch, answer, message
):
  ray, addresses = FakeRay(), []
  ray.is_initialized, ray.init = lambda: False, lambda address, **_: addresses.append(address)
  monkeypatch.setattr(ray_cluster, "_REACH_SECONDS", 20 if answer else 0.1)
  with socket.create_server(("127.0.0.1", 0)) as server:

    def serve():
      client, _ = server.accept()
      with client:
        assert client.recv(4) == b"PRI "
        client.sendall(answer)
        client.makefile("rb").read()  # until it is closed

    thread = threading.Thread(target=serve)
    thread.start()
    address = f"127.0.0.1:{server.getsockname()[1]}"
    expected = pytest.raises(errors.InputError, match=rf"no Ray cluster at {address}: {message}; ")
    with expected if message else contextlib.nullcontext():
      run(monkeypatch, ray, toy_units.squares(tmp_path, 1), address=address)
    thread.join()
  assert addresses == ([] if message else [address])


@pytest.mark.parametrize("during", [True, False])
def test_ray_does_not_replace_signal_handlers(tmp_path, monkeypatch, during):
  ray, numbers = FakeRay(), []

  def stop(number, frame):
    numbers.append(number)
    raise KeyboardInterrupt

  def init(address, **_):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    if during:
      signal.raise_signal(signal.SIGTERM)

  ray.is_initialized, ray.init = lambda: False, init
  former = signal.signal(signal.SIGTERM, stop)
  try:
    with pytest.raises(KeyboardInterrupt) if during else contextlib.nullcontext():
      run(monkeypatch, ray, toy_units.squares(tmp_path, 1))
    assert signal.getsignal(signal.SIGTERM) == stop
  finally:
    signal.signal(signal.SIGTERM, former)
  assert numbers == [signal.SIGTERM] * during
