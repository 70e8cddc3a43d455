"""Generates the gin reference: a page for each folder of gin files.

A hook of MkDocs. It describes a file by its header comment and reads macros, values and includes
from its lines.
"""

import dataclasses
import html
import io
import itertools
import pathlib
import re
import textwrap
import tokenize
from collections.abc import Iterable, Mapping

import vmsst

FOLDERS = {
  "meshes": "Meshes and devices",
  "": "Run files",
  "ablations": "Ablations of VMSST",
  "ems": "EMS: ablations and variants",
  "soft": "Soft contrastive learning and distillation",
  "models": "Models",
  "sizes": "Sizes",
  "runs": "Runs",
  "data": "Data",
  "eval": "Evaluation",
}
"""Titles of the pages, in order; other folders come after them."""

_REQUIRED = "%gin.REQUIRED"
_LABEL = re.compile(r"(Required|Commonly changed|Set by [a-z ]+): ")
_PAGES = "reference/gin"


@dataclasses.dataclass(frozen=True)
class Macro:
  """A named value.

  Attributes:
    name: Name, in capitals.
    value: Source of the value, on one line.
    note: The comment after it, or "".
  """

  name: str
  value: str
  note: str


@dataclasses.dataclass(frozen=True)
class GinFile:
  """A parsed gin file.

  Attributes:
    name: Path below the folder of gin files.
    comment: Header comment, without the `#`.
    parts: Macros, and names of included files (str), in order.
  """

  name: str
  comment: str
  parts: tuple[Macro | str, ...]

  @property
  def macros(self) -> list[Macro]:
    """Macros that this file sets itself."""
    return [part for part in self.parts if isinstance(part, Macro)]

  @property
  def includes(self) -> list[str]:
    """Names of files that this file includes itself."""
    return [part for part in self.parts if isinstance(part, str)]


def read(root: pathlib.Path, name: str) -> GinFile:
  """Reads one gin file.

  Raises:
    ValueError: The file does not begin with a comment.
  """
  text = (root / name).read_text(encoding="utf-8")
  top = re.match(r"(?:#.*\n)+", text)
  if top is None:
    raise ValueError(f"gin/{name}:1: no header comment; begin the file with its purpose")
  comment = re.sub(r"^# ?", "", top.group(), flags=re.MULTILINE).strip()
  return GinFile(name, comment, tuple(filter(None, map(_part, _statements(text)))))


def read_all(root: pathlib.Path) -> dict[str, GinFile]:
  """Returns all gin files below a folder, by name."""
  names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.gin"))
  return {name: read(root, name) for name in names}


def resolved(name: str, files: Mapping[str, GinFile]) -> dict[str, tuple[Macro, str]]:
  """Returns the macros of a file and its includes, and the file that sets each, by name."""
  found: dict[str, tuple[Macro, str]] = {}
  for part in files[name].parts:
    found |= resolved(part, files) if isinstance(part, str) else {part.name: (part, name)}
  return found


def pages(files: Mapping[str, GinFile]) -> dict[str, tuple[str, str]]:
  """Returns title and Markdown of each page, by its path in the site."""
  folders = {name.rpartition("/")[0]: None for name in files}
  order = [folder for folder in FOLDERS if folder in folders]
  order += [folder for folder in folders if folder not in FOLDERS]
  made = {}
  for folder in order:
    title = FOLDERS.get(folder, folder)
    own = [file for name, file in files.items() if name.rpartition("/")[0] == folder]
    body = "\n\n".join(_section(file, files) for file in own)
    made[_page(folder)] = title, f"# {title}\n\n{body}\n"
  return made


def on_config(config):
  """Adds the generated pages to the navigation."""
  made = pages(read_all(vmsst.gin_dir()))
  config.nav.append({"Gin files": [{title: path} for path, (title, _) in made.items()]})
  return config


def on_files(files, config):
  """Adds the generated pages."""
  from mkdocs.structure.files import File

  for path, (_, content) in pages(read_all(vmsst.gin_dir())).items():
    files.append(File.generated(config, path, content=content))
  return files


def _statements(text: str) -> Iterable[tuple[list[str], str, str]]:
  """Yields words, source and last comment of each statement that is not indented."""
  tokens: list[tokenize.TokenInfo] = []
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type != tokenize.NEWLINE:
      tokens.append(token)
      continue
    plain = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
    code = [each for each in tokens if each.type not in plain]
    if code and code[0].start[1] == 0:
      # Line breaks and comments within a statement count as blanks.
      source = "".join(
        " " * (not glued) + each.string for each, glued in zip(code, _glued(code), strict=True)
      ).strip()
      note = tokens[-1].string if tokens[-1].type == tokenize.COMMENT else ""
      yield [each.string for each in code], source, note.removeprefix("#").strip()
    tokens = []


def _glued(tokens: list[tokenize.TokenInfo]) -> Iterable[bool]:
  """Yields, for each token, whether no blank separates it from the previous one."""
  yield True
  for before, token in itertools.pairwise(tokens):
    opens, closes = before.string in "([{", token.string in ")]}"
    yield before.end == token.start or opens or closes


def _part(statement: tuple[list[str], str, str]) -> Macro | str | None:
  words, source, note = statement
  if words[0] == "include":
    return words[1].strip("'\"")
  if len(words) > 2 and words[1] == "=" and words[0].isidentifier():
    return Macro(words[0], source.split("= ", 1)[1], note)
  return None


def _section(file: GinFile, files: Mapping[str, GinFile]) -> str:
  folder = file.name.rpartition("/")[0]
  parts = [f"## {file.name} {{ #{_anchor(file.name)} }}", _prose(file.comment)]
  used_by = [other.name for other in files.values() if file.name in other.includes]
  for label, names in (("Includes", file.includes), ("Included by", used_by)):
    if names:
      parts.append(f"{label} {', '.join(_link(name, folder) for name in names)}.")
  if file.macros:
    rows = [(f"`{x.name}`", _value(x), html.escape(x.note)) for x in file.macros]
    parts.append(_table(("macro", "value here", ""), rows))
  if file.includes:
    rows = [
      (f"`{macro.name}`", _value(macro), _link(place, folder))
      for macro, place in resolved(file.name, files).values()
    ]
    table = textwrap.indent(_table(("macro", "value", "set in"), rows), "    ")
    parts.append(f'??? note "All macros, including macros from included files"\n\n{table}')
  return "\n\n".join(parts)


def _prose(comment: str) -> str:
  """Returns a comment as Markdown: indented lines are code, labels start paragraphs."""
  blocks: list[str] = []
  for line in comment.splitlines():
    if line.startswith("  "):
      code = blocks and blocks[-1].startswith("    ")
      blocks[-1:] = [f"{blocks[-1]}\n    {line.strip()}"] if code else [*blocks[-1:], f"    {line}"]
    elif not blocks or blocks[-1].startswith("    ") or _LABEL.match(line):
      blocks.append(_escaped(line))
    else:
      blocks[-1] += f"\n{_escaped(line)}"
  return "\n\n".join(blocks)


def _escaped(line: str) -> str:
  """Returns a line with Markdown escaped, except `code`."""
  parts = line.split("`")
  if len(parts) % 2 == 0:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", line)
  plain = [re.sub(r"([\\*_{}\[\]<>#|])", r"\\\1", part) for part in parts[::2]]
  code = [f"`{part}`" for part in parts[1::2]]
  return "".join(x + y for x, y in zip(plain, [*code, ""], strict=True))


def _value(macro: Macro) -> str:
  if macro.value == _REQUIRED:
    return "**required**"
  return f"<code>{html.escape(macro.value).replace('|', '&#124;')}</code>"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
  lines = [head, ("---",) * len(head), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _page(folder: str) -> str:
  return f"{_PAGES}/{folder or 'run_files'}.md"


def _link(name: str, from_folder: str) -> str:
  folder = name.rpartition("/")[0]
  page = "" if folder == from_folder else pathlib.PurePosixPath(_page(folder)).name
  return f"[{name}]({page}#{_anchor(name)})"


def _anchor(name: str) -> str:
  return re.sub(r"[^a-z0-9]+", "-", name.lower().removesuffix(".gin"))
