import pytest

from vmsst import cli
from vmsst.cli import command
from vmsst.jobs import engines


def usage_error(capsys, line):
  with pytest.raises(SystemExit) as stop:
    cli.main(line.split())
  assert stop.value.code == 2
  return capsys.readouterr().err


@pytest.mark.parametrize(
  "start",
  [
    "mine a b c --threshold",
    "vocab train --input a --output b --character-coverage",
  ],
)
def test_options_take_finite_numbers_only_and_negative_ones_in_any_form(start, capsys):
  option = start.split()[-1]
  for text in ("nan", "-inf", "1e999", "-1e999", "-1x"):
    error = usage_error(capsys, f"{start} {text}")
    assert f"argument {option}: " in error
    assert text in error
  for text in ("-1e-3", "-.5", "-1E+2", "0.25"):
    args = cli.build_parser().parse_args([*start.split(), text])
    assert getattr(args, option.removeprefix("--").replace("-", "_")) == float(text)


def test_usage_errors_suggest_what_was_meant(capsys):
  for line, end in (
    ("embedd", "; did you mean embed?"),
    ("data mine-negativ", "; did you mean mine-negatives?"),
    ("mine a b c --treshold 1", "arguments: --treshold 1; did you mean --threshold?"),
    ("zzz", "eval, report)"),
    ("mine a b c --neighbors 0", "argument --neighbors: 0 is not an integer above 0"),
    ("mine a b c --neighbors x", "argument --neighbors: x is not an integer above 0"),
    ("mine a b c --threshold x", "argument --threshold: x is not a finite number"),
    ("finetune a b c --seed 1.5", "argument --seed: 1.5 is not an integer"),
    ("import ems a b", "arguments are required: --vocabulary"),
  ):
    # Python 3.13 lists choices without quotes.
    assert usage_error(capsys, line).replace("'", "").endswith(f"{end}\n")


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
  assert command.Workers().chosen() == engines.Local(5)
  assert command.Workers(workers=2).chosen() == engines.Local(2)
