"""Paths of the package's data folders."""

import pathlib


def gin_dir() -> pathlib.Path:
  """Returns the folder of the shipped gin files.

  Raises:
    FileNotFoundError: the installation lacks gin files.
  """
  folder = pathlib.Path(__file__).resolve().parent / "gin"
  if not (folder / "quickstart.gin").is_file():
    raise FileNotFoundError(
      f"{folder}: no gin files; reinstall vmsst. In a checkout, {folder.name} is a symbolic link "
      "(on Windows: git clone -c core.symlinks=true)"
    )
  return folder
