"""Generates the API reference from docstrings: one page per public module.

This MkDocs hook runs before mkdocstrings. A public name without a docstring fails the build.
"""

import ast
import os
import pathlib
from collections.abc import Iterator

import ems_jax
import vmsst

PACKAGES = {
  "vmsst": "Public API and shared modules",
  "vmsst.inference": "Inference",
  "vmsst.vectors": "Vectors on disk",
  "vmsst.search": "Search and margins",
  "vmsst.mining": "Mining",
  "vmsst.evaluation": "Evaluation",
  "vmsst.exports": "Exports",
  "vmsst.models": "Models",
  "vmsst.losses": "Losses",
  "vmsst.networks": "Networks",
  "ems_jax": "EMS and related models",
  "vmsst.tasks": "SeqIO tasks and data",
  "vmsst.bitext": "Bitext files",
  "vmsst.text": "Text and vocabularies",
  "vmsst.files": "Files",
  "vmsst.process": "Processes of commands",
  "vmsst.downloads": "Downloads",
  "vmsst.checkpoints": "Checkpoints and importers",
  "vmsst.launch": "The t5x command and its runtime",
  "vmsst.cli": "The vmsst command",
}
"""Titles of the navigation groups, in order. A module belongs to its longest matching prefix."""

_PAGES = "reference/api"
_HEAD = ("| name | purpose |", "|---|---|")
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, pathlib.Path]:
  """Returns the file of each public module by module name, without importing it."""
  found = {}
  for package in (vmsst, ems_jax):
    root = pathlib.Path(package.__path__[0])
    for folder, _, names in os.walk(root, followlinks=True):
      for path in (pathlib.Path(folder, name) for name in names if name.endswith(".py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if parts[-1] == "__init__":
          parts = parts[:-1]
        if not any(part.startswith("_") for part in parts):
          found[".".join(parts)] = path
  return dict(sorted(found.items()))


def undocumented(source: str) -> Iterator[str]:
  """Yields the public modules ("module"), classes, functions and methods without a docstring.

  Methods that are marked with `@override` need no docstring.
  """
  tree = ast.parse(source)
  if ast.get_docstring(tree) is None:
    yield "module"
  yield from _undocumented(tree, "")


def all_undocumented() -> list[str]:
  """Returns `FILE: NAME` for every public name without a docstring."""
  return [
    f"{path}: {name}"
    for path in modules().values()
    for name in undocumented(path.read_text(encoding="utf-8"))
  ]


def documented() -> dict[str, str]:
  """Returns the first paragraph of each module that gets a page, by module name.

  Packages with a one-line docstring and no code get no page.
  """
  found = {}
  for name, path in modules().items():
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree) or ""
    if len(tree.body) > 1 or "\n" in docstring:
      found[name] = _first_paragraph(docstring)
  return found


def on_config(config):
  """Checks every docstring and adds the pages to the navigation."""
  from mkdocs.exceptions import PluginError

  if missing := all_undocumented():
    raise PluginError("public names without a docstring:\n  " + "\n  ".join(missing))
  roots = {str(pathlib.Path(package.__path__[0]).parent) for package in (vmsst, ems_jax)}
  config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = sorted(roots)
  groups: dict[str, list[dict[str, str]]] = {title: [] for title in PACKAGES.values()}
  for name in documented():
    groups[PACKAGES[_group(name)]].append({name: _page(name)})
  index = {"Overview": f"{_PAGES}/index.md"}
  config.nav.append({"API": [index, *({title: pages} for title, pages in groups.items() if pages)]})
  return config


on_config.mkdocs_priority = 100  # before mkdocstrings reads its paths


def on_files(files, config):
  """Adds the generated pages."""
  from mkdocs.structure.files import File

  pages = {_page(name): f"# {name}\n\n::: {name}\n" for name in documented()}
  for path, content in {**pages, f"{_PAGES}/index.md": _overview()}.items():
    files.append(File.generated(config, path, content=content))
  return files


def _undocumented(parent: ast.AST, prefix: str) -> Iterator[str]:
  for node in _definitions(parent):
    if node.name.startswith("_"):
      continue
    name = prefix + node.name
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    if ast.get_docstring(node) is None and not marks & {"override", "overload", "setter"}:
      yield name
    if isinstance(node, ast.ClassDef):
      yield from _undocumented(node, f"{name}.")


def _definitions(
  parent: ast.AST,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
  for node in ast.iter_child_nodes(parent):
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
      yield node


def _overview() -> str:
  """Returns the index page: the public names, then every module with its purpose."""
  summaries = documented()
  lines = ["# API", "", "## Public names", "", "`import vmsst` provides:", "", *_HEAD]
  lines += [_row(f"vmsst.{name}", *_public(name)) for name in vmsst.__all__]
  for package, title in PACKAGES.items():
    own = (name for name in summaries if _group(name) == package)
    rows = [_row(name, f"{name}.md", summaries[name]) for name in own]
    if rows:
      lines += ["", f"## {title}", "", *_HEAD, *rows]
  return "\n".join([*lines, ""])


def _public(name: str) -> tuple[str, str]:
  """Returns the page of a public name, and the first paragraph of its docstring."""
  module = vmsst._PUBLIC[name]
  tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
  (node,) = (node for node in _definitions(tree) if node.name == name)
  return f"{module}.md#{module}.{name}", _first_paragraph(ast.get_docstring(node) or "")


def _row(label: str, link: str, text: str) -> str:
  return f"| [`{label}`]({link}) | {text.replace('|', '&#124;')} |"


def _first_paragraph(docstring: str) -> str:
  return " ".join(docstring.split("\n\n")[0].split())


def _group(name: str) -> str:
  return max((each for each in PACKAGES if f"{name}.".startswith(f"{each}.")), key=len)


def _page(name: str) -> str:
  return f"{_PAGES}/{name}.md"
