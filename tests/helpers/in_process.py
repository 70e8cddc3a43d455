"""Commands run in the process of the test, faster than `commands` and open to monkeypatching."""

import argparse

from vmsst import cli
from vmsst.cli import downloads


def vmsst(*arguments):
  """Runs `vmsst arguments`, which may be paths or numbers; returns its exit status."""
  return cli.main([str(argument) for argument in arguments])


def download_data(*arguments):
  """Runs `vmsst data download arguments`; raises its errors."""
  command = downloads.COMMANDS["data", "download"]
  parser = argparse.ArgumentParser()
  command.add_arguments(parser)
  command.run(parser.parse_args([str(argument) for argument in arguments]))
