"""Builds the documentation site and opens its pages in a browser."""

import pathlib
import subprocess
import sys

import browsers
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
if not (ROOT / "mkdocs.yml").is_file():
  pytest.skip("an installation without its repository", allow_module_level=True)
pytestmark = pytest.mark.slow

GENERATED = ("reference/gin/models", "reference/api/vmsst.inference.encoder")

# Opens every page in a frame; collects links into nothing and images without a picture.
_OPEN_ALL = """
const pages = PAGES, problems = [], links = {};
const frame = document.createElement("iframe");
frame.width = 1200;
frame.height = 800;
document.body.append(frame);
const open = page => new Promise(go => {
  frame.onload = () => setTimeout(go, 20);
  frame.src = page;
});
let images = 0;
const visit = async page => {
  await open(page);
  const shown = frame.contentDocument;
  links[page] = {ids: new Set([...shown.querySelectorAll("[id]")].map(x => x.id)), to: []};
  for (const link of shown.querySelectorAll("a[href]"))
    if (link.origin === location.origin)
      links[page].to.push([link.pathname, decodeURIComponent(link.hash.slice(1))]);
  for (const image of shown.querySelectorAll("img")) {
    image.loading = "eager";
    await image.decode().catch(() => 0);
    const box = image.getBoundingClientRect();
    images += 1;
    if (!image.naturalWidth || box.width < 10 || box.height < 10)
      problems.push(`${page}: image ${image.src} is not visible`);
  }
};
(async () => {
  for (const page of pages) await visit(page);
  for (const page of pages)
    for (const [path, hash] of links[page].to)
      if (!(path in links)) {
        if ((await fetch(path)).status !== 200) problems.push(`${page}: no ${path}`);
      } else if (hash && !links[path].ids.has(hash)) problems.push(`${page}: no ${path}#${hash}`);
  done({pages: pages.length, images, problems});
})().catch(error => done({problems: [String(error)]}));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """Returns the folder of the built site."""
  pytest.importorskip("mkdocs", reason="needs pip install -e '.[docs]'")
  pytest.importorskip("mkdocstrings", reason="needs pip install -e '.[docs]'")
  folder = tmp_path_factory.mktemp("site")
  command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return folder


def test_the_site_has_the_references(site):
  texts = ("MARGIN", "margin_scores")
  for page, text in zip(GENERATED, texts, strict=True):
    assert text in (site / page / "index.html").read_text(encoding="utf-8")


def test_a_browser_opens_the_pages(site, tmp_path):
  found = [path.relative_to(site).parent.as_posix() for path in site.rglob("index.html")]
  # Of the generated pages, of which there are hundreds, one of each kind.
  written = [page for page in found if not page.startswith("reference/")]
  pages = [f"/{page}/".replace("/./", "/") for page in [*sorted(written), *GENERATED]]
  script = _OPEN_ALL.replace("PAGES", repr(pages))
  seen, missing, complaints = browsers.visit(site, script, tmp_path / "profile", timeout=600)
  assert seen["problems"] == []
  assert missing == set()
  assert complaints == []
  assert seen["pages"] > 20
  assert seen["images"] >= 4
