"""Generates the API reference from docstrings: a page for each public module.

A hook of MkDocs, run before mkdocstrings. A public name without a docstring fails the build.
"""

import ast
import importlib.util
import pathlib
from collections.abc import Iterator

import vmsst

PACKAGES = {
  "vmsst": "Use: encoders, vectors, search, mining",
  "vmsst.evaluation": "Evaluation",
  "vmsst.losses": "Losses",
  "vmsst.models": "Models",
  "vmsst.networks": "Networks",
  "vmsst.checkpoints": "Other models' checkpoints",
  "vmsst.tasks": "Tasks and data",
  "vmsst.launch": "The t5x command and its runtime",
  "vmsst.cli": "The vmsst command",
  "ems_jax": "EMS and its relatives",
}
"""Titles of the groups of pages; a module belongs to the longest matching package."""

_FOLDERS = ("vmsst", "ems_jax", "vmsst.tasks", "vmsst.launch")  # the last two are links
_PAGES = "reference/api"


def modules() -> dict[str, pathlib.Path]:
  """Returns the files of all public modules, by name, without importing them."""
  found = {}
  for package in _FOLDERS:
    spec = importlib.util.find_spec(package)
    folder = pathlib.Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(folder.rglob("*.py")):
      parts = path.relative_to(folder).with_suffix("").parts
      if parts[-1] == "__init__":
        parts = parts[:-1]
      if not any(part.startswith("_") for part in parts):
        found[".".join((package, *parts))] = path
  return found


def undocumented(source: str) -> Iterator[str]:
  """Yields public names in Python source without a docstring; "module" is the module itself.

  Definitions marked with `@override` need none.
  """
  tree = ast.parse(source)
  if ast.get_docstring(tree) is None:
    yield "module"
  yield from _undocumented(tree, "")


def shown() -> dict[str, str]:
  """Returns the pages that mkdocstrings reads, by path in the site."""
  return {
    _page(name): f"# {name}\n\n::: {name}\n"
    for name, path in modules().items()
    if _says_more_than_its_name(path)
  }


def all_undocumented() -> list[str]:
  """Returns `FILE: NAME` of every public name without a docstring."""
  return [
    f"{path}: {name}"
    for path in modules().values()
    for name in undocumented(path.read_text(encoding="utf-8"))
  ]


def on_config(config):
  """Checks that every public name has a docstring, and adds the pages to the navigation."""
  from mkdocs.exceptions import PluginError

  if missing := all_undocumented():
    raise PluginError("public names without a docstring:\n  " + "\n  ".join(missing))
  groups: dict[str, list[dict[str, str]]] = {title: [] for title in PACKAGES.values()}
  for name, path in modules().items():
    if _says_more_than_its_name(path):
      groups[PACKAGES[_group(name)]].append({name: _page(name)})
  index = {"In one table": f"{_PAGES}/index.md"}
  config.nav.append({"API": [index, *({title: pages} for title, pages in groups.items() if pages)]})
  return config


def on_files(files, config):
  """Adds the pages."""
  from mkdocs.structure.files import File

  for path, content in {**shown(), f"{_PAGES}/index.md": _overview()}.items():
    files.append(File.generated(config, path, content=content))
  return files


def _undocumented(parent: ast.AST, prefix: str) -> Iterator[str]:
  kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  for node in ast.iter_child_nodes(parent):
    if not isinstance(node, kinds) or node.name.startswith("_"):
      continue
    name = prefix + node.name
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    if ast.get_docstring(node) is None and not marks & {"override", "overload", "setter"}:
      yield name
    if isinstance(node, ast.ClassDef):
      yield from _undocumented(node, f"{name}.")


def _says_more_than_its_name(path: pathlib.Path) -> bool:
  """Returns whether a module defines anything, or is a package that describes its modules."""
  tree = ast.parse(path.read_text(encoding="utf-8"))
  return len(tree.body) > 1 or "\n" in (ast.get_docstring(tree) or "")


def _overview() -> str:
  """Returns a page with the first docstring line of each module."""
  lines = ["# API", ""]
  by_group: dict[str, list[str]] = {name: [] for name in PACKAGES}
  for name, path in modules().items():
    if _says_more_than_its_name(path):
      first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split("\n\n")[0]
      row = f"| [`{name}`]({name}.md) | {' '.join(first.split()).replace('|', '&#124;')} |"
      by_group[_group(name)].append(row)
  surface = ", ".join(f"`vmsst.{name}`" for name in vmsst.__all__)
  lines += [f"The package itself has {surface}; import everything else from its module.", ""]
  for name, rows in by_group.items():
    if rows:
      lines += [f"## {PACKAGES[name]}", "", "| module | |", "|---|---|", *rows, ""]
  return "\n".join(lines)


def _group(name: str) -> str:
  return max((each for each in PACKAGES if f"{name}.".startswith(f"{each}.")), key=len)


def _page(name: str) -> str:
  return f"{_PAGES}/{name}.md"
