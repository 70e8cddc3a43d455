"""A shell script that creates a Cloud TPU, runs a command on all its workers and restarts the
command, on a new TPU, whenever the TPU is preempted.

The script runs on a machine with gcloud, for as long as the training. All workers of a pod run the
same command; JAX finds the others through the TPU's metadata.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from vmsst.launch.clusters import jobs

_NAME = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME_TEXT = "use lower-case letters, digits and -, starting with a letter"
_PLAIN = r"[A-Za-z0-9._:-]+"
_PLAIN_TEXT = "use only letters, digits and ._:-"


@dataclasses.dataclass(frozen=True)
class TpuJob:
  """A command for all workers of a TPU VM or a pod slice.

  Attributes:
    command: Command of each worker.
    name: Name of the TPU, and of its queued resource.
    zone: Zone, such as us-central2-b.
    accelerator: Accelerator type, such as v4-8 or v5litepod-16.
    version: Runtime version, such as tpu-ubuntu2204-base.
    project: Project; None for gcloud's.
    spot: Whether the TPU may be preempted, at a lower price.
    queued: Whether to wait for it in the queue (queued resource) instead of asking repeatedly.
    environment: Variables of the command.
    setup: Shell code that each worker runs before every start of the command; it must be safe to
      rerun (`pip install ...`).
    failures: Number of consecutive failures, on a running TPU, after which to give up.
    delete: Whether to delete the TPU at the end.
    pause: Seconds between checks of its state.
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
  """Returns the script, for bash.

  Raises:
    InputError: gcloud does not accept a name, or there is no command.
  """
  jobs.check_command(job.command)
  jobs.check("--name", job.name, _NAME, _NAME_TEXT)
  place = {"--zone": job.zone, **({"--project": job.project} if job.project else {})}
  for name, value in ({"--accelerator": job.accelerator, "--version": job.version} | place).items():
    jobs.check(name, value, _PLAIN, _PLAIN_TEXT)
  group = "queued-resources" if job.queued else "tpu-vm"

  def gcloud(verb: str, *options: str, group: str = group) -> list[str]:
    at = (f"{name}={value}" for name, value in place.items())
    return ["gcloud", "compute", "tpus", group, verb, job.name, *at, *options]

  lines = jobs.assigned(
    name=job.name,
    describe=gcloud("describe", f"--format=value({'state.' if job.queued else ''}state)"),
    create=gcloud(
      "create",
      *([f"--node-id={job.name}"] if job.queued else []),
      f"--accelerator-type={job.accelerator}",
      f"--{'runtime-' if job.queued else ''}version={job.version}",
      *(["--spot"] if job.spot else []),
    ),
    delete=gcloud("delete", "--quiet", *(["--force"] if job.queued else [])),
    ssh=gcloud("ssh", "--worker=all", group="tpu-vm"),
    command=worker_script(job),
    failures=job.failures,
    pause=job.pause,
    stopped=jobs.STOPPED,
    delete_when_done="yes" if job.delete else "",
  )
  return "\n".join(["#!/bin/bash", *lines, jobs.template("tpu.sh")])


def worker_script(job: TpuJob) -> str:
  """Returns the script that each worker runs, for any POSIX shell."""
  lines = jobs.prepared(job.environment, job.setup, job.command)
  lines += jobs.assigned(task=f"echo $$ >.vmsst-launch.pid\n{jobs.TASK}")
  return "\n".join([*lines, jobs.template("tpu_worker.sh")])
