"""A batch script for SLURM: srun starts the processes; a stopped job goes back to the queue.

JAX reads coordinator, process index and count from srun's variables. A process that owns all GPUs
of a node needs `JAX_LOCAL_DEVICE_IDS`; it takes one GPU otherwise. SIGTERM arrives before the time
limit (`--signal`), and in the grace time of a preemption if the partition has one. It goes to the
processes, not to the batch script.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from vmsst.errors import InputError
from vmsst.launch.clusters import jobs

# These characters have no special meaning to sbatch or to a shell.
_PLAIN = r"[A-Za-z0-9_./:=,+@%^~\[\]-]+"
_PLAIN_TEXT = "use only letters, digits and _./:=,+@%^~[]- in a line of #SBATCH"


@dataclasses.dataclass(frozen=True)
class SlurmJob:
  """A job of equal processes.

  Attributes:
    command: Command of each process.
    name: Name of the job.
    nodes: Number of nodes.
    gpus_per_node: GPUs per node; 0 for CPUs only.
    process_per: "gpu" or "node": one process for each of them; without GPUs for each node.
    time: Time limit in SLURM's format; None for the partition's.
    partition: Partition; None for the cluster's default.
    account: Account; None for the user's default.
    cpus_per_task: Cores per process; None for the cluster's default.
    grace: Seconds between SIGTERM and the time limit.
    output: Output file, in SLURM's patterns.
    environment: Variables of every process.
    setup: Shell code that runs first, once, on the first node (`source venv/bin/activate`).
    options: Further sbatch options, one word each (`--qos=high`).
  """

  command: Sequence[str]
  name: str = "vmsst"
  nodes: int = 1
  gpus_per_node: int = 8
  process_per: str = "gpu"
  time: str | None = None
  partition: str | None = None
  account: str | None = None
  cpus_per_task: int | None = None
  grace: int = 120
  output: str = "%x-%j.out"
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  setup: str = ""
  options: Sequence[str] = ()


def script(job: SlurmJob) -> str:
  """Returns the batch script, for `sbatch`.

  Raises:
    InputError: An option does not fit in a line of #SBATCH, or there is no command.
  """
  jobs.check_command(job.command)
  if job.process_per not in ("gpu", "node"):
    raise InputError(f"--process-per={job.process_per!r}: use gpu or node")
  processes, environment = job.gpus_per_node or 1, dict(job.environment)
  if job.gpus_per_node and job.process_per == "node":
    devices = ",".join(map(str, range(job.gpus_per_node)))
    processes, environment = 1, {"JAX_LOCAL_DEVICE_IDS": devices, **environment}
  wanted = {
    "job-name": job.name,
    "nodes": job.nodes,
    "ntasks-per-node": processes,
    "gpus-per-node": job.gpus_per_node or None,
    "cpus-per-task": job.cpus_per_task,
    "time": job.time,
    "partition": job.partition,
    "account": job.account,
    "output": job.output,
    "signal": f"TERM@{job.grace}",
  }
  given = {f"--{name}": str(value) for name, value in wanted.items() if value is not None}
  for option in job.options:
    if not option.startswith("-"):
      raise InputError(f"--sbatch: {option!r} is not an option; write --name=value")
  for name, value in (*given.items(), *(("--sbatch", option) for option in job.options)):
    jobs.check(name, value, _PLAIN, _PLAIN_TEXT)
  options = [f"{name}={value}" for name, value in given.items()]
  lines = [
    "#!/bin/bash",
    *(f"#SBATCH {x}" for x in (*options, "--requeue", "--open-mode=append", *job.options)),
    *jobs.prepared(environment, job.setup, job.command),
    *jobs.assigned(stopped=jobs.STOPPED, task=jobs.TASK),
  ]
  return "\n".join([*lines, jobs.template("slurm.sh")])
