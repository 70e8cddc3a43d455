"""Runs the `vmsst` command, kills it at various moments, and reruns it.

  python killed_commands.py '{"imports": [...], "settings": {...}, "argv": [...], ...}'

All runs are forks of one process that has imported what they need. File operations below a run's
folder define its moments: it can be killed just before the n-th file is opened for writing, renamed
or removed there ("event", n), or by the kernel during a write, when a file gets longer than n bytes
("bytes", n). Then the same command is rerun undisturbed.
"""

import importlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys

_EVENTS = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir")


def run(imports, argv, folder, *, moments, settings=None, atomic=False, share=1.0):
  """Runs a command once undisturbed and once for each of `moments`, each in its own folder.

  Args:
    imports: Modules to import once.
    argv: Arguments of the `vmsst` command; paths are relative to the run's folder.
    folder: Contains `start`, the input folder of the command; each run has a copy of it.
    moments: Number of events over which kills are spread, and numbers of bytes.
    settings: Values by module and name, such as {"vmsst.cli.vector_jobs._SPAN_LINES": 8}.
    atomic: Whether the command refuses an output that exists, also of a run killed at its end.
    share: Share of the events, from the first, over which kills are spread; below 1 for commands
      whose threads make the number of events vary.

  Returns:
    The folders: that of the undisturbed run, and that of each moment.
  """
  options = {
    "imports": imports,
    "argv": argv,
    "folder": str(folder),
    "moments": moments,
    "settings": settings or {},
    "accepted": [0, 1] if atomic else [0],
    "share": share,
  }
  done = subprocess.run(
    [sys.executable, __file__, json.dumps(options)], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr[-3000:]
  found = json.loads(done.stdout.splitlines()[-1])
  return pathlib.Path(folder, "whole"), {key: pathlib.Path(folder, key) for key in found}


def contents(folder):
  """Returns the bytes of all files below a folder, by path."""
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


# --------------------------------------------------------------------------------------------
# In the forked process


def _main(imports, argv, folder, moments, settings, accepted, share):
  for name in ("vmsst.cli", *imports):
    importlib.import_module(name)
  for name, value in settings.items():
    module, _, attribute = name.rpartition(".")
    setattr(sys.modules[module], attribute, value)
  folder = pathlib.Path(folder)
  status, events = _child(argv, _copy(folder, "whole"), None)
  assert status == 0, "the undisturbed run failed"
  spread, sizes = moments
  events = int(share * events)
  steps = sorted({1 + i * (events - 1) // max(spread - 1, 1) for i in range(spread)})
  names = []
  for kind, number in [*(("event", n) for n in steps), *(("bytes", n) for n in sizes)]:
    name = f"{kind}_{number}"
    copy = _copy(folder, name)
    status, _ = _child(argv, copy, (kind, number))
    wanted = {"event": signal.SIGKILL, "bytes": signal.SIGXFSZ}[kind]
    assert status == -wanted, f"{name}: ended with {status}"
    status, _ = _child(argv, copy, None)
    assert status in accepted, f"{name}: given again, it ended with {status}"
    names.append(name)
  print(json.dumps(names))


def _copy(folder, name):
  return pathlib.Path(shutil.copytree(folder / "start", folder / name))


def _child(argv, folder, moment):
  """Runs the command in a fork; returns its exit status, or minus its signal, and event count."""
  reading, writing = os.pipe()
  child = os.fork()
  if not child:
    status = 70
    try:
      count = _watch(folder, moment)
      status = sys.modules["vmsst.cli"].main(argv)
      os.write(writing, str(count[0]).encode())
    finally:
      sys.stdout.flush()
      os._exit(status)
  os.close(writing)
  with os.fdopen(reading) as pipe:
    events = pipe.read()
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(events or 0)


def _watch(folder, moment):
  """Counts events below the folder from now on, and kills this process at its moment."""
  os.chdir(folder)
  kind, number = moment or (None, 0)
  if kind == "bytes":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
  count = [0]

  def hook(event, arguments):
    if event not in _EVENTS and not (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
      return
    path = "" if isinstance(arguments[0], int) else os.path.abspath(os.fsdecode(arguments[0]))
    if not path.startswith(f"{folder}{os.sep}"):
      return
    count[0] += 1
    if kind == "event" and count[0] == number:
      os.kill(os.getpid(), signal.SIGKILL)

  sys.addaudithook(hook)
  return count


if __name__ == "__main__":
  _main(**json.loads(sys.argv[1]))
