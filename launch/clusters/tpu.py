"""A shell script that has a Cloud TPU made, runs a command on all of its workers, and starts it
anew, on a new TPU, whenever the TPU is preempted.

The script runs where gcloud is, and for as long as the training. All workers of a pod run the same
command; JAX finds the others by the TPU's metadata.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from vmsst.launch.clusters import jobs

_NAME = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME_TEXT = "a name has lower-case letters, digits and -, and starts with a letter"
_PLAIN = r"[A-Za-z0-9._:-]+"
_PLAIN_TEXT = "only letters, digits and ._:- are understood here"

# On a worker. The lock is the running command's own: who holds it is still at work, left over from
# a connection that broke, and is asked to stop and waited for before the next one starts.
_ON_WORKER = f"""\
cd ~ || exit
flock --nonblock .vmsst-launch.lock true || kill -TERM "$(cat .vmsst-launch.pid)"
task=$(
  cat <<'TASK'
echo $$ >.vmsst-launch.pid
{jobs.TASK}TASK
)
exec flock --timeout 600 .vmsst-launch.lock sh -c "$task" task \
"""

_LOOP = """\
on_all_workers() {
  gcloud compute tpus tpu-vm ssh "$name" "${at[@]}" --worker=all --command="$1"
}

failures=0
while true; do
  case "$(state)" in
    READY | ACTIVE) ;;
    "")
      echo "$name: asking for a TPU"
      create || sleep "$pause"
      continue
      ;;
    PREEMPTED | TERMINATED | SUSPENDED | FAILED)
      echo "$name: preempted; deleting what is left of it"
      delete || sleep "$pause"
      continue
      ;;
    *)
      sleep "$pause"
      continue
      ;;
  esac
  on_all_workers "$command"
  status=$?
  if [ "$status" -eq 0 ]; then
    echo "$name: finished"
    break
  fi
  sleep "$pause" # a preemption shows in the state a little later
  [ "$status" -ne "$stopped" ] || continue
  case "$(state)" in
    READY | ACTIVE)
      failures=$((failures + 1))
      echo "$name: the command gave $status on a TPU that is there ($failures of $most failures)"
      [ "$failures" -lt "$most" ] || break
      ;;
    *) failures=0 ;;
  esac
done
"""


@dataclasses.dataclass(frozen=True)
class TpuJob:
  """A command for all workers of a TPU VM or a pod slice.

  Attributes:
    command: What each worker runs.
    name: Name of the TPU, and of its queued resource.
    zone: Zone, such as us-central2-b.
    accelerator: Accelerator type, such as v4-8 or v5litepod-16.
    version: Runtime version, such as tpu-ubuntu2204-base.
    project: Project; None takes gcloud's.
    spot: Whether it may be preempted, at a lower price.
    queued: Whether to wait in the queue for it (queued resource) or to ask again and again.
    environment: Variables for the command.
    setup: Shell code for each worker, before every start of the command; so it must bear being run
      again (`pip install ...`).
    failures: Failures of the command, on a TPU that is there, after which to give up.
    delete: Whether to delete the TPU in the end.
    pause: Seconds between looks at its state.
  """

  command: Sequence[str]
  name: str
  zone: str
  accelerator: str
  version: str
  project: str | None = None
  spot: bool = False
  queued: bool = False
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  setup: str = ""
  failures: int = 3
  delete: bool = False
  pause: int = 30


def script(job: TpuJob) -> str:
  """The script, for bash.

  Raises:
    InputError: a name that gcloud would not take, or no command.
  """
  jobs.check_command(job.command)
  jobs.check("--name", job.name, _NAME, _NAME_TEXT)
  plain = {
    "--zone": job.zone,
    "--accelerator": job.accelerator,
    "--version": job.version,
    **({"--project": job.project} if job.project else {}),
  }
  for name, value in plain.items():
    jobs.check(name, value, _PLAIN, _PLAIN_TEXT)
  project = [f"--project={job.project}"] if job.project else []
  lines = [
    "#!/bin/bash",
    "set -u",
    f"name={job.name}",
    f"at=({jobs.quoted([f'--zone={job.zone}', *project])})",
    f"most={job.failures}",
    f"pause={job.pause}",
    f"stopped={jobs.STOPPED}",
    "# shellcheck disable=SC2016 # it is for the workers' shells",
    f"command={shlex.quote(_worker_command(job))}",
    "",
    *_functions(job),
    "",
    _LOOP,
    *(["delete"] if job.delete else [f'echo "$name is still there; to delete it: {_delete(job)}"']),
    'exit "$status"',
  ]
  return "\n".join(lines) + "\n"


def _worker_command(job: TpuJob) -> str:
  before = [*jobs.exports(job.environment), *jobs.setup_lines(job.setup)]
  return "\n".join([*before, _ON_WORKER + jobs.quoted(job.command)])


def _functions(job: TpuJob) -> list[str]:
  """The shell functions `state`, `create` and `delete`."""
  what = [
    f"--accelerator-type={job.accelerator}",
    f"{'--runtime-version' if job.queued else '--version'}={job.version}",
    *(["--spot"] if job.spot else []),
  ]
  group = _group(job)
  node = ' --node-id="$name"' if job.queued else ""
  state = "value(state.state)" if job.queued else "value(state)"
  return [
    "state() {",
    f'  gcloud compute tpus {group} describe "$name" "${{at[@]}}" --format={shlex.quote(state)} \\',
    "    2>/dev/null",
    "}",
    "create() {",
    f'  gcloud compute tpus {group} create "$name" "${{at[@]}}"{node} \\',
    f"    {jobs.quoted(what)}",
    "}",
    "delete() {",
    f"  {_delete(job)}",
    "}",
  ]


def _group(job: TpuJob) -> str:
  return "queued-resources" if job.queued else "tpu-vm"


def _delete(job: TpuJob) -> str:
  at = [f"--zone={job.zone}", *([f"--project={job.project}"] if job.project else [])]
  force = ["--force"] if job.queued else []
  return jobs.quoted(
    ["gcloud", "compute", "tpus", _group(job), "delete", job.name, *at, "--quiet", *force]
  )
