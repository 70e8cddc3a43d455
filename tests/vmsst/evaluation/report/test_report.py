import base64
import collections
import html.parser
import itertools
import json
import re
import statistics
import sys

import benchmark_trees
import memory_store
import numpy as np
import pytest

from vmsst import errors, languages
from vmsst.evaluation import benchmarks, report, suite
from vmsst.evaluation.benchmarks import parallel
from vmsst.evaluation.benchmarks import tatoeba as tatoeba_benchmark
from vmsst.evaluation.metrics import scores
from vmsst.evaluation.report import plots, published
from vmsst.tasks.opus import recipes

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")


NASTY = "_<script>alert(1)</script> | `x` *y* {{ 7 * 7 }} $z & \x1b[1m 学"
CODES = ("deu", "eng", "rus", "ukr")
SYSTEM = "VMSST 24L mT5"


def found(title, summary, results=(), **more):
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


def tatoeba(shift, codes=("deu", "fra", "rus"), key="average", **more):
  results = [
    (code, ((code, "eng"), {"to English": 80 + shift, "average": 75 + shift})) for code in codes
  ]
  return found("Tatoeba", {key: 75.0 + shift}, results, **more)


def pairwise(error_of, text=""):
  """Returns the results of a benchmark of `agnosticism`."""
  results = [
    (f"{text} {x}->{y}".strip(), ((x.split("_")[0], y.split("_")[0]), {"error": error}))
    for (x, y), error in error_of.items()
  ]
  return found("Agnosticism", {"error": 1.0}, results)


def paper_table(number):
  """Returns the errors of a table of the agnosticism paper by source and target ("*": the mean)."""
  return {
    tuple(each.of.rpartition(" ")[2].split("->")): each.value
    for each in published.load()
    if (each.paper, each.table) == ("agnostic", number) and each.of
  }


def write(folder, encoder, benchmarks, **more):
  folder.mkdir(parents=True, exist_ok=True)
  results = {"encoder": {"name": encoder, "digest": "1"}, "seen": None, "absent": {}, "failed": {}}
  text = json.dumps(results | {"benchmarks": benchmarks} | more)
  (folder / "results.json").write_text(text, encoding="utf-8")
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


class Page(html.parser.HTMLParser):
  """The content of a page: elements, headings, list items, and tables by section and caption."""

  def __init__(self, path):
    super().__init__()
    self.elements, self.texts, self.tables = [], [], {}
    self._rows = []
    self.feed(path.read_text(encoding="utf-8"))
    for section, caption, rows in self._rows:
      (_, *columns), *lines = rows
      self.tables[section, caption] = {x: dict(zip(columns, y, strict=True)) for x, *y in lines}

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    self.texts.append((tag, ""))
    if tag == "table":
      self._rows.append([self.of("h2")[-1], None, []])
    elif tag == "tr":
      self._rows[-1][2].append([])

  def handle_endtag(self, tag):
    last, text = self.texts[-1]
    if tag == last == "caption":
      self._rows[-1][1] = text
    elif tag == last and tag in ("td", "th"):
      self._rows[-1][2][-1].append(text)
    if tag in ("td", "th", "li", "p", "h2", "style"):
      self.texts.append(("", ""))

  def handle_data(self, data):
    if self.texts:
      self.texts[-1] = (self.texts[-1][0], self.texts[-1][1] + data)

  def of(self, tag):
    return [" ".join(text.split()) for each, text in self.texts if each == tag]

  def figures(self):
    """Returns the texts of each figure, by its title."""
    prefix = "data:image/svg+xml;base64,"
    return {
      attrs["alt"]: svg_texts(attrs["src"].removeprefix(prefix))
      for tag, attrs in self.elements
      if tag == "img"
    }


def svg_texts(data):
  svg = base64.b64decode(data, validate=True).decode()
  return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


@pytest.fixture
def page(tmp_path):
  """Writes the report on results of benchmarks by encoder; returns the page."""

  def written(results, **more):
    folders = [
      write(tmp_path / f"{i}", name, each, **more) for i, (name, each) in enumerate(results.items())
    ]
    return Page(report.write_report(folders, tmp_path / "out"))

  return written


def test_numbers_are_next_to_published_ones_and_other_encoders(page):
  shown = page({"first": {"tatoeba": tatoeba(0)}, "second": {"tatoeba": tatoeba(1)}})
  overview = shown.tables["Overview", "Main averages, next to the best published ones"]
  assert overview == {
    "first": {"tatoeba average": "75.00"},
    "second": {"tatoeba average": "76.00"},
    "VMSST Contrastive 24L mT5 (vmsst, Table 1)": {"tatoeba average": "85.4"},
  }
  averages = shown.tables["Tatoeba", "Averages"]
  assert [averages[x]["average"] for x in ("first", "second")] == ["75.00", "76.00"]
  assert averages[f"{SYSTEM} (vmsst, Table 1)"]["average"] == "81.1"
  row = shown.tables["Tatoeba", "Results"]["deu"]
  assert row["second: average"] == "76.00"
  assert row["EMS (ems, Table IV): average"] == "99.3"


def test_incomplete_averages_are_not_next_to_published_ones(page):
  partial = tatoeba(1.5, ["deu"], "average (incomplete)", missing=["fra", NASTY])
  shown = page({"first": {"tatoeba": tatoeba(0)}, "second": {"tatoeba": partial}})
  averages = shown.tables["Tatoeba", "Averages"]
  assert averages["second"] == {"average": "–", "average (incomplete)": "76.50"}
  assert {row["average (incomplete)"] for name, row in averages.items() if name != "second"} == {
    "–"
  }
  assert "second" not in shown.tables["Overview", "Main averages, next to the best published ones"]
  notes = shown.of("li")
  assert any("different sets: their averages are not comparable" in note for note in notes)
  assert any(note.startswith("second: Tatoeba lacks fra, _<script>") for note in notes)


def test_the_score_and_what_is_missing(page):
  more = {"absent": {"bucc": "no folder"}, "failed": {"sts": "no correlations"}, "max_length": 32}
  summary = {"pearson": 60.0, "pearson 2012": 50.0}
  shown = page({"first": {"tatoeba": tatoeba(0), "xlsts": found("XL", summary)}}, **more)
  parts = shown.tables["Overall Score of the VMSST paper", "Averages"]
  assert parts["first"] == {"XL STS": "60.00", "Tatoeba": "75.00"}
  notes = shown.of("li")
  for line in (
    "first: bucc was not run: no folder",
    "first: sts failed: no correlations",
    "first: Overall Score of the VMSST paper lacks sts failed, bucc is absent",
    "first: its training languages are unknown",
  ):
    assert any(note.startswith(line) for note in notes), line
  assert any("first 32 tokens" in text for text in shown.of("p"))
  assert (shown.of("h2")[0], shown.of("h2")[-1]) == ("Overview", "What is missing")


def test_published_scores_are_next_to_a_complete_one(page):
  summaries = {
    "sts": {"pearson": 60.0},
    "xlsts": {"pearson": 60.0},
    "tatoeba": {"average": 60.0},
    "bucc": {"cosine_f1": 50.0, "margin_f1": 70.0},
    "questions": {"nq": 60.0, "mkqa": 60.0},
  }
  shown = page({"first": {name: found(name, each) for name, each in summaries.items()}})
  scores = shown.tables["Overall Score of the VMSST paper", "Averages"]
  assert scores["first"]["Score"] == "60.00"
  (expected,) = {
    number.value
    for number in published.for_average("score", "Score")
    if (number.system, number.table) == (SYSTEM, "1")
  }
  assert float(scores[f"{SYSTEM} (vmsst, Table 1)"]["Score"]) == expected


def test_averages_of_cut_vectors_have_rows_of_their_own(page):
  sizes = [{"dimension": 64 << i, "summary": {"average": 50.0 + i}} for i in range(3)]
  shown = page({"first": {"tatoeba": tatoeba(0, dimensions=sizes)}})
  averages = shown.tables["Tatoeba", "Averages"]
  rows = {name: row["average"] for name, row in averages.items() if name.startswith("first")}
  assert rows == {
    "first": "75.00",
    "first, first 64 dimensions": "50.00",
    "first, first 128 dimensions": "51.00",
  }


def test_the_choice_of_questions_is_noted(page):
  own = {
    name: {"questions": found("PAQ", {"mkqa": 30.0}, options={"mkqa_questions": name})}
    for name in ("answered", "all")
  }
  notes = page(own).of("li")
  for start, text in (("answered", "here they are dropped"), ("all", "they count as wrong")):
    assert any(note.startswith(f"{start}: A third of") and text in note for note in notes)


@pytest.mark.parametrize("number", ["1", "3", "4", "6"])
def test_averages_of_languages_are_those_at_the_edges_of_the_papers_tables(page, number):
  error_of = paper_table(number)
  if number == "6":  # (en-)de and (de-)zh are written as paths here.
    label = {"en": "en", "(en-)de": "en+de", "(en-)zh": "en+zh", "(de-)zh": "en+de+zh"}
    error_of = {tuple(label.get(x, x) for x in pair): error for pair, error in error_of.items()}
  own = {pair: error for pair, error in error_of.items() if "*" not in pair}
  results = pairwise(own, "text")
  for each in results["results"]:
    each["languages"] = [code.split("+")[-1] for code in each["languages"]]
  rows = page({"x": {"translations": results}}).tables["Agnosticism", "Results"]
  edges = {pair: error for pair, error in error_of.items() if "*" in pair and set(pair) != {"*"}}
  assert len(edges) == 2 * {"1": 5, "3": 10, "4": 7, "6": 4}[number]
  for pair, error in edges.items():
    assert float(rows[f"text {'->'.join(pair)}"]["x: error"]) == pytest.approx(error, abs=0.0101)


def test_errors_of_languages_are_averaged_over_texts(page):
  tables = {text: paper_table(number) for text, number in (("alice", "4"), ("prince", "3"))}
  both = found("Agnosticism", {"error": 1.0})
  for text, error_of in tables.items():
    own = {pair: error for pair, error in error_of.items() if "*" not in pair}
    both["results"] += pairwise(own, text)["results"]
  rows = page({"x": {"translations": both}}).tables["Agnosticism", "Results"]
  # The means of the printed averages of rows and columns, of two versions in Polish.
  polish = statistics.fmean(
    tables["alice"][x] for x in [("pl_1", "*"), ("pl_2", "*"), ("*", "pl_1"), ("*", "pl_2")]
  )
  ukrainian = [statistics.fmean((each["uk", "*"], each["*", "uk"])) for each in tables.values()]
  for code, expected in {
    "pl": [polish, None, polish],
    "uk": [*ukrainian, statistics.fmean(ukrainian)],
  }.items():
    for column, value in zip(("alice", "prince", "mean of texts"), expected, strict=True):
      shown = rows[code][f"x: {column}"]
      assert shown == "–" if value is None else float(shown) == pytest.approx(value, abs=0.0101)


def test_figures_show_errors_trees_sentences_and_curves(tmp_path):
  near = {
    (x, y): 10.0 * ((x in CODES[:2]) != (y in CODES[:2]))
    for x, y in itertools.permutations(CODES, 2)
  }
  own = pairwise(near)
  for name, x, y in (
    *((f"{code} of line 3", i, -i) for i, code in enumerate(CODES)),
    ("picture of line 3", 60, 40),
  ):
    own["results"].append({"name": name, "languages": [CODES[0]], "metrics": {"x": x, "y": y}})
  folder = write(train(tmp_path / "run"), NASTY, {"agnosticism": own})
  shown = Page(report.write_report([folder], tmp_path / "out")).figures()
  where = f"{NASTY}, Agnosticism"
  errors_of = shown[f"Errors: {where}"]
  assert [errors_of.count(x) for x in ("10.0", "0.0", "6.7")] == [8, 4, 9]  # 6.7: the averages
  assert all(errors_of.count(x) == 2 for x in [*CODES, "average"])
  families = {"deu, West Germanic", "eng, West Germanic", "rus, East Slavic", "ukr, East Slavic"}
  assert families < set(shown[f"Languages by error: {where}"])
  sentence = shown[f"One sentence in all versions: {where}, line 3"]
  assert {*CODES, "first principal component (60 % of variance)"} < set(sentence)
  curves = shown["Metrics over training steps"]
  assert {"loss", "tatoeba: accuracy/average", NASTY} < set(curves)
  assert "timing/x" not in curves


def test_a_heat_map_of_many_languages_has_no_numbers_and_equal_errors_are_drawn():
  labels = [f"l{number:03}" for number in range(45)]
  many = plots.heat_map("Many", np.full([45, 45], 50.0), labels)
  assert svg_texts(many.source.partition(",")[2]).count("50.0") == 0
  same = plots.heat_map("Same", np.zeros([3, 3]), ["a", "b", "c"])
  assert same == plots.heat_map("Same", np.zeros([3, 3]), ["a", "b", "c"])
  assert "0.0" in svg_texts(same.source.partition(",")[2])


def test_names_stay_text(page):
  shown = page(
    {NASTY: {"tatoeba": tatoeba(0) | {"title": NASTY}}}, absent={"bucc": f"no folder {NASTY}"}
  )
  tags = {tag for tag, _ in shown.elements}
  assert not tags & {"script", "a:link", "link", "iframe"}
  assert NASTY in shown.of("th")
  assert NASTY in shown.of("h2")
  assert f"{NASTY}: bucc was not run: no folder {NASTY}" in shown.of("li")
  policy = next(x["content"] for tag, x in shown.elements if "http-equiv" in x)
  assert policy.startswith("default-src 'none'; ")
  links = [x[key] for _, x in shown.elements for key in ("href", "src") if key in x]
  assert all(link.startswith(("#section-", "data:image/svg+xml;base64,")) for link in links)


def test_a_card_lists_the_averages(tmp_path):
  folder = write(tmp_path / "a", "first", {"tatoeba": tatoeba(0) | {"title": "<b>*T*"}})
  assert report.summary(folder) == r"- \<b\>\*T\*, average: 75.00"
  with pytest.raises(errors.InputError, match=r"no results\.json"):
    report.summary(train(tmp_path / "run"))


def test_runs_have_curves_and_distinct_names(tmp_path):
  shown = Page(report.write_report([train(tmp_path / "run")], tmp_path / "out"))
  assert shown.of("h2") == ["Training", "Papers"]
  folders = [write(tmp_path / name, "same", {"tatoeba": tatoeba(0)}) for name in "ab"]
  shown = Page(report.write_report([*folders, f"{folders[0]}/"], tmp_path / "out"))
  own = [name for name in shown.tables["Tatoeba", "Averages"] if name.startswith("same")]
  assert own == [f"same ({folder})" for folder in folders]


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[report\]'"):
    report.write_report([train(tmp_path / "run")], tmp_path / "out")


def reproduction(name, seen, codes=None):
  """Returns the results of an encoder that reproduces the VMSST paper's Table 14 exactly."""
  results = [
    suite.Result(code, (code, "eng"), dict.fromkeys(("to English", "from English", "average"), x))
    for code, x in table_14().items()
    if codes is None or code in codes
  ]
  summary = tatoeba_benchmark.BENCHMARK.summarize(results, suite.seen_test(seen))
  rows = [(x.name, (x.languages, x.metrics)) for x in results]
  return {
    "name": name,
    "seen": sorted(x.name for x in seen),
    "found": found("Tatoeba", summary, rows),
  }


def table_14():
  return {
    x.of.removesuffix("-eng"): x.value
    for x in published.load()
    if (x.paper, x.table, x.system) == ("vmsst", "14", SYSTEM)
  }


def test_published_averages_are_over_the_languages_of_each_encoder(tmp_path):
  trained = {languages.language(code) for code in recipes.load("vmsst").languages}
  two = {languages.language(code) for code in ("deu", "fra", "eng")}
  folders = [
    write(tmp_path / x["name"], x["name"], {"tatoeba": x["found"]}, seen=x["seen"])
    for x in (
      reproduction("first", trained),
      reproduction("second", two, codes=("deu", "fra", "xho")),
    )
  ]
  rows = Page(report.write_report(folders, tmp_path / "out")).tables["Tatoeba", "Averages"]
  numbers = table_14()
  split = {True: [], False: []}
  for code, value in numbers.items():
    split[languages.language(code) in trained].append(value)
  assert {seen: len(values) for seen, values in split.items()} == {True: 82, False: 30}
  for part, values in zip(("seen", "unseen"), split.values(), strict=True):
    own = rows[f"{SYSTEM} on the {part} languages of first (vmsst, Table 14)"][f"average {part}"]
    assert float(own) == pytest.approx(statistics.fmean(values), abs=0.0051)
    assert rows["first"][f"average {part}"] == f"{float(own):.2f}"
  for part, mean in (("seen", (numbers["deu"] + numbers["fra"]) / 2), ("unseen", numbers["xho"])):
    name = f"{SYSTEM} on the {part} languages of second (vmsst, Table 14)"
    assert float(rows[name][f"average {part} (incomplete)"]) == pytest.approx(mean, abs=0.0051)
  # Table 8's numbers have columns of their own, because its split is another one.
  table_8 = rows[f"{SYSTEM} (vmsst, Table 8)"]
  assert (table_8["seen (93)"], table_8["unseen (19)"]) == ("84.9", "62.2")
  assert rows["first"]["seen (93)"] == "–"


def contents(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folders_that_cannot_be_read_or_written_are_one_line(tmp_path):
  write(tmp_path / "a", "x", {"tatoeba": tatoeba(0)})
  (tmp_path / "file").touch()
  (tmp_path / "empty").mkdir()
  (tmp_path / "taken" / "report.html").mkdir(parents=True)
  before = contents(tmp_path)
  for given, out, message in (
    ("none", "out", "none: no such folder: give output folders"),
    ("file", "out", "file: not a folder: give output folders"),
    ("empty", "out", "empty: neither results.json nor train/metrics.jsonl"),
    ("a", "file/out", r"cannot be created, because .*file is not"),
    ("a", "a", "the output .*/a is also an input"),
    ("a", "taken", "report.html is a folder, not a file; delete it"),
  ):
    with pytest.raises(errors.InputError, match=message) as caught:
      report.write_report([tmp_path / given], tmp_path / out)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
  with pytest.raises(errors.InputError, match="no folder to report on"):
    report.write_report([], tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_a_report_in_a_store_is_that_of_a_local_folder(tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  folders = [write(train(tmp_path / "a"), "x", {"tatoeba": tatoeba(0)})]
  urls = ["gs://bucket/a"]
  benchmark_trees.upload(folders[0], urls[0])
  local = report.write_report(folders, tmp_path / "report")
  remote = report.write_report([*urls, f"{urls[0]}/"], "gs://bucket/report")
  assert str(remote) == "gs://bucket/report/report.html"
  assert remote.read_text() == local.read_text()
  with pytest.raises(errors.InputError, match="gs://bucket/a is also an input"):
    report.write_report(urls, urls[0])
  with pytest.raises(errors.InputError, match="gs://bucket/none: no such folder"):
    report.write_report(["gs://bucket/none"], "gs://bucket/other")
  assert not store.find("bucket/other")


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    ([], [], r"the content is \[\], not an object"),
    (["encoder"], {"digest": "1"}, "encoder.name is None, not a text"),
    (["max_length"], True, "max_length is True, not an integer above 0"),
    (["benchmarks", "tatoeba", "title"], "\ud800", "not JSON"),
    (["benchmarks", "tatoeba", "summary", "average"], float("nan"), "average is nan, not a finite"),
    (["benchmarks", "tatoeba", "seconds", "scoring"], -1e308, "not a finite number of at most"),
    (
      ["benchmarks", "tatoeba", "results", 1, "metrics"],
      [],
      r"benchmarks.tatoeba.results\[1\].metrics is \[\], not an object",
    ),
  ],
)
def test_broken_results_are_named_by_file_and_key(tmp_path, path, value, message):
  file = write(tmp_path, "x", {"tatoeba": tatoeba(0)}) / "results.json"
  whole = {"": json.loads(file.read_text())}
  *way, last = ["", *path]
  place = whole
  for key in way:
    place = place[key]
  place[last] = value
  file.write_text(json.dumps(whole[""]), encoding="utf-8")
  with pytest.raises(errors.InputError, match=rf"results\.json: .*{message}.*: give a file"):
    report.write_report([tmp_path], tmp_path / "out")


def test_broken_metrics_are_named_by_line(tmp_path):
  metrics = train(tmp_path / "run") / "train" / "metrics.jsonl"
  for line in ('{"loss": 2}', "[]", "{", '{"step": 1, "loss": "x"}'):
    metrics.write_text(f'{{"step": 1, "loss": 2}}\n{line}\n')
    with pytest.raises(errors.InputError, match=r"metrics\.jsonl:2: not an object of a step"):
      report.write_report([tmp_path / "run"], tmp_path / "out")


def systems(numbers):
  return {number.system: number.value for number in numbers}


def test_tables_hold_shares_of_known_languages():
  numbers = published.load()
  assert len(numbers) > 3000
  assert all(0 <= number.value <= 100 for number in numbers)
  for number in numbers:
    if number.of and number.paper != "agnostic":
      for code in number.of.rpartition(" ")[2].replace("->", "-").split("-"):
        languages.language(code)
  keys = [(x.paper, x.table, x.system, x.benchmark, x.name, x.of) for x in numbers]
  assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
  ("paper", "table"),
  [
    *(("ems", table) for table in ("IV", "VI", "IX", "X", "XI", "XII", "XIII")),
    *(("ems-short", table) for table in "12"),
    ("vmsst", "5"),
    ("soft", "7"),
  ],
)
def test_averages_are_those_of_the_same_rows(paper, table):
  rows = collections.defaultdict(list)
  printed = {}
  for number in published.load():
    if (number.paper, number.table) == (paper, table):
      if number.of is None:
        assert number.system not in printed
        printed[number.system] = number.value
      else:
        rows[number.system].append(number.value)
  assert len(printed) == len(rows) > 3
  for system, row in rows.items():
    assert statistics.fmean(row) == pytest.approx(printed[system], abs=0.056)


def test_numbers_are_found_by_the_names_of_averages_and_results():
  average, result = published.for_average, published.for_result
  assert systems(average("tatoeba", "average"))["VMSST 24L mT5"] == 81.1
  assert systems(average("tatoeba", "mUSE (15)"))["EMS"] == 96.6
  korean = systems(average("flores", "xsim en fr ja ko ru: ko"))
  assert (len(korean), korean["mE5-base"], korean["LaBSE"]) == (13, 0.4, 0.0)
  for key in ("average seen", "average (incomplete)", "to English"):
    assert average("tatoeba", key) == []
  # Languages match in any code and, without an arrow, in either order.
  first, *_ = result("tatoeba", "deu", ("de", "en"), "average")
  assert first == result("tatoeba", "deu", ("eng", "deu"), "average")[0]
  assert (first.system, first.value, first.source) == ("LASER", 99.0, "ems, Table IV")
  for name, codes, value in (
    ("en->de", ("eng", "deu"), 86.3),
    ("de->en", ("deu", "eng"), 76.7),
  ):
    assert result("mldoc", name, codes, "accuracy")[0].value == value
  assert systems(result("questions", "mkqa de", ("de",), "accuracy"))["VMSST 24L mT5"] == 32.5
  assert "exchanged" in result("questions", "mkqa de", ["de"], "accuracy")[0].note
  assert systems(result("cls", "dvd en->fr", ("en", "fr"), "accuracy"))["EMS"] == 78.0
  assert systems(result("wmt2012", "*->fr", ("*", "fra"), "error")) == {"LASER": 0.86}
  assert systems(result("xlsts", "track4a.es-en", ("es", "en"), "pearson"))
  for benchmark, name, codes, metric in (
    ("xlsts", "track4b.es-en", ("es", "en"), "pearson"),
    ("questions", "nq", ("en",), "accuracy"),
    ("tatoeba", "deu", ("deu", "eng"), "to English"),
    ("tatoeba", "deu", ("deu", "fra"), "average"),
  ):
    assert result(benchmark, name, codes, metric) == []


def test_benchmarks_here_have_the_names_that_numbers_are_found_by():
  keys = [
    *published.content()["main"],
    *(key for part in scores.PARTS.values() for key in part),
    *(("sts", f"{x} {year}") for x in ("pearson", "spearman") for year in range(2012, 2017)),
    *(("xlsts", f"{x} different languages") for x in ("pearson", "spearman")),
    *(("tatoeba", name) for name in tatoeba_benchmark.GROUPS),
    *(("flores", f"{x} {name}") for x, each in parallel.GROUPS.items() for name in each),
    *(("mldoc", f"accuracy {way} English") for way in ("from", "into")),
  ]
  for benchmark, name in keys:
    assert benchmark in benchmarks.BENCHMARKS
    assert published.for_average(benchmark, name), (benchmark, name)
    better = published.best(benchmark, name).value
    others = [x.value for x in published.for_average(benchmark, name)]
    assert better == (min if name.startswith(("error", "xsim")) else max)(others)
