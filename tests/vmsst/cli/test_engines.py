import argparse

import pytest

from vmsst import errors
from vmsst.cli import engines
from vmsst.units import local, ray_cluster


def chosen(*argv, **options):
  parser = argparse.ArgumentParser()
  engines.add_arguments(parser, **options)
  return engines.chosen(parser.parse_args(argv))


@pytest.mark.parametrize(
  ("argv", "engine"),
  [
    ("", local.Local(1)),
    ("--workers 3", local.Local(3)),
    ("--engine local --gpus-per-worker 2 --workers 4", local.Local(4, 2)),
    ("--engine ray", ray_cluster.Ray()),
    (
      "--engine ray --workers 64 --gpus-per-worker 1 --ray-address ray://head:10001",
      ray_cluster.Ray("ray://head:10001", 64, 1),
    ),
    ("--ray-address head:6379", ray_cluster.Ray("head:6379")),
  ],
)
def test_arguments_name_an_engine(argv, engine):
  assert chosen(*argv.split()) == engine


def test_local_processes_are_one_or_one_per_core(monkeypatch):
  monkeypatch.setattr("os.cpu_count", lambda: 5)
  assert chosen(local_workers=None) == local.Local(5)
  assert chosen("--workers=2", local_workers=None) == local.Local(2)


def test_an_argument_of_another_engine_is_an_error():
  with pytest.raises(errors.InputError, match="--ray-address does not apply to --engine local"):
    chosen("--engine", "local", "--ray-address", "x:1")
