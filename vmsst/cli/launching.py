"""`vmsst launch`: a command on a cluster."""

import argparse
import shlex
import subprocess
from collections.abc import Sequence

from vmsst import errors
from vmsst.cli import command
from vmsst.cli.command import Command


def _common_arguments(parser: argparse.ArgumentParser, *, setup: bool = True) -> None:
  add = parser.add_argument
  add("words", nargs="+", metavar="-- COMMAND", help="what every process runs: -- t5x train ...")
  add("--dry_run", action="store_true", help="print what would run, and run nothing")
  add("--env", action="append", default=[], metavar="NAME=VALUE", help="variable; repeatable")
  if setup:
    add("--setup", default="", metavar="CODE", help="shell code that runs before the command")


def _tpu_arguments(parser: argparse.ArgumentParser) -> None:
  _common_arguments(parser)
  add = parser.add_argument
  add("--name", required=True, help="of the TPU")
  add("--zone", required=True, help="such as us-central2-b")
  add("--accelerator", required=True, metavar="TYPE", help="such as v4-8 or v5litepod-16")
  add("--version", required=True, help="runtime version, such as tpu-ubuntu2204-base")
  add("--project", help="Google Cloud project (default: gcloud's)")
  add("--spot", action="store_true", help="one that may be preempted")
  add("--queued", action="store_true", help="wait in the queue: a queued resource")
  add(
    "--failures",
    type=command.at_least_1,
    default=3,
    metavar="N",
    help="failures in sequence after which to give up; a preemption is none (default: 3)",
  )
  add("--delete", action="store_true", help="delete the TPU in the end")


def _tpu(args: argparse.Namespace) -> None:
  from vmsst.launch.clusters import jobs, tpu

  job = tpu.TpuJob(
    command=args.words,
    name=args.name,
    zone=args.zone,
    accelerator=args.accelerator,
    version=args.version,
    project=args.project,
    spot=args.spot,
    queued=args.queued,
    environment=jobs.variables(args.env),
    setup=args.setup,
    failures=args.failures,
    delete=args.delete,
  )
  _run(args, ["bash", "-c"], tpu.script(job), as_argument=True)


def _slurm_arguments(parser: argparse.ArgumentParser) -> None:
  _common_arguments(parser)
  add = parser.add_argument
  add("--name", default="vmsst", help="of the job (default: vmsst)")
  add("--nodes", type=command.at_least_1, default=1, metavar="N", help="nodes (default: 1)")
  add("--gpus_per_node", type=int, default=8, metavar="N", help="0 for CPUs alone (default: 8)")
  add(
    "--process_per",
    choices=("gpu", "node"),
    default="gpu",
    help="what has a process of its own (default: gpu)",
  )
  add("--time", help="time limit, such as 24:00:00")
  add("--partition", help="partition")
  add("--account", help="account")
  add("--cpus_per_task", type=command.at_least_1, metavar="N", help="cores of a process")
  add(
    "--grace",
    type=command.at_least_1,
    default=120,
    metavar="SECONDS",
    help="time to write a checkpoint in before the limit (default: 120)",
  )
  add("--output", default="%x-%j.out", help="file of the output (default: NAME-JOB.out)")
  add("--sbatch", default="", metavar="OPTIONS", help='further ones, --sbatch="--qos=high"')


def _slurm(args: argparse.Namespace) -> None:
  from vmsst.launch.clusters import jobs, slurm

  job = slurm.SlurmJob(
    command=args.words,
    name=args.name,
    nodes=args.nodes,
    gpus_per_node=args.gpus_per_node,
    process_per=args.process_per,
    time=args.time,
    partition=args.partition,
    account=args.account,
    cpus_per_task=args.cpus_per_task,
    grace=args.grace,
    output=args.output,
    environment=jobs.variables(args.env),
    setup=args.setup,
    options=_words("--sbatch", args.sbatch),
  )
  _run(args, ["sbatch"], slurm.script(job))


def _words(name: str, text: str) -> Sequence[str]:
  try:
    return shlex.split(text)
  except ValueError as error:
    raise errors.InputError(f"{name}={text!r}: {error}") from None


def _kubernetes_arguments(parser: argparse.ArgumentParser) -> None:
  _common_arguments(parser, setup=False)
  add = parser.add_argument
  add("--image", required=True, help="container image that has the command")
  add("--name", default="vmsst", help="of the JobSet (default: vmsst)")
  add("--namespace", help="namespace (default: kubectl's)")
  add("--pods", type=command.at_least_1, default=1, metavar="N", help="pods (default: 1)")
  add(
    "--resource",
    action="append",
    default=[],
    metavar="NAME=AMOUNT",
    help="what a pod asks for, such as nvidia.com/gpu=8 or google.com/tpu=4; repeatable",
  )
  add(
    "--node_selector",
    action="append",
    default=[],
    metavar="LABEL=VALUE",
    help="label of the nodes to run on; repeatable",
  )
  add(
    "--volume",
    action="append",
    default=[],
    metavar="CLAIM=FOLDER",
    help="PersistentVolumeClaim to mount; repeatable",
  )
  add(
    "--restarts",
    type=int,
    default=5,
    metavar="N",
    help="after failures; those after evictions are not counted (default: 5)",
  )
  add(
    "--grace",
    type=command.at_least_1,
    default=120,
    metavar="SECONDS",
    help="time to write a checkpoint in when a pod is evicted (default: 120)",
  )
  add("--service_account", metavar="NAME", help="account that pods run under")


def _kubernetes(args: argparse.Namespace) -> None:
  from vmsst.launch.clusters import jobs, kubernetes

  job = kubernetes.KubernetesJob(
    command=args.words,
    image=args.image,
    name=args.name,
    namespace=args.namespace,
    pods=args.pods,
    resources=_pairs("--resource", args.resource),
    node_selector=_pairs("--node_selector", args.node_selector),
    volumes=_pairs("--volume", args.volume),
    environment=jobs.variables(args.env),
    restarts=args.restarts,
    grace=args.grace,
    service_account=args.service_account,
  )
  _run(args, ["kubectl", "create", "-f", "-"], kubernetes.yaml_text(job))


def _pairs(name: str, texts: Sequence[str]) -> dict[str, str]:
  pairs = {}
  for text in texts:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
      raise errors.InputError(f"{name}={text!r}: write NAME=VALUE")
    pairs[key] = value
  return pairs


def _run(
  args: argparse.Namespace, client: list[str], text: str, *, as_argument: bool = False
) -> None:
  """Hands the text to the cluster's client, or prints it."""
  if args.dry_run:
    print(text, end="")
    return
  words, given = ([*client, text], None) if as_argument else (client, text.encode())
  try:
    status = subprocess.run(words, input=given, check=False).returncode
  except FileNotFoundError:
    raise errors.InputError(
      f"{client[0]} is not installed here; run this where it is, or give --dry_run and take what "
      "it prints there"
    ) from None
  if status:
    raise errors.InputError(f"{client[0]} gave {status}")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("launch", "tpu"): Command(
    "run a command on a Cloud TPU, and again on a new one when it is preempted",
    _tpu_arguments,
    _tpu,
    resumable=True,
  ),
  ("launch", "slurm"): Command(
    "put a command in SLURM's queue, and again when it is stopped", _slurm_arguments, _slurm
  ),
  ("launch", "kubernetes"): Command(
    "run a command as a JobSet of Kubernetes, restarted when a pod is lost",
    _kubernetes_arguments,
    _kubernetes,
  ),
}
