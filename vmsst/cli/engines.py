"""Arguments of commands whose work is done by an engine: `--engine`, `--workers` and the like."""

import argparse
import os
from typing import TYPE_CHECKING

from vmsst import errors
from vmsst.cli import command

if TYPE_CHECKING:
  from vmsst.units.engines import Engine


def add_arguments(
  parser: argparse.ArgumentParser, *, local_workers: int | None = 1, gpus: bool = True
) -> None:
  """Adds the arguments.

  Args:
    parser: The parser of the command.
    local_workers: Default number of local processes; None: one per core.
    gpus: Whether the work can use GPUs.
  """
  default = "one per core" if local_workers is None else local_workers
  parser.set_defaults(local_workers=local_workers, gpus_per_worker=0)
  add = parser.add_argument_group(
    "engine", "Where the work is done, with the same results."
  ).add_argument
  add(
    "--engine",
    choices=("local", "ray"),
    help="processes on this machine, or a Ray cluster, whose workers must see the same files "
    "(default: local)",
  )
  add(
    "--workers",
    type=command.at_least_1,
    metavar="N",
    help=f"processes on this machine (default: {default}), or Ray tasks at a time (default: as "
    "many as the cluster has room for)",
  )
  if gpus:
    add(
      "--gpus-per-worker",
      type=command.at_least_1,
      default=0,
      metavar="N",
      help="GPUs of each worker (default: local workers share all devices, Ray workers have none)",
    )
  add(
    "--ray-address",
    metavar="ADDRESS",
    help="Ray cluster: HOST:PORT or ray://HOST:PORT (default: $RAY_ADDRESS, a cluster on this "
    "machine, or a new one on this machine)",
  )


def chosen(args: argparse.Namespace) -> "Engine":
  """Returns the engine that the arguments name.

  Raises:
    InputError: an argument does not apply to the engine.
  """
  from vmsst.units import local, ray_cluster

  name = args.engine or ("ray" if args.ray_address else "local")
  if name == "local" and args.ray_address:
    raise errors.InputError("--ray-address does not apply to --engine local; omit it")
  if name == "ray":
    return ray_cluster.Ray(args.ray_address, args.workers, args.gpus_per_worker)
  workers = args.workers or args.local_workers or os.cpu_count() or 1
  return local.Local(workers, args.gpus_per_worker)


def leave_accelerators(engine: "Engine") -> None:
  """Keeps this process off accelerators if others do the work."""
  if not engine.in_process:
    import jax

    jax.config.update("jax_platforms", "cpu")
