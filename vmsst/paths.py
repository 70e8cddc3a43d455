"""Folders of the package that hold data."""

import pathlib


def gin_dir() -> pathlib.Path:
  """Returns the folder of the shipped gin files.

  Raises:
    FileNotFoundError: the installation has no gin files.
  """
  folder = pathlib.Path(__file__).resolve().parent / "gin"
  if not (folder / "quickstart.gin").is_file():
    raise FileNotFoundError(
      f"no gin files in {folder}: reinstall vmsst; in a checkout, {folder.name} is a symbolic link "
      "(on Windows: git clone -c core.symlinks=true)"
    )
  return folder
