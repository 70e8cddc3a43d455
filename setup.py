"""Packages, data files and version of vmsst; pyproject.toml has the rest of the metadata.

`tasks/`, `launch/` and `gin/` are folders at the top level of the repository and parts of the
package: `vmsst.tasks`, `vmsst.launch` and the gin files. Thus neither a user's own `tasks.py` nor
the package gin-config is shadowed.
"""

import pathlib

import setuptools


def version() -> str:
  """Returns the version in vmsst/__init__.py."""
  for line in pathlib.Path("vmsst/__init__.py").read_text(encoding="utf-8").splitlines():
    if line.startswith("__version__"):
      return line.split('"')[1]
  raise RuntimeError("vmsst/__init__.py has no __version__ line")


FOLDERS = ("tasks", "launch", "gin")

setuptools.setup(
  version=version(),
  packages=[
    *setuptools.find_packages(include=["vmsst*", "ems_jax*"]),
    *(f"vmsst.{name}" for name in FOLDERS),
  ],
  package_dir={f"vmsst.{name}": name for name in FOLDERS},
  package_data={
    "": ["*.model", "*.tsv", "*.json", "*.j2", "*.md", "py.typed"],
    "vmsst.gin": ["**/*.gin"],
    "vmsst.opus": ["recipe_files/*.yaml"],
  },
  include_package_data=False,
)
