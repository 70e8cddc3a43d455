"""Generates the API reference from docstrings: one page per public module.

This MkDocs hook runs before mkdocstrings. Ruff checks that public names have docstrings.
"""

import ast
import pathlib

import ems_jax
import vmsst
import vmsst.launch
import vmsst.tasks

PACKAGES = {
  "vmsst": "Public API and shared modules",
  "vmsst.encoder": "Encoders",
  "vmsst.search": "Search",
  "vmsst.mining": "Mining",
  "vmsst.evaluation": "Evaluation",
  "vmsst.formats": "Formats of other libraries",
  "vmsst.models": "Models",
  "vmsst.losses": "Losses",
  "vmsst.networks": "Networks",
  "ems_jax": "EMS and related models",
  "vmsst.tasks": "SeqIO tasks",
  "vmsst.data": "Data",
  "vmsst.opus": "Corpus building",
  "vmsst.downloads": "Downloads",
  "vmsst.train": "Training",
  "vmsst.launch": "The t5x command",
  "vmsst.io": "Files and processes",
  "vmsst.jobs": "Jobs",
  "vmsst.cli": "The vmsst command",
}
"""Titles of the navigation groups, in order. A module belongs to its longest matching prefix."""

_PAGES = "reference/api"
_HEAD = ("| name | purpose |", "|---|---|")
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, pathlib.Path]:
  """Returns the file of each public module by module name, without importing it."""
  found = {}
  for package in (vmsst, vmsst.tasks, vmsst.launch, ems_jax):
    root = pathlib.Path(package.__path__[0])
    for path in root.rglob("*.py"):
      parts = [package.__name__, *path.relative_to(root).with_suffix("").parts]
      if parts[-1] == "__init__":
        parts = parts[:-1]
      if not any(part.startswith("_") for part in parts):
        found[".".join(parts)] = path
  return dict(sorted(found.items()))


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
  """Adds the pages to the navigation."""
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

  paths = modules()
  pages = {_page(name): f"# {name}\n\n::: {_in_repository(paths[name])}\n" for name in documented()}
  for path, content in {**pages, f"{_PAGES}/index.md": _overview()}.items():
    files.append(File.generated(config, path, content=content))
  return files


def _in_repository(path: pathlib.Path) -> str:
  """Returns the module name of a file in the repository, such as `launch.main`."""
  relative = path.relative_to(pathlib.Path(vmsst.__path__[0]).parent)
  return ".".join(relative.with_suffix("").parts).removesuffix(".__init__")


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
  path = modules()[module]
  tree = ast.parse(path.read_text(encoding="utf-8"))
  (node,) = (node for node in tree.body if isinstance(node, _Definition) and node.name == name)
  anchor = f"{_in_repository(path)}.{name}"
  return f"{module}.md#{anchor}", _first_paragraph(ast.get_docstring(node) or "")


def _row(label: str, link: str, text: str) -> str:
  return f"| [`{label}`]({link}) | {text.replace('|', '&#124;')} |"


def _first_paragraph(docstring: str) -> str:
  return " ".join(docstring.split("\n\n")[0].split())


def _group(name: str) -> str:
  return max((each for each in PACKAGES if f"{name}.".startswith(f"{each}.")), key=len)


def _page(name: str) -> str:
  return f"{_PAGES}/{name}.md"
