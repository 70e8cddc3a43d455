"""Runs every code block of the README in order, in one folder, as a newcomer would.

Stubs shorten slow commands: `t5x train` gets the overrides of `commands.TINY`; `pip` and `pytest`
only print their arguments. A local server has a tiny model under the name of the README's. Blocks
that need the network or a TPU, as their paragraph states, are only parsed.
"""

import itertools
import pathlib
import re
import shlex
import subprocess
import tomllib

import code_blocks
import commands
import fake_hub
import line_files
import pytest
import released_folders

from vmsst.data import sample

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCKS = code_blocks.blocks(README) if README.is_file() else []
pytestmark = pytest.mark.skipif(not BLOCKS, reason="an installation without its repository")

NOT_HERE = re.compile(
  r"needs? (the network|a TPU|a GPU|GPUs|a cluster|files of your own|(GPUs and )?a large download)"
)
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """Returns the working folder of the blocks, with the data files that they use."""
  folder = tmp_path_factory.mktemp("readme")
  data = folder / "data"
  texts = {code: [sample.sentence(x, code) for x in range(70)] for code in ("de", "en")}
  line_files.write_lines(data / "tatoeba" / "tatoeba.deu-eng.deu", texts["de"])
  line_files.write_lines(data / "tatoeba" / "tatoeba.deu-eng.eng", texts["en"])
  for name in ("train", "dev"):
    line_files.write_lines(
      folder / f"{name}.tsv", map("\t".join, zip(*texts.values(), strict=True))
    )
  return folder


@pytest.fixture(scope="module", autouse=True)
def hub(tmp_path_factory, tokenizer_files):
  """Serves a tiny model under the name of the README's."""
  name = re.search(r"intfloat/[\w-]+", README.read_text(encoding="utf-8"))[0]
  folder = tmp_path_factory.mktemp("hub")
  released_folders.save_me5(folder / name, tokenizer_files["xlmr"])
  with fake_hub.running() as hub, pytest.MonkeyPatch.context() as patch:
    hub.put(name, folder / name)
    for variable, value in fake_hub.environment(hub, folder / "cache").items():
      patch.setenv(variable, value)
    yield hub


@pytest.fixture(scope="module")
def has_run():
  """Returns the list of the blocks that have run."""
  return []


def replacements(folder):
  """Maps absolute paths of the README to those of the test."""
  return {
    "/tmp/": f"{folder}/",
    **{f"{name}500": f"{name}1" for name in ("steps=", "--steps ")},
    **{
      f"{mark}/{name}": f"{mark}{folder}/{name}"
      for mark in " '"
      for name in ("data", "runs", "results", "report")
    },
  }


def stand_ins(folder):
  """Returns scripts that replace slow commands."""
  flags = (*commands.TINY[1:], f"--gin.MODEL_DIR='{folder / 'vmsst_quickstart'}'")
  quickstart = f'*--gin_file=quickstart.gin*) exec {commands.T5X} "$@" {shlex.join(flags)} ;;'
  return {
    "t5x": f'case "$*" in\n{quickstart}\nesac\necho "no short form of t5x $*" >&2\nexit 1',
    **{name: f'echo "{name} $*"' for name in ("pip", "pytest", "tensorboard")},
  }


@pytest.mark.parametrize(
  "block",
  [
    pytest.param(
      block,
      id=f"line_{block.line}",
      # In every test run: what needs no encoder. test_main.py trains the quickstart.
      marks=pytest.mark.slow if re.search("t5x train|vmsst.load", whole) else [],
    )
    for block, whole in zip(
      BLOCKS, itertools.accumulate(block.text for block in BLOCKS), strict=True
    )
  ],
)
def test_a_block_runs(block, place, has_run):
  run_up_to(block, place, has_run)


@pytest.mark.slow
def test_the_python_of_other_pages_runs_on_the_run_of_the_quickstart(place, has_run):
  pytest.importorskip("sentence_transformers")
  pytest.importorskip("faiss")
  run_up_to(next(x for x in BLOCKS if "vmsst export" in x.text), place, has_run)
  folder = place / "pages"
  folder.mkdir()
  tutorial = code_blocks.blocks(ROOT / "docs" / "tutorials" / "quickstart.md")
  run_block(next(x for x in tutorial if "vmsst embed" in x.text), place, folder)
  for page in PAGES:
    for block in code_blocks.blocks(page):
      if block.language == "python" and "/tmp/" in block.text + block.before:
        run_block(block, place, folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_first_code_of_a_page_runs_after_the_installation(page, tmp_path):
  code = (x for x in code_blocks.blocks(page) if x.language in ("bash", "python"))
  if block := next(code, None):
    run_block(block, tmp_path)


def run_up_to(block, place, has_run):
  """Runs a block after all before it, each once in the folder `place`."""
  for needed in BLOCKS[: BLOCKS.index(block) + 1]:
    if needed not in has_run:
      has_run.append(needed)
      run_block(needed, place)


def run_block(block, place, folder=None):
  """Runs one block of a page in a folder, or in `place`, and checks its shown output."""
  folder = folder or place
  if block.language == "bash":
    text = code_blocks.commands_of(block)
    if NOT_HERE.search(" ".join(block.before.split())):
      subprocess.run(["bash", "-n", "-c", text], check=True)
      return
    if "sentence_transformers" in text:
      pytest.importorskip("sentence_transformers")
    printed = code_blocks.bash(text, folder, replacements(place), stand_ins(place))
    for installed in re.findall(r"^pip install -e \.(?:\[(.*)\])?$", printed, re.MULTILINE):
      known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
      assert set(filter(None, installed.split(","))) <= {*known["optional-dependencies"]}
    assert len(printed.splitlines()) >= len(code_blocks.shown(block))
    (place / "printed").write_text(printed)
  elif block.language == "python":
    if NOT_HERE.search(" ".join(block.before.split())):
      compile(block.text, str(README), "exec")
      return
    code_blocks.python(block.text, folder, replacements(place))
  else:  # output of the previous block
    assert block.language == ""
    printed = (place / "printed").read_text()
    for line in block.text.splitlines():
      if line not in ("...", "") and not line.startswith("-"):
        assert re.search(rf"^{re.escape(line.split()[0])} ", printed, re.MULTILINE), line


def test_links_lead_to_files():
  for link in re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8")):
    assert link.startswith("https://") or (ROOT / link).is_file(), link
