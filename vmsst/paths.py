"""Where the package keeps what is not code."""

import pathlib


def gin_dir() -> pathlib.Path:
  """Folder of the shipped gin files: inside the package in a wheel, beside it in a checkout.

  Raises:
    FileNotFoundError: the installation holds no gin files.
  """
  package = pathlib.Path(__file__).resolve().parent
  for folder in (package / "gin", package.parent / "gin"):
    if (folder / "quickstart.gin").is_file():
      return folder
  raise FileNotFoundError(
    f"no gin files in {package / 'gin'} or {package.parent / 'gin'}: reinstall vmsst"
  )
