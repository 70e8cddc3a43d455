"""Checks the documentation against the code: names, gin files, commands, doctests."""

import contextlib
import doctest
import importlib
import io
import pathlib
import re
import subprocess
import sys

import code_blocks
import pytest

import vmsst
from vmsst import cli

ROOT = pathlib.Path(__file__).resolve().parents[1]
if not (ROOT / "mkdocs.yml").is_file():
  pytest.skip("an installation without its repository", allow_module_level=True)
WRITTEN = ("hinge_sample.gin", "mine.gin", "config.gin")  # files that the pages or a run write
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]


api, gins = map(pytest.importorskip, ("api_reference", "gin_reference"))  # docs/hooks
GIN_FILES = gins.read_all(vmsst.gin_dir())


def check_vmsst(words):
  """Fails if the `vmsst` command rejects these words."""
  problems = io.StringIO()
  status = 0
  try:
    with contextlib.redirect_stderr(problems), contextlib.redirect_stdout(problems):
      cli.build_parser().parse_args(words)
  except SystemExit as stop:
    status = stop.code
  assert status == 0, problems.getvalue()


def check_t5x(words):
  """Fails if a gin file is missing, or if none of the files has or uses a macro that is set."""
  names = [word.removeprefix("--gin_file=") for word in words if word.startswith("--gin_file=")]
  shipped = [name for name in names if name in GIN_FILES]
  own = [name for name in names if name not in GIN_FILES]
  assert all(name.startswith("/") or name in WRITTEN for name in own), own
  if own or not names:  # a run's config.gin defines its own macros
    return
  known = {macro for name in shipped for macro in gins.resolved(name, GIN_FILES)}
  for name in shipped:  # a file may leave a macro to the user, such as TEACHER_DIM
    known |= set(re.findall(r"%([A-Z_]+)", (vmsst.gin_dir() / name).read_text()))
  for macro in re.findall(r"--gin\.([A-Z_]+)=", " ".join(words)):
    assert macro in known, f"{macro} is not a macro of {', '.join(shipped)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_on_a_page_can_be_run(page):
  for block in code_blocks.blocks(page):
    where = f"{page}:{block.line}"
    if block.language == "bash":
      text = code_blocks.commands_of(block)
      subprocess.run(["bash", "-n", "-c", text], check=True)
      for words in code_blocks.calls(text):
        words = [word for word in words if word != "..."]
        try:
          if words[0] == "vmsst":
            check_vmsst(words[1:])
          elif words[0] == "t5x":
            check_t5x(words[1:])
        except AssertionError as error:
          raise AssertionError(f"{where}: {' '.join(words)}: {error}") from None
    elif block.language == "python":
      compile(block.text, where, "exec")


def test_gin_files_that_pages_name_exist():
  for page in PAGES:
    for name in re.findall(r"`((?:\w+/)*\w+\.gin)`", page.read_text(encoding="utf-8")):
      name = name.removeprefix("gin/")
      here = any(f"/{each}".endswith(f"/{name}") for each in GIN_FILES)
      assert here or name in WRITTEN, f"{page}: {name}"


def test_examples_in_docstrings_do_what_they_show():
  tried = 0
  for name, path in api.modules().items():
    if ">>> " in path.read_text(encoding="utf-8"):
      found = doctest.testmod(importlib.import_module(name))
      assert not found.failed, name
      tried += found.attempted
  assert tried


@pytest.mark.slow
def test_the_site_has_the_references(tmp_path):
  pytest.importorskip("mkdocs", reason="needs pip install -e '.[docs]'")
  pytest.importorskip("mkdocstrings", reason="needs pip install -e '.[docs]'")
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  for page, text in (
    ("gin/models", "MARGIN"),
    ("api/vmsst.search.margins", "margin_scores"),
    ("api/vmsst.cli.texts", 'id="vmsst.cli.texts.Pairs"'),
  ):
    assert text in (tmp_path / "reference" / page / "index.html").read_text(encoding="utf-8")
