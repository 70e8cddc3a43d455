"""Commands run in the process of the test, faster than `commands` and open to monkeypatching."""

from vmsst import cli


def vmsst(*arguments):
  """Runs `vmsst arguments`, which may be paths or numbers; returns its exit status."""
  return cli.main([str(argument) for argument in arguments])


def download_data(*arguments):
  """Runs `vmsst data download arguments`, without a lock; raises its errors."""
  args = cli.build_parser().parse_args(["data", "download", *map(str, arguments)])
  args.command.function(**args.command.values(args))
