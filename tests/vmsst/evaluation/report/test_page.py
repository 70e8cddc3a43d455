import base64
import html
import json
import re

import benchmark_trees
import memory_store
import pytest

from vmsst import errors
from vmsst.evaluation.report import page as page_lib
from vmsst.evaluation.report import papers

pytest.importorskip("matplotlib")

NASTY = "_<script>alert(1)</script> | `x` *y* {{ 7 * 7 }} $z & \x1b[1m 学"
SYSTEM = "VMSST 24L mT5"


def found(summary, results=(), title="Title", **more):
  """Returns what `vmsst eval` writes on a benchmark; results have languages and metrics by name."""
  return {
    "title": title,
    "summary": summary,
    "missing": [],
    "results": [{"name": x, "languages": list(y), "metrics": z} for x, (y, z) in results],
    "seconds": {"embedding": 1.0, "scoring": 0.5},
    "data": {"name": "/data", "digest": "0" * 64},
    "options": {},
  } | more


def of_tatoeba(value, codes=("deu", "fra", "rus"), key="average", **more):
  results = [(code, ((code, "eng"), {"average": value})) for code in codes]
  return found({key: value}, results, **more)


def write(folder, encoder, benchmarks, **more):
  folder.mkdir(parents=True, exist_ok=True)
  results = {"encoder": {"name": encoder, "digest": "1"}, "seen": None, "absent": {}, "failed": {}}
  text = json.dumps(results | {"benchmarks": benchmarks} | more)
  (folder / "results.json").write_text(text, encoding="utf-8")
  return folder


def train(folder):
  """Writes metrics of training and of an evaluation."""
  for path, metric in (
    (folder / "train" / "metrics.jsonl", "loss"),
    (folder / "inference_eval" / "tatoeba-metrics.jsonl", "average"),
  ):
    path.parent.mkdir(parents=True)
    rows = [{"step": step, metric: value} for step, value in ((1, 5), (2, -1e308), (3, "nan"))]
    path.write_text("".join(f"{json.dumps({**row, 'timing/x': 1})}\n" for row in rows))
  return folder


def inner(tag, source):
  return re.findall(rf"<(?:{tag})(?: [^>]*)?>(.*?)</(?:{tag})>", source, re.DOTALL)


class Page:
  """The content of a page, with tables by section and caption, and texts of figures by title."""

  def __init__(self, folders):
    self.source = page_lib.page(folders)
    self.headings, self.notes = ([*map(html.unescape, inner(x, self.source))] for x in ("h2", "li"))
    self.tables, self.figures = {}, {}
    for title, section in zip(self.headings, inner("section", self.source), strict=True):
      for each in inner("table", section):
        (_, *columns), *rows = (map(html.unescape, inner("t[hd]", x)) for x in inner("tr", each))
        lines = {name: dict(zip(columns, cells, strict=True)) for name, *cells in rows}
        self.tables[title, *inner("caption", each)] = lines
    for title, data in re.findall(r'<img alt="(.*?)" src="data:.*?;base64,(.*?)">', self.source):
      texts = inner("text", base64.b64decode(data, validate=True).decode())
      self.figures[html.unescape(title)] = [*map(html.unescape, texts)]

  def notes_start(self, *starts):
    return all(any(note.startswith(start) for note in self.notes) for start in starts)


@pytest.fixture
def page(tmp_path):
  """Writes the report on results of benchmarks by encoder; returns the page."""

  def written(results, **more):
    folders = [write(tmp_path / f"{i}", *each, **more) for i, each in enumerate(results.items())]
    return Page(folders)

  return written


def test_lengths_and_prompts_are_named(tmp_path):
  folders = [
    write(tmp_path / "a", "own", {"tatoeba": of_tatoeba(75)}),
    write(tmp_path / "b", "e5", {"tatoeba": of_tatoeba(76)}, max_length=512),
  ]
  path = folders[1] / "results.json"
  path.write_text(path.read_text().replace('"name": "e5"', '"name": "e5", "prompt": "query: <b>"'))
  page = Page(folders)
  text = " ".join(html.unescape(page.source).split())
  assert "own unknown; e5 512 tokens, “query: <b>”. Results with" in text
  assert "query: <b>" not in page.source


def test_numbers_are_next_to_published_ones_and_those_of_cut_vectors(page):
  sizes = [{"dimension": 64 << i, "summary": {"average": 50.0 + i}} for i in range(3)]
  partial = of_tatoeba(76.5, ["deu"], "average (incomplete)", missing=["fra", NASTY])
  shown = page({"own": {"tatoeba": of_tatoeba(75, dimensions=sizes)}, "x": {"tatoeba": partial}})
  assert shown.tables["Overview", "Main averages"] == {
    "Title: average": {"own": "75.00", "x": "–"},
    "Title: average (incomplete)": {"own": "–", "x": "76.50"},
  }
  averages = shown.tables["Title", "Averages"]
  assert averages["x"] == {"average": "–", "average (incomplete)": "76.50"}
  own = {name: row["average"] for name, row in averages.items() if name != "x"}
  cut = {"own, first 64 dimensions": "50.00", "own, first 128 dimensions": "51.00"}
  assert own == {"own": "75.00", **cut}
  compared = shown.tables["Title", "Averages, next to published ones"]
  assert compared["own"] == {"average": "75.00"}
  assert compared[f"{SYSTEM} (vmsst, Table 1)"] == {"average": "81.1"}
  assert "x" not in compared
  row = shown.tables["Title", "Results"]["deu"]
  assert (row["x: average"], row["EMS (ems, Table IV): average"]) == ("76.50", "99.3")
  assert shown.notes_start(
    "The encoders were evaluated on different sets", "x: Title lacks fra, _<", "ems: EMS"
  )
  assert not shown.notes_start("agnostic: ")


@pytest.mark.parametrize("name", ["/vmsst/e5", "/runs/vmsst_24l/checkpoint_9"])
def test_own_files_come_first_and_ablations_only_next_to_their_model(page, name):
  own = found({"accuracy": 90.0}, title="my.de-en.tsv")
  shown = page({name: {"xlsts": found({"pearson": 70.0}), "bitext-my.de-en": own}})
  assert shown.headings[:2] == ["Your files", "Overview"]
  assert shown.tables["Your files", "my.de-en.tsv"] == {name: {"accuracy": "90.00"}}
  rows = shown.tables["Title", "Averages, next to published ones"]
  assert f"{SYSTEM} (vmsst, Table 1)" in rows
  assert ("VMSST 24L (no KL) (vmsst, Table 4)" in rows) == ("24l" in name)
  assert page({name: {"bitext-my.de-en": own}}).headings == ["Your files"]


def test_the_score_is_next_to_published_ones_if_no_part_is_missing(page):
  whole = {
    "sts": found({"pearson": 60.0}),
    "xlsts": found({"pearson": 60.0}),
    "tatoeba": found({"average": 60.0}),
    "bucc": found({"cosine_f1": 50.0, "margin_f1": 70.0}),
    "questions": found({"nq": 60.0, "mkqa": 60.0}, options={"mkqa_questions": "all"}),
  }
  lacking = {name: whole[name] for name in ("xlsts", "tatoeba")}
  absent, failed = {"bucc": "no folder"}, {"sts": "no correlations"}
  shown = page({"first": whole, "second": lacking}, absent=absent, failed=failed, max_length=32)
  averages = shown.tables["Overall Score of the VMSST paper", "Averages"]
  assert averages["first"]["Score"] == "60.00"
  assert list(averages) == ["first"]
  compared = shown.tables["Overall Score of the VMSST paper", "Averages, next to published ones"]
  assert compared[f"{SYSTEM} (vmsst, Table 1)"] == {"Score": "65.9"}
  assert shown.notes_start(
    "first: A third of",  # the questions
    "second: bucc was not run: no folder",
    "second: sts failed: no correlations",
    "second: its training languages are unknown",
  )
  assert (shown.headings[0], shown.headings[-1]) == ("Overview", "What is missing")
  assert "first 32 tokens" in shown.source


def matrix(name, labels, error):
  """Returns a result of `benchmarks.agnosticism`; labels are codes, or "pl_1"."""
  count = len(labels)
  points = [[i, -i] for i in range(count)]
  sentence = {"line": 3, "points": points, "shares": [0.6, 0.4], "edges": [[0, 1, 0.7]]}
  return {
    "name": name,
    "languages": [label.split("_")[0] for label in labels],
    "metrics": {"error": 1.0},
    "arrays": {"labels": labels, "error": error, **sentence},
  }


def test_errors_are_averaged_over_rows_columns_languages_and_texts(page):
  texts = [
    matrix("a", ["en", "uk"], [[0, 10], [30, 0]]),
    matrix("b", ["en", "pl_1", "pl_2"], [[0, 1, 2], [3, 0, 5], [4, 6, 0]]),
  ]
  scored = found({"error": 1.0}) | {"results": texts}
  shown = page({"x": {"translations": scored}}).tables["Title", "Results"]
  columns = ("x: error", "x: a", "x: b", "x: mean of texts")
  rows = {name: tuple(row[x] for x in columns if row[x] != "–") for name, row in shown.items()}
  assert (rows["b en->*"], rows["b *->en"], rows["b pl_1->pl_2"]) == (
    ("1.50",),
    ("3.50",),
    ("5.00",),
  )
  assert rows["en"] == ("20.00", "2.50", "11.25")
  # pl_1: the mean of 4 (its row) and 3.5; pl_2: of 5 and 3.5.
  assert rows["pl"] == ("4.00", "4.00")


def test_figures_show_errors_trees_sentences_and_curves_and_names_stay_text(tmp_path):
  codes = ["deu", "eng", "rus", "ukr"]
  error = [[10.0 * ((x in codes[:2]) != (y in codes[:2])) for y in codes] for x in codes]
  scored = found({"error": 1.0}, title=NASTY) | {"results": [matrix("all languages", codes, error)]}
  own = {"agnosticism": scored}
  folder = write(train(tmp_path / "run"), NASTY, own, absent={"bucc": f"no folder {NASTY}"})
  shown = Page([folder])
  texts = shown.figures[f"Errors: {NASTY}, {NASTY}"]
  assert [texts.count(x) for x in ("10.0", "0.0", "6.7")] == [8, 4, 9]  # 6.7: the averages
  assert all(texts.count(x) == 2 for x in [*codes, "average"])
  families = {"deu, West Germanic", "eng, West Germanic", "rus, East Slavic", "ukr, East Slavic"}
  assert families < set(shown.figures[f"Languages by error: {NASTY}, {NASTY}"])
  sentence = shown.figures[f"One sentence in all versions: {NASTY}, {NASTY}, line 3"]
  assert {*codes, "0.70", "first principal component (60 % of variance)"} < set(sentence)
  curves = shown.figures["Metrics over training steps"]
  assert {"loss", "tatoeba: average", NASTY} < set(curves)
  assert "timing/x" not in curves
  assert not re.search("<(script|link|iframe)", shown.source)
  assert NASTY in shown.headings
  assert f"{NASTY}: bucc was not run: no folder {NASTY}" in shown.notes
  assert "\"default-src 'none'; " in shown.source
  links = re.findall(r' (?:href|src)="(.*?)"', shown.source)
  assert all(link.startswith(("#section-", "data:image/svg+xml;base64,")) for link in links)


def test_published_averages_are_over_the_languages_of_an_encoder(page):
  numbers = {
    x.of.removesuffix("-eng"): x.value
    for x in papers.load()
    if (x.paper, x.table, x.system) == ("vmsst", "14", SYSTEM)
  }
  own = of_tatoeba(75, ("deu", "fra", "xho"), "average seen")
  own["summary"]["average unseen"] = 75
  seen = ["English", "French", "German"]
  shown = page({"x": {"tatoeba": own}}, seen=seen)
  rows = shown.tables["Title", "Averages, next to published ones"]
  row = f"{SYSTEM} on the %s languages of x (vmsst, Table 14)"
  seen, unseen = (float(rows[row % part][f"average {part}"]) for part in ("seen", "unseen"))
  assert seen == pytest.approx((numbers["deu"] + numbers["fra"]) / 2, abs=0.0051)
  assert unseen == pytest.approx(numbers["xho"], abs=0.0051)


def test_runs_in_a_store_give_the_same_page(tmp_path, monkeypatch):
  memory_store.installed(monkeypatch)
  folder = write(train(tmp_path / "a"), "same", {"tatoeba": of_tatoeba(75)})
  benchmark_trees.upload(folder, "gs://bucket/a")
  assert page_lib.page([folder]) == page_lib.page(["gs://bucket/a"])
  both = Page([folder, "gs://bucket/a", f"{folder}/"])
  names = [name for name in both.tables["Title", "Averages"] if name.startswith("same")]
  assert names == [f"same ({folder})", "same (gs://bucket/a)"]


def test_broken_files_are_named_with_key_or_line(tmp_path):
  path = write(train(tmp_path), "x", {"tatoeba": of_tatoeba(75)}) / "results.json"
  content = path.read_text(encoding="utf-8")
  path.write_text(content.replace('{"average": 75}', '{"average": NaN}', 1), encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"results\.json: .*; give a file of"):
    page_lib.page([tmp_path])
  path.unlink()
  (tmp_path / "train" / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n{"st')
  with pytest.raises(errors.InputError, match=r"metrics\.jsonl:2"):
    page_lib.page([tmp_path])
  with pytest.raises(errors.InputError, match=r": neither results.json nor train/metrics.jsonl"):
    page_lib.page([tmp_path / "none"])
