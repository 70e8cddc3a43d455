"""`vmsst launch`: runs a command on a cluster."""

import argparse
import dataclasses
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

from vmsst import errors
from vmsst.cli import command
from vmsst.cli.command import Command


def _common_arguments(parser: argparse.ArgumentParser, *, setup: bool = True) -> None:
  add = parser.add_argument
  add("words", nargs="+", metavar="-- COMMAND", help="command of every process: -- t5x train ...")
  add("--dry-run", action="store_true", help="print what would run, without running it")
  add("--env", action="append", default=[], metavar="NAME=VALUE", help="set a variable; repeatable")
  if setup:
    add("--setup", default="", metavar="CODE", help="shell code to run before the command")


def _tpu_arguments(parser: argparse.ArgumentParser) -> None:
  _common_arguments(parser)
  add = parser.add_argument
  add("--name", required=True, help="name of the TPU")
  add("--zone", required=True, help="zone, such as us-central2-b")
  add("--accelerator", required=True, metavar="TYPE", help="such as v4-8 or v5litepod-16")
  add("--version", required=True, help="runtime version, such as tpu-ubuntu2204-base")
  add("--project", help="Google Cloud project (default: gcloud's)")
  add("--spot", action="store_true", help="use a preemptible TPU")
  add("--queued", action="store_true", help="wait for the TPU in the queue (queued resource)")
  add(
    "--failures",
    type=command.at_least_1,
    default=3,
    metavar="N",
    help="give up after N consecutive failures, ignoring preemptions (default: 3)",
  )
  add("--delete", action="store_true", help="delete the TPU at the end")


def _tpu(args: argparse.Namespace) -> None:
  from vmsst.launch.clusters import tpu

  _run(args, ["bash", "-c"], tpu.script(_job(tpu.TpuJob, args)), as_argument=True)


def _slurm_arguments(parser: argparse.ArgumentParser) -> None:
  _common_arguments(parser)
  add = parser.add_argument
  add("--name", default="vmsst", help="name of the job (default: vmsst)")
  add("--nodes", type=command.at_least_1, default=1, metavar="N", help="nodes (default: 1)")
  add(
    "--gpus-per-node",
    type=int,
    default=8,
    metavar="N",
    help="GPUs per node, 0 for CPUs only (default: 8)",
  )
  add(
    "--process-per",
    choices=("gpu", "node"),
    default="gpu",
    help="start a process per GPU or per node (default: gpu)",
  )
  add("--time", help="time limit, such as 24:00:00")
  add("--partition", help="partition")
  add("--account", help="account")
  add("--cpus-per-task", type=command.at_least_1, metavar="N", help="cores per process")
  add(
    "--grace",
    type=command.at_least_1,
    default=120,
    metavar="SECONDS",
    help="time before the limit to write a checkpoint in (default: 120)",
  )
  add("--output", default="%x-%j.out", help="output file (default: NAME-JOB.out)")
  add("--sbatch", default="", metavar="OPTIONS", help='further options: --sbatch="--qos=high"')


def _slurm(args: argparse.Namespace) -> None:
  from vmsst.launch.clusters import slurm

  try:
    options = shlex.split(args.sbatch)
  except ValueError as error:
    raise errors.InputError(f"--sbatch={args.sbatch!r}: {error}; close the quotes") from None
  _run(args, ["sbatch"], slurm.script(_job(slurm.SlurmJob, args, options=options)))


def _kubernetes_arguments(parser: argparse.ArgumentParser) -> None:
  _common_arguments(parser, setup=False)
  add = parser.add_argument
  add("--image", required=True, help="container image that has the command")
  add("--name", default="vmsst", help="name of the JobSet (default: vmsst)")
  add("--namespace", help="namespace (default: kubectl's)")
  add("--pods", type=command.at_least_1, default=1, metavar="N", help="pods (default: 1)")
  add(
    "--resource",
    action="append",
    default=[],
    metavar="NAME=AMOUNT",
    help="resource of each pod, such as nvidia.com/gpu=8 or google.com/tpu=4; repeatable",
  )
  add(
    "--node-selector",
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
    help="give up after N restarts, ignoring evictions (default: 5)",
  )
  add(
    "--grace",
    type=command.at_least_1,
    default=120,
    metavar="SECONDS",
    help="time an evicted pod has to write a checkpoint (default: 120)",
  )
  add("--service-account", metavar="NAME", help="account of the pods")


def _kubernetes(args: argparse.Namespace) -> None:
  from vmsst.launch.clusters import jobs, kubernetes

  job = _job(
    kubernetes.KubernetesJob,
    args,
    resources=jobs.pairs("--resource", args.resource),
    node_selector=jobs.pairs("--node-selector", args.node_selector),
    volumes=jobs.pairs("--volume", args.volume),
  )
  _run(args, ["kubectl", "create", "-f", "-"], kubernetes.yaml_text(job))


def _job(job_class: type, args: argparse.Namespace, **values: Any) -> Any:
  """Returns the job; a field without a value takes that of the option with its name."""
  from vmsst.launch.clusters import jobs

  values = {"command": args.words, "environment": jobs.variables(args.env), **values}
  names = {field.name for field in dataclasses.fields(job_class)}
  return job_class(**{name: value for name, value in vars(args).items() if name in names} | values)


def _run(
  args: argparse.Namespace, client: Sequence[str], text: str, *, as_argument: bool = False
) -> None:
  """Passes the text to the cluster's client, or prints it."""
  if args.dry_run:
    print(text, end="")
    return
  words, given = ([*client, text], None) if as_argument else (client, text.encode())
  try:
    status = subprocess.run(words, input=given, check=False).returncode
  except FileNotFoundError:
    raise errors.InputError(
      f"{client[0]} is not installed here; run this on a machine that has it, or run there what "
      "--dry-run prints"
    ) from None
  if status:
    raise errors.InputError(f"{client[0]} failed with exit status {status}; see its output above")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("launch", "tpu"): Command(
    "run a command on a Cloud TPU, restarting it on a new one after preemption",
    _tpu_arguments,
    _tpu,
    resumable=True,
    patience=0,  # as long as the job
  ),
  ("launch", "slurm"): Command(
    "submit a command to SLURM, requeuing it when it is stopped", _slurm_arguments, _slurm
  ),
  ("launch", "kubernetes"): Command(
    "run a command as a Kubernetes JobSet, restarting it when a pod is lost",
    _kubernetes_arguments,
    _kubernetes,
  ),
}
