import pytest

from vmsst import cli
from vmsst.cli import command
from vmsst.jobs import engines


@pytest.mark.parametrize(
  ("line", "end"),
  [
    ("mine a b c --treshold 1", "unrecognized arguments: --treshold 1"),
    ("mine a b c --neighbors 0", "argument --neighbors: '0' is not an integer above 0"),
    ("mine a b c --threshold nan", "argument --threshold: 'nan' is not a finite number"),
    ("finetune a b c --seed 1.5", "argument --seed: '1.5' is not an integer"),
    ("import ems a b", "arguments are required: --vocabulary"),
  ],
)
def test_unusable_arguments_are_named(line, end, capsys):
  with pytest.raises(SystemExit) as stop:
    cli.main(line.split())
  assert stop.value.code == 2
  assert capsys.readouterr().err.endswith(f"{end}\n")


def test_a_threshold_can_be_negative():
  args = cli.build_parser().parse_args(["mine", "a", "b", "c", "--threshold", "-.5"])
  assert args.threshold == -0.5


@pytest.mark.parametrize(
  ("argv", "engine"),
  [
    ("", engines.Local(1)),
    ("--engine local --gpus-per-worker 2 --workers 4", engines.Local(4, 2)),
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
  assert args.command.values(args)["workers"].create() == engine


def test_a_build_has_a_process_per_core(monkeypatch):
  monkeypatch.setattr(command.Workers, "default_workers", 5)
  assert command.Workers().create() == engines.Local(5)
  assert command.Workers(workers=2).create() == engines.Local(2)
