"""A batch script for SLURM: srun starts the processes, and a stopped job is put back in the queue.

JAX finds coordinator, number and count of processes from the variables that srun sets. Where a
process has a node's GPUs to itself it must be told so (`JAX_LOCAL_DEVICE_IDS`), as it takes one
otherwise. SIGTERM comes before the time limit (`--signal`), and in the grace time of a preemption
where the cluster's partition has one. It goes to the processes, not to the batch script.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from vmsst.errors import InputError
from vmsst.launch.clusters import jobs

# sbatch reads directives by rules of its own; these characters mean nothing to it or to a shell.
_PLAIN = r"[A-Za-z0-9_./:=,+@%^~\[\]-]+"
_PLAIN_TEXT = "only letters, digits and _./:=,+@%^~[]- are understood in a line of #SBATCH"


@dataclasses.dataclass(frozen=True)
class SlurmJob:
  """A job of equal processes.

  Attributes:
    command: What each process runs.
    name: Name of the job.
    nodes: Nodes.
    gpus_per_node: GPUs of a node; 0 for CPUs alone.
    process_per: "gpu" or "node": what has a process of its own. Without GPUs it is the node.
    time: Time limit in SLURM's form; None takes the partition's.
    partition: Partition; None takes the cluster's default.
    account: Account; None takes the user's.
    cpus_per_task: Cores of a process; None takes the cluster's default.
    grace: Seconds before the time limit at which processes are asked to stop.
    output: File of the output, by SLURM's patterns.
    environment: Variables for every process.
    setup: Shell code that runs before, once, on the first node (`source venv/bin/activate`).
    options: Further options of sbatch, each as one word (`--qos=high`).
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

  @property
  def processes_per_node(self) -> int:
    """Processes that srun starts on each node."""
    return self.gpus_per_node if self.gpus_per_node and self.process_per == "gpu" else 1


def script(job: SlurmJob) -> str:
  """The batch script, for `sbatch` to read.

  Raises:
    InputError: an option that a line of #SBATCH cannot hold, or no command.
  """
  jobs.check_command(job.command)
  if job.process_per not in ("gpu", "node"):
    raise InputError(f"process_per is {job.process_per!r}; known: gpu, node")
  for option in job.options:
    if not option.startswith("-"):
      raise InputError(f"--sbatch: {option!r} is no option; write --name=value")
  wanted = {
    "job-name": job.name,
    "nodes": job.nodes,
    "ntasks-per-node": job.processes_per_node,
    "gpus-per-node": job.gpus_per_node or None,
    "cpus-per-task": job.cpus_per_task,
    "time": job.time,
    "partition": job.partition,
    "account": job.account,
    "output": job.output,
    "signal": f"TERM@{job.grace}",
  }
  given = {name: str(value) for name, value in wanted.items() if value is not None}
  for name, value in (*given.items(), *(("sbatch", option) for option in job.options)):
    jobs.check(f"--{name}", value, _PLAIN, _PLAIN_TEXT)
  options = [f"--{name}={value}" for name, value in given.items()]
  environment = dict(job.environment)
  if job.gpus_per_node and job.process_per == "node":
    devices = ",".join(map(str, range(job.gpus_per_node)))
    environment = {"JAX_LOCAL_DEVICE_IDS": devices, **environment}
  lines = [
    "#!/bin/bash",
    *(f"#SBATCH {option}" for option in (*options, "--requeue", "--open-mode=append")),
    *(f"#SBATCH {option}" for option in job.options),
    *jobs.exports(environment),
    *jobs.setup_lines(job.setup),
    "# A process that is asked to stop writes a checkpoint; then it exits with "
    f"{jobs.STOPPED}, so that",
    "# the job is told from one that finished. The first to end leaves the others time to.",
    "task=$(",
    "  cat <<'TASK'",
    jobs.TASK + "TASK",
    ")",
    'srun --kill-on-bad-exit=0 --wait=300 sh -c "$task" task \\',
    f"  {jobs.quoted(job.command)}",
    "status=$?",
    f'if [ "$status" -eq {jobs.STOPPED} ]; then',
    '  echo "Stopped; back to the queue."',
    '  scontrol requeue "$SLURM_JOB_ID"',
    "fi",
    'exit "$status"',
  ]
  return "\n".join(lines) + "\n"
