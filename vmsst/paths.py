"""Location of the shipped gin files."""

import pathlib


def gin_dir() -> pathlib.Path:
  """Returns the folder of the shipped gin files.

  Raises:
    FileNotFoundError: the installation lacks gin files.
  """
  package = pathlib.Path(__file__).resolve().parent
  for folder in (package / "gin", package.parent / "gin"):  # installed, or in a checkout
    if (folder / "quickstart.gin").is_file():
      return folder
  raise FileNotFoundError(f"{package / 'gin'}: no gin files; reinstall vmsst")
