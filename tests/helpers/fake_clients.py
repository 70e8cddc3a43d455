"""Stand-ins for sbatch, srun, scontrol and gcloud, which run everything on this machine.

Run them under one of these names, with FAKE_FOLDER in the environment: a folder with `calls`, a
line of JSON per call, and their other state.
"""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

NAMES = ("sbatch", "srun", "scontrol", "gcloud")


def install(folder):
  """Writes the commands to `folder`/bin; returns the environment variables to find them."""
  (folder / "bin").mkdir()
  for name in NAMES:
    path = folder / "bin" / name
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {__file__} {name} "$@"\n')
    path.chmod(0o755)
  path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
  return {"PATH": path, "FAKE_FOLDER": str(folder)}


def calls(folder):
  """Returns the calls so far, a list of words each."""
  return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def _keep(folder, words):
  with (folder / "calls").open("a") as stream:
    stream.write(json.dumps(words) + "\n")


def _sbatch(folder, words):
  """Runs the script from standard input at once, and again while it is requeued."""
  script = folder / "script"
  script.write_text(sys.stdin.read())
  tasks = re.search(r"#SBATCH --ntasks-per-node=(\d+)", script.read_text())[1]
  nodes = re.search(r"#SBATCH --nodes=(\d+)", script.read_text())[1]
  for restarts in range(5):
    (folder / "requeued").unlink(missing_ok=True)
    environment = {
      **os.environ,
      "SLURM_JOB_ID": str(os.getpid()),
      "SLURM_NTASKS": str(int(tasks) * int(nodes)),
      "SLURM_RESTART_COUNT": str(restarts),
    }
    done = subprocess.run(["bash", script, *words], env=environment, check=False)
    if not (folder / "requeued").exists():
      return done.returncode
  return 1


def _scontrol(folder, words):
  assert words == ["requeue", os.environ["SLURM_JOB_ID"]]
  (folder / "requeued").touch()
  return 0


def _srun(folder, words):
  """Runs the command once per task; sends SIGTERM at the first start if a task waits for it.

  A task waits for it when it creates a file `waits` in the folder.
  """
  while words[0].startswith("--"):
    words = words[1:]
  count = int(os.environ["SLURM_NTASKS"])
  tasks = [
    subprocess.Popen(
      words,
      env={
        **os.environ,
        "SLURM_PROCID": str(i),
        "SLURM_LOCALID": str(i),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
      },
    )
    for i in range(count)
  ]
  while any(task.poll() is None for task in tasks):
    if (folder / "waits").exists() and os.environ["SLURM_RESTART_COUNT"] == "0":
      (folder / "waits").unlink()
      for task in tasks:
        task.send_signal(signal.SIGTERM)
      break
    time.sleep(0.02)
  return max(task.wait() for task in tasks)


def _gcloud(folder, words):
  """Simulates a TPU whose state is in a file; it is preempted in the first connection if wanted."""
  state = folder / "state"
  what = next(word for word in words if word in ("describe", "create", "delete", "ssh"))
  if what == "create":
    state.write_text("READY")
    return 0
  if not state.exists():
    return 1
  if what == "describe":
    print(state.read_text())
  elif what == "delete":
    state.unlink()
  else:
    if (folder / "preempt").exists():
      (folder / "preempt").unlink()
      state.write_text("PREEMPTED")
      return 255
    [command] = [word.removeprefix("--command=") for word in words if "--command=" in word]
    home = {**os.environ, "HOME": str(folder)}
    return subprocess.run(["bash", "-c", command], env=home, check=False).returncode
  return 0


def main():
  """Runs the command named by the first argument."""
  name, *words = sys.argv[1:]
  folder = pathlib.Path(os.environ["FAKE_FOLDER"])
  _keep(folder, [name, *words])
  commands = {"sbatch": _sbatch, "srun": _srun, "scontrol": _scontrol, "gcloud": _gcloud}
  return commands[name](folder, words)


if __name__ == "__main__":
  sys.exit(main())
