"""Maps the repository's rooms onto the installed package (see pyproject.toml for the metadata).

`tasks/`, `launch/` and `gin/` lie at the top level of the repository but install inside `vmsst`,
so that a user's own `tasks.py` and the `gin` package keep their names.
"""

import pathlib

import setuptools

ROOMS = {"vmsst.tasks": "tasks", "vmsst.launch": "launch"}
GIN = "gin"


def packages() -> list[str]:
  """Every importable package, plus the gin folder and its layers as packages of data."""
  found = setuptools.find_packages(include=["vmsst*", "ems_jax*"])
  for package, folder in ROOMS.items():
    found += [package, *(f"{package}.{sub}" for sub in setuptools.find_packages(folder))]
  folders = [GIN, *(str(path) for path in pathlib.Path(GIN).rglob("*") if path.is_dir())]
  found += ["vmsst." + folder.replace("/", ".") for folder in sorted(folders)]
  return found


def version() -> str:
  """The version in vmsst/__init__.py."""
  for line in pathlib.Path("vmsst/__init__.py").read_text(encoding="utf-8").splitlines():
    if line.startswith("__version__"):
      return line.split('"')[1]
  raise RuntimeError("vmsst/__init__.py has no __version__ line")


setuptools.setup(
  version=version(),
  packages=packages(),
  package_dir={**ROOMS, "vmsst.gin": GIN},
  package_data={
    "": ["*.gin", "*.model", "*.tsv", "*.json", "py.typed"],
    "vmsst.tasks.opus": ["recipe_files/*.yaml"],
  },
  include_package_data=False,
)
