"""Prints pip constraints: the lowest versions that pyproject.toml allows, of base and [train]."""

import pathlib
import re
import tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
for requirement in project["dependencies"] + project["optional-dependencies"]["train"]:
  name, version = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", requirement).groups()
  print(f"{name}=={version}")
