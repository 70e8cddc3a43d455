import pytest

from vmsst import cli


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
