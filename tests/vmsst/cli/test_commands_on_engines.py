"""Commands on all engines, also with parts of a Ray cluster killed, write what one process does."""

import re
import signal
import subprocess
import sys

import killed_commands
import pytest
import servers
import toy_units

# By command: files of finished units, and how many there are when a part is killed.
KILLED = {
  toy_units.build: ("parts/*clean*.json", 2),
  toy_units.embed: ("vectors-*.npy.json", 2),
  toy_units.mine: ("block-*.npz.json", 2),
  toy_units.search: ("vectors-*.npy.json", 2),
  toy_units.search_spans: ("block-*.npz.json", 1),
  toy_units.evaluate: ("best-*.npz.json", 1),
}
# An index of this size is built too quickly to be killed.
COMMANDS = [*KILLED, toy_units.index]


@pytest.fixture(scope="module")
def nodes():
  pytest.importorskip("ray")
  with servers.cluster() as found:
    yield found


# Times, and digests of results, which name their folders.
_CHANGING = re.compile(rb'"seconds": \{[^}]*\}|"content": "\w+"')


def contents(folder):
  """Returns the files that a command has written, without the paths of its folder and times."""
  found = killed_commands.contents(folder / "out")
  return {
    path: _CHANGING.sub(b"", content.replace(str(folder).encode(), b""))
    for path, content in found.items()
  }


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
  """Returns a function that returns the files which a command writes on this machine."""
  kept = {}

  def run(make):
    if make not in kept:
      folder = tmp_path_factory.mktemp("local")
      argv = [*make(folder), "--engine=local", "--workers=1"]
      command = [sys.executable, "-m", "vmsst.cli", *argv]
      subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
      kept[make] = contents(folder)
    return kept[make]

  return run


def check_same(found, expected):
  assert sorted(found) == sorted(expected)
  assert [path for path in expected if found[path] != expected[path]] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["worker", "driver", "node"])
@pytest.mark.parametrize("make", KILLED, ids=lambda make: make.__name__)
def test_what_is_killed_on_a_ray_cluster_is_done_again(nodes, expected, tmp_path, make, fault):
  if make == toy_units.build:
    pytest.importorskip("tensorflow_datasets")
  argv = [*make(tmp_path), "--engine=ray", f"--ray-address={nodes.address}"]

  def start():
    command = [sys.executable, "-m", "vmsst.cli", *argv]
    return nodes.driver(command, cwd=tmp_path, stdout=subprocess.DEVNULL)

  process = start()
  servers.wait_for_files(process, tmp_path, *KILLED[make])
  if fault == "driver":
    process.kill()
    assert process.wait() < 0
    process = start()
  elif fault == "node":
    nodes.kill_node()
  else:
    nodes.kill_worker()
  assert process.wait(timeout=600) == 0
  check_same(contents(tmp_path), expected(make))


@pytest.mark.slow
def test_sigterm_ends_a_command_on_a_ray_cluster_with_one_line(nodes, tmp_path):
  argv = [*toy_units.search(tmp_path), "--engine=ray", f"--ray-address={nodes.address}"]
  command = [sys.executable, "-m", "vmsst.cli", *argv]
  process = nodes.driver(command, cwd=tmp_path, stderr=subprocess.PIPE)
  servers.wait_for_files(process, tmp_path, *KILLED[toy_units.search])
  process.terminate()
  _, messages = process.communicate(timeout=120)
  assert process.returncode == 128 + signal.SIGTERM
  assert messages.splitlines()[-1:] == ["vmsst: terminated"]
  assert "***" not in messages


@pytest.mark.slow
def test_a_ray_client_writes_the_same(nodes, expected, tmp_path):
  command = [sys.executable, "-m", "vmsst.cli", *toy_units.mine(tmp_path), "--engine=ray"]
  process = nodes.driver([*command, f"--ray-address={nodes.client_address}"], cwd=tmp_path)
  assert process.wait(timeout=600) == 0
  check_same(contents(tmp_path), expected(toy_units.mine))


@pytest.mark.slow
@pytest.mark.parametrize("make", COMMANDS, ids=lambda make: make.__name__)
def test_two_processes_write_the_same(expected, tmp_path, make):
  command = [sys.executable, "-m", "vmsst.cli", *make(tmp_path), "--workers=2"]
  subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
  check_same(contents(tmp_path), expected(make))
