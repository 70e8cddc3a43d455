"""Runs `python -m vmsst.cli` as `vmsst`."""

import sys

from vmsst import cli

if __name__ == "__main__":
  sys.exit(cli.main())
