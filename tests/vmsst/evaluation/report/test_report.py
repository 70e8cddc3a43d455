import html
import html.parser
import itertools
import json
import re
import subprocess
import sys
from concurrent import futures

import benchmark_trees
import browsers
import memory_store
import pytest

from vmsst import errors
from vmsst.evaluation import report
from vmsst.evaluation.report import figures

NASTY = "<script>alert(1)</script> | `x` *y* [z](javascript:1) & co"
CODES = ("deu", "eng", "rus", "ukr")
# Runs in the page: finds elements that overflow it, and the width of scrollable content.
PROBE = """<script>
document.querySelectorAll('details').forEach(x => { x.open = true; });
const inside = x => x.parentElement.closest('.scroll, figure');
const out = x => x.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
const wide = [...document.body.querySelectorAll('*')].filter(x => !inside(x) && out(x));
const boxes = [...document.querySelectorAll('.scroll')];
Object.assign(document.documentElement.dataset, {
  wide: wide.map(x => x.tagName).join(' ') || 'none',
  page: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  scrolling: boxes.filter(x => x.scrollWidth > x.clientWidth + 1).length,
});
</script>"""


def tatoeba(shift, codes=("deu", "fra", "rus"), summary="average", missing=()):
  results = [
    {
      "name": code,
      "languages": [code, "eng"],
      "metrics": {"to English": 80 + shift, "from English": 70 + place, "average": 75.0 + shift},
    }
    for place, code in enumerate(codes)
  ]
  return {
    "title": "Tatoeba",
    "summary": {summary: 75.0 + shift},
    "missing": list(missing),
    "results": results,
    "seconds": {"embedding": 1.0, "scoring": 0.5},
  }


def agnosticism(shift):
  """Returns errors that are low within the Germanic and the Slavic languages."""
  results = [
    {
      "name": f"{x}->{y}",
      "languages": [x, y],
      "metrics": {"error": shift + 10.0 * ((x in CODES[:2]) != (y in CODES[:2]))},
    }
    for x, y in itertools.permutations(CODES, 2)
  ]
  return tatoeba(0) | {"title": "Agnosticism", "summary": {"error": shift}, "results": results}


def write_results(folder, encoder, benchmarks, absent=None):
  folder.mkdir(parents=True)
  content = {"encoder": encoder, "seen": None, "absent": absent or {}, "benchmarks": benchmarks}
  (folder / "results.json").write_text(json.dumps(content), encoding="utf-8")
  return folder


def train(folder):
  (folder / "train").mkdir(parents=True)
  (folder / "inference_eval").mkdir()
  lines = [{"step": step, "loss": 5 - step / 100, "timing/x": 1} for step in (100, 200, 300)]
  lines += [{"step": 200, "loss": -1e308}, {"step": 300, "loss": "nan"}]
  (folder / "train" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
  (folder / "inference_eval" / "tatoeba-metrics.jsonl").write_text(
    '{"step": 0, "accuracy/average": 0.1}\n{"step": 300, "accuracy/average": 0.4}\n'
  )
  return folder


@pytest.fixture
def folders(tmp_path):
  """Evaluations of two encoders, the first with a run's metrics, the second with fewer sets."""
  first = write_results(
    tmp_path / "a",
    "first",
    {"tatoeba": tatoeba(0), "agnosticism": agnosticism(2.0)},
    {"bucc": f"no folder /data/bucc2018 ({NASTY})"},
  )
  partial = tatoeba(1.5, ["deu"], "average (incomplete)", ["fra", NASTY])
  second = write_results(tmp_path / "b", NASTY, {"tatoeba": partial})
  return [train(first), second]


class Page(html.parser.HTMLParser):
  """Returns the elements of a page, and the texts of its tables' cells and headings."""

  def __init__(self, text):
    super().__init__()
    self.elements, self.texts, self._open = [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    if tag in ("td", "th", "h1", "h2", "h3", "caption", "li", "p", "svg"):
      self.texts.append((tag, ""))

  def handle_data(self, data):
    if self.texts:
      self.texts[-1] = (self.texts[-1][0], self.texts[-1][1] + data)

  def of(self, tag):
    return [text.strip() for each, text in self.texts if each == tag]


def table(content, section, title):
  """Returns a table of report.json: values by row and column."""
  (found,) = (each for each in content["sections"] if each["name"] == section)
  (found,) = (each for each in found["tables"] if each["title"] == title)
  columns = [(each["name"], each["detail"]) for each in found["columns"]]
  return {
    row["name"]: dict(zip(columns, cells, strict=True))
    for row, cells in zip(found["rows"], found["cells"], strict=True)
  }


def cell(value, difference=None, incomplete=False, note=""):
  return {"value": value, "difference": difference, "incomplete": incomplete, "note": note}


def test_numbers_are_next_to_published_ones_and_other_encoders(folders, tmp_path):
  paths = report.write_report(folders[:1], tmp_path / "out")
  assert [path.name for path in paths] == ["report.md", "report.json", "report.html"]
  content = json.loads(paths[1].read_text())
  compared = table(content, "tatoeba", "Next to published numbers")
  assert compared["first"]["average", ""]["value"] == 75.0
  assert compared["VMSST 24L mT5"]["average", ""]["value"] == 81.1
  assert "| VMSST 24L mT5 (vmsst, Tables 1, 3) | 81.1 |" in paths[0].read_text()
  results = table(content, "tatoeba", "Results")
  assert results["deu"]["average: EMS", "ems, Table IV"]["value"] == 99.3
  missing = content["missing"]
  assert missing["Benchmarks that were not run"] == [f"bucc: no folder /data/bucc2018 ({NASTY})"]
  (line,) = missing["Parts of the overall Score"]
  assert line.startswith("first: sts was not run; xlsts was not run; bucc is a")
  assert content["results"]["first"]["benchmarks"]["tatoeba"]["summary"] == {"average": 75.0}


def test_a_report_opens_with_the_main_averages_and_ends_with_what_is_missing(folders, tmp_path):
  pytest.importorskip("matplotlib", reason="figures need matplotlib")
  errors_found = tatoeba(0) | {"title": "WMT", "summary": {"error": 2.5}}
  several = tatoeba(0) | {"title": "BUCC", "summary": {"margin_f1": 90.0, "cosine_f1": 80.0}}
  unpublished = tatoeba(0) | {"title": "NTREX", "summary": {"accuracy": 50.0}}
  benchmarks = {"wmt2012": errors_found, "bucc": several, "ntrex": unpublished}
  other = write_results(tmp_path / "c", "third", benchmarks)
  results = json.loads((other / "results.json").read_text())
  (other / "results.json").write_text(json.dumps(results | {"seen": ["German", "English"]}))
  markdown, path, page = report.write_report([*folders, other], tmp_path / "out")
  content = json.loads(path.read_text())
  (table,) = content["overview"]["tables"]
  assert [(row["name"], row["detail"]) for row in table["rows"]] == [
    ("Tatoeba", "average"),
    ("WMT", "error, lower is better"),
    ("BUCC", "margin_f1"),
  ]
  nothing = cell(None)
  # The best published numbers, as the papers' tables have them.
  assert table["cells"] == [
    [
      cell(75.0),
      cell(76.5, incomplete=True),
      nothing,
      cell(85.4, note="VMSST Contrastive 24L mT5 (vmsst, Table 1)"),
    ],
    [nothing, nothing, cell(2.5), cell(1.06, note="LASER (agnostic, Table 1)")],
    [nothing, nothing, cell(90.0), cell(93.7, note="Contrastive 24L mT5 (vmsst, Table 1)")],
  ]
  assert content["missing"]["Languages that were not in the training data"][-1] == (
    "third: 2 of 4: French, Russian"
  )
  text = page.read_text(encoding="utf-8")
  assert text.index("<svg") < text.index("<table")
  for titles in (Page(text).of("h2"), re.findall("^## (.*)", markdown.read_text("utf-8"), re.M)):
    assert (titles[0], titles[-1]) == ("Next to published numbers", "What is missing")


def test_averages_of_cut_vectors_are_in_a_table_and_a_figure(tmp_path):
  pytest.importorskip("matplotlib", reason="figures need matplotlib")

  def cut(*values):
    sizes = [{"dimension": 64 << i, "summary": {"average": x}} for i, x in enumerate(values)]
    return {"tatoeba": tatoeba(0) | {"dimensions": sizes}}

  folders = [
    write_results(tmp_path / "a", "first", cut(50.0, 70.0, 75.0)),
    write_results(tmp_path / "b", "second", cut(60.0, 75.0)),
    write_results(tmp_path / "c", "whole", {"tatoeba": tatoeba(0)}),
  ]
  markdown, path, page = report.write_report(folders, tmp_path / "out")
  found = table(json.loads(path.read_text()), "tatoeba", "Averages by number of dimensions")
  assert {column: each["value"] for column, each in found["average"].items()} == {
    ("64", "first"): 50.0,
    ("128", "first"): 70.0,
    ("256", "first"): 75.0,
    ("64", "second"): 60.0,
    ("128", "second"): 75.0,
  }
  assert "| Average | 64 (first) |" in markdown.read_text("utf-8")
  figure = page.read_text("utf-8").split("<svg")[-1]
  assert "Number of dimensions: Tatoeba" in figure
  shown = re.findall(r">([^<>]*)</text>", figure)
  assert {"64", "128", "256", "first", "second"} <= set(shown)
  assert "whole" not in shown


def test_xsim_of_each_language_is_next_to_the_published_table(tmp_path):
  keys = [
    "xsim en fr ja ko ru",
    *(f"xsim en fr ja ko ru: {code}" for code in ["en", "fr", "ja", "ko", "ru"]),
  ]
  found = tatoeba(0) | {"summary": {key: 0.1 * i for i, key in enumerate(keys)}}
  folder = write_results(tmp_path / "a", "first", {"flores": found})
  markdown, path, _ = report.write_report([folder], tmp_path / "out")
  compared = table(json.loads(path.read_text()), "flores", "Next to published numbers")
  # Table 9, whose columns are avg, en, ko, fr, ja, ru.
  assert [compared["mE5-base"][key, ""]["value"] for key in keys] == [
    0.16,
    0.05,
    0.12,
    0.02,
    0.4,
    0.2,
  ]
  assert compared["first"]["xsim en fr ja ko ru: ko", ""]["value"] == pytest.approx(0.4)
  assert (
    "| LASER2 (soft, Tables 3, 9) | 0.2 | 0.1 | 0.1 | 0.1 | 0.32 | 0.4 |" in markdown.read_text()
  )


def test_what_cannot_be_compared_is_said_and_not_subtracted(folders, tmp_path):
  same = write_results(tmp_path / "c", "third", {"tatoeba": tatoeba(-1)})
  _, path, _ = report.write_report([*folders, same], tmp_path / "out")
  content = json.loads(path.read_text())
  row = table(content, "tatoeba", "Averages")["average"]
  assert row["first", ""] == cell(75.0, None, False)
  assert row[NASTY, ""] == cell(76.5, None, True)
  assert row["third", ""] == cell(74.0, -1.0, False)
  results = table(content, "tatoeba", "Results")
  assert results["deu"]["average", NASTY]["difference"] == 1.5
  assert results["fra"]["average", NASTY]["value"] is None
  (section,) = (each for each in content["sections"] if each["name"] == "tatoeba")
  assert content["missing"]["Sets without results"] == [f"Tatoeba ({NASTY}): fra, {NASTY}"]
  assert any("different sets (2 are not common" in note for note in section["notes"])
  absent = content["missing"]["Benchmarks that were not run"]
  assert f"agnosticism ({NASTY}, third): not evaluated" in absent


def test_the_choice_of_questions_is_noted_in_all_formats(tmp_path):
  def questions(choice):
    return tatoeba(0) | {"summary": {"mkqa": 30.0}, "options": {"mkqa_questions": choice}}

  one, other = (
    write_results(tmp_path / name, name, {"questions": questions(name)})
    for name in ("answered", "all")
  )
  for folders, expected in (
    ([one], ["here they are dropped"]),
    ([one, other], ["answered: A third of MKQA's", "all: A third of MKQA's"]),
  ):
    paths = report.write_report(folders, tmp_path / "out")
    content = json.loads(paths[1].read_text())
    for section in (content["score"], content["sections"][0]):
      assert all(any(text in note for note in section["notes"]) for text in expected)
    for path in (paths[0], paths[2]):
      text = html.unescape(path.read_text(encoding="utf-8"))
      assert all(each in text for each in expected)


def test_what_results_hold_stays_text(folders, tmp_path):
  markdown, _, path = report.write_report(folders, tmp_path / "out")
  page = Page(path.read_text(encoding="utf-8"))
  assert "script" not in {tag for tag, _ in page.elements}
  assert NASTY in page.of("th")
  assert not any("javascript" in str(attrs.get("href")) for _, attrs in page.elements)
  text = markdown.read_text(encoding="utf-8")
  assert "<" not in text
  assert not re.search(r"(?<!\\)[`*]|(?<!\\)\[", text.replace("](", ""))
  blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
  assert len(blocks) > 4
  for lines in blocks:  # Every row has as many cells as the header.
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_page_is_accessible_and_needs_nothing_else(folders, tmp_path):
  pytest.importorskip("matplotlib", reason="figures need matplotlib")
  _, _, path = report.write_report(folders, tmp_path / "out")
  page_text = path.read_text(encoding="utf-8")
  page = Page(page_text)
  assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.elements if tag == "th")
  assert len(page.of("caption")) == [tag for tag, _ in page.elements].count("table")
  levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
  assert levels[0] == 1
  assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
  figures = [attrs for tag, attrs in page.elements if tag == "svg"]
  # Comparison, heat map and tree, training, evaluation during training.
  assert len(figures) == 5
  assert {"deu, West Germanic", "rus, East Slavic"} <= set(
    re.findall(r">([^<>]*)</text>", page_text)
  )
  assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in figures)
  ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
  assert len(set(ids)) == len(ids)
  links = [
    attrs[key] for _, attrs in page.elements for key in ("href", "xlink:href") if key in attrs
  ]
  assert all(link.startswith("data:image/png;") or link[1:] in ids for link in links)
  assert {"#at-tatoeba", "#training", "#papers"} <= set(links)
  assert not any("src" in attrs for _, attrs in page.elements)


def test_without_matplotlib_the_report_says_how_to_get_figures(folders, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  assert figures.hint()
  markdown, _, page = report.write_report(folders, tmp_path / "out")
  assert "pip install" in markdown.read_text(encoding="utf-8")
  text = page.read_text(encoding="utf-8")
  assert "<svg" not in text
  assert "pip install" in text
  assert "75.00" in text


def test_run_without_evaluation_gives_its_curves(tmp_path):
  pytest.importorskip("matplotlib", reason="figures need matplotlib")
  run = train(tmp_path / "run")
  _, _, path = report.write_report([run], tmp_path / "out")
  page = Page(path.read_text(encoding="utf-8"))
  assert page.of("h2") == ["Training", "Papers"]
  assert [tag for tag, _ in page.elements].count("svg") == 2


def test_encoders_of_one_name_get_distinct_names(tmp_path):
  folders = [write_results(tmp_path / name, "same", {"tatoeba": tatoeba(0)}) for name in "ab"]
  _, path, _ = report.write_report(folders, tmp_path / "out")
  assert json.loads(path.read_text())["encoders"] == [f"same ({x})" for x in folders]


def test_encoders_are_shown_by_name_and_failures_by_reason(folders, tmp_path):
  new = write_results(
    tmp_path / "new",
    {"name": "new", "digest": "1" * 64},
    {"tatoeba": tatoeba(2) | {"data": {"name": "/data", "digest": "2" * 64}}},
  )
  content = json.loads((new / "results.json").read_text())
  (new / "results.json").write_text(json.dumps(content | {"failed": {"sts": f"no {NASTY}"}}))
  markdown, path, page = report.write_report([folders[0], new], tmp_path / "out")
  found = json.loads(path.read_text())
  assert found["encoders"] == ["first", "new"]
  assert found["missing"]["Benchmarks that failed"] == [f"sts (new): no {NASTY}"]
  assert any(
    line.startswith("new: sts failed;") for line in found["missing"]["Parts of the overall Score"]
  )
  assert "### Benchmarks that failed" in markdown.read_text(encoding="utf-8")
  shown = Page(page.read_text(encoding="utf-8"))
  assert "Benchmarks that failed" in shown.of("h3")
  assert f"sts (new): no {NASTY}" in shown.of("li")


def contents(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folders_that_cannot_be_read_or_written_are_one_line(folders, tmp_path):
  (tmp_path / "file").touch()
  (tmp_path / "empty").mkdir()
  (tmp_path / "taken" / "report.html").mkdir(parents=True)
  before = contents(tmp_path)
  for given, out, message in (
    ("none", "out", "none: no such folder: give output folders"),
    ("file", "out", "file: not a folder: give output folders"),
    ("empty", "out", "empty: neither results.json nor"),
    ("a/results.json", "out", "results.json: not a folder"),
    ("a", "file", "file is not a folder; give another output folder"),
    ("a", "a/results.json", "results.json is not a folder"),
    ("a", "a", "the output .*/a is also an input"),
    ("a", "empty/../a", "the output .*/a is also an input"),
    ("a", "taken", "report.html is a folder, not a file; delete it"),
  ):
    with pytest.raises(errors.InputError, match=message) as caught:
      report.write_report([folders[1], tmp_path / given], tmp_path / out)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_a_report_in_a_store_is_that_of_a_local_folder(folders, tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  train(folders[1])
  urls = [f"gs://bucket/{number}/run" for number, _ in enumerate(folders)]
  for folder, url in zip(folders, urls, strict=True):
    benchmark_trees.upload(folder, url)
  written = []
  former = memory_store.MemoryStore.put_file

  def put_file(self, local, url, *args, **kwargs):
    written.append(url)
    former(self, local, url, *args, **kwargs)

  monkeypatch.setattr(memory_store.MemoryStore, "put_file", put_file)
  local = report.write_report(folders, tmp_path / "report")
  remote = report.write_report([*urls, f"{urls[0]}/"], "gs://bucket/report")
  assert written == [f"gs://bucket/report/report.{end}" for end in ("md", "json", "html")]
  assert list(map(str, remote)) == written
  for path, url in zip(local, remote, strict=True):
    same = path.read_text()
    assert url.read_text() == same
  with pytest.raises(errors.InputError, match="gs://bucket/0/run is also an input"):
    report.write_report(urls, urls[0])
  with pytest.raises(errors.InputError, match="gs://bucket/none: no such folder"):
    report.write_report(["gs://bucket/none"], "gs://bucket/other")
  assert not store.find("bucket/other")


def test_a_folder_that_is_given_twice_is_read_once(folders, tmp_path):
  _, path, _ = report.write_report([folders[0], f"{folders[0]}/"], tmp_path / "out")
  assert json.loads(path.read_text())["encoders"] == ["first"]


def changed(path, value):
  """Returns the text of a results.json with one part replaced."""
  content = {"encoder": "x", "seen": None, "absent": {}, "benchmarks": {"tatoeba": tatoeba(0)}}
  *way, last = path
  place = content
  for key in way:
    place = place[key]
  if value is KeyError:
    del place[last]
  else:
    place[last] = value
  return json.dumps(content)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "the content is \\[\\], not an object"),
    ("{}", "no encoder: give a file of"),
    (changed(["encoder"], 3), "encoder is 3, not a text"),
    (changed(["encoder"], "\ud800"), "not valid text"),
    (changed(["encoder"], {"digest": "1"}), "no encoder.name"),
    (changed(["encoder"], {"name": "x", "digest": 1}), "encoder.digest is 1, not a text"),
    (changed(["failed"], {"sts": []}), "failed.sts is \\[\\], not a text"),
    (changed(["max_length"], "32"), "max_length is '32', not an integer"),
    (changed(["max_length"], 0), "max_length is 0, not an integer above 0"),
    (
      changed(["benchmarks", "tatoeba", "options"], {"x": 1}),
      "benchmarks.tatoeba.options.x is 1, not a text",
    ),
    (
      changed(["benchmarks", "tatoeba", "dimensions"], [{"dimension": "64", "summary": {}}]),
      r"dimensions\[0\].dimension is '64', not an integer",
    ),
    (changed(["seen"], "de"), "seen is 'de', not a list"),
    (changed(["absent"], {"bucc": None}), "absent.bucc is None, not a text"),
    (changed(["benchmarks", "tatoeba", "title"], KeyError), "no benchmarks.tatoeba.title"),
    (changed(["benchmarks", "tatoeba", "summary", "average"], "9"), "average is '9', not a number"),
    (changed(["benchmarks", "tatoeba", "summary", "average"], float("nan")), "not a finite number"),
    (changed(["benchmarks", "tatoeba", "summary", "average"], -1e308), "not a finite number of at"),
    (changed(["benchmarks", "tatoeba", "seconds", "scoring"], 10**13), "not a finite number of at"),
    (
      changed(["benchmarks", "tatoeba", "results", 1, "metrics"], []),
      r"benchmarks.tatoeba.results\[1\].metrics is \[\], not an object",
    ),
  ],
)
def test_broken_results_are_named_by_file_and_key(tmp_path, text, message):
  (tmp_path / "results.json").write_text(text, encoding="utf-8")
  with pytest.raises(errors.InputError, match=rf"results\.json: .*{message}"):
    report.write_report([tmp_path], tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_broken_metrics_and_missing_files_are_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"neither results\.json nor train/metrics\.jsonl"):
    report.write_report([tmp_path], tmp_path / "out")
  with pytest.raises(errors.InputError, match="no folder to report on"):
    report.write_report([], tmp_path / "out")
  metrics = train(tmp_path / "run") / "train" / "metrics.jsonl"
  metrics.write_text('{"step": 1, "loss": 2}\n{"loss": 2}\n')
  with pytest.raises(errors.InputError, match=r"metrics\.jsonl:2: not an object of a step"):
    report.write_report([tmp_path / "run"], tmp_path / "out")
  (tmp_path / "file").touch()
  good = write_results(tmp_path / "a", "x", {"tatoeba": tatoeba(0)})
  with pytest.raises(errors.InputError, match=r"cannot be created, because .*file is not"):
    report.write_report([good], tmp_path / "file" / "out")
  for key, empty in (("metrics", {}), ("languages", [])):
    incomplete = agnosticism(1.0)
    incomplete["results"][0][key] = empty
    bad = write_results(tmp_path / key, "x", {"agnosticism": incomplete})
    with pytest.raises(errors.InputError, match="agnosticism are not those of every pair"):
      report.write_report([bad], tmp_path / "out")


def browse(page):
  """Shows a page in a browser; returns its content and the browser's complaints."""
  command = browsers.command(page.with_suffix(""), "--window-size=600,800", "--dump-dom")
  done = subprocess.run(
    [*command, page.as_uri()], capture_output=True, text=True, timeout=60, check=True
  )
  return done.stdout, browsers.complaints(done.stderr)


@pytest.mark.slow
def test_a_browser_shows_the_page_and_nothing_sticks_out(folders, tmp_path):
  many = write_results(tmp_path / "c", "many_words_" * 12, {"tatoeba": tatoeba(0)})
  _, _, path = report.write_report([*folders, many], tmp_path / "out")
  # The page itself allows no script: a copy of it does.
  text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text("utf-8"))
  copy = path.with_name("copy.html")
  copy.write_text(text.replace("</body>", f"{PROBE}</body>"), "utf-8")
  with futures.ThreadPoolExecutor() as pool:
    (shown, complaints), (probed, more_complaints) = pool.map(browse, (path, copy))
  assert complaints == more_complaints == []
  page = Page(shown)
  assert {"Evaluation report"} == set(page.of("h1"))
  assert {"Tatoeba", "Agnosticism", "What is missing"} <= set(page.of("h2"))
  assert {"75.00", "76.50†", "81.1"} <= set(page.of("td"))
  assert NASTY in page.of("th")
  found = dict(Page(probed).elements)["html"]
  assert (found["data-wide"], found["data-page"]) == ("none", "0")
  assert int(found["data-scrolling"]) >= 2
