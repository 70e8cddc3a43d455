import pytest

from vmsst import cli
from vmsst.cli import shared_options
from vmsst.jobs import engines


@pytest.mark.parametrize(
  ("argv", "engine"),
  [
    ("", engines.Local(1)),
    ("--engine local --gpus-per-worker 2 --workers 4", engines.Local(4, 2)),
    ("--engine ray", engines.Ray()),
    (
      "--engine ray --workers 64 --gpus-per-worker 1 --ray-address ray://head:10001",
      engines.Ray("ray://head:10001", 64, 1),
    ),
    ("--ray-address head:6379", engines.Ray("head:6379")),
  ],
)
def test_arguments_name_an_engine(argv, engine, monkeypatch):
  monkeypatch.setattr("jax.config.update", lambda *setting: None)
  args = cli.build_parser().parse_args(["index", "vectors", "index", *argv.split()])
  assert args.command.values(args)["engine"].chosen() == engine


def test_a_build_has_a_process_per_core(monkeypatch):
  monkeypatch.setattr("os.cpu_count", lambda: 5)
  assert shared_options.Workers().chosen() == engines.Local(5)
  assert shared_options.Workers(workers=2).chosen() == engines.Local(2)
