"""Builds the documentation site; MkDocs checks its links."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
if not (ROOT / "mkdocs.yml").is_file():
  pytest.skip("an installation without its repository", allow_module_level=True)


@pytest.mark.slow
def test_the_site_has_the_references(tmp_path):
  pytest.importorskip("mkdocs", reason="needs pip install -e '.[docs]'")
  pytest.importorskip("mkdocstrings", reason="needs pip install -e '.[docs]'")
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  for page, text in (
    ("gin/models", "MARGIN"),
    ("api/vmsst.inference.encoder", "margin_scores"),
    ("api/vmsst.cli.texts", "Which pairs are found"),
  ):
    assert text in (tmp_path / "reference" / page / "index.html").read_text(encoding="utf-8")
