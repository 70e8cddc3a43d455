import html
import json
import re

import pytest

from vmsst import errors
from vmsst.evaluation import report

pytest.importorskip("matplotlib")

NASTY = "_<script>alert(1)</script> | `x` *y* {{ 7 * 7 }} $z & \x1b[1m 学"
SYSTEM = "VMSST 24L mT5"
COMPARED = "Averages, next to published averages"


def scored(summary, results=(), title="Title", **fields):
  """Returns the record of a benchmark; each result is a name, languages and metrics."""
  records = [dict(zip(("name", "languages", "metrics"), x, strict=True)) for x in results]
  return {"title": title, "summary": summary, "missing": [], "results": records, **fields}


def tatoeba(value, codes=("deu", "fra", "rus"), key="average", **fields):
  return scored({key: value}, [(x, [x, "eng"], {"average": value}) for x in codes], **fields)


def matrix(name, labels, error):
  """Returns a result of `benchmarks.agnosticism`; labels are codes, with suffixes such as "_1"."""
  codes = [label.split("_")[0] for label in labels]
  arrays = {"labels": labels, "error": error}
  return {"name": name, "languages": codes, "metrics": {"error": 1.0}, "arrays": arrays}


def record(encoder, benchmarks, **fields):
  defaults = {"seen": None, "absent": {}, "failed": {}}
  return {"encoder": {"name": encoder}, **defaults, "benchmarks": benchmarks, **fields}


def write(folder, *results, **fields):
  folder.mkdir()
  text = json.dumps(record(*results, **fields))
  (folder / "results.json").write_text(text, encoding="utf-8")
  return folder


def content(results, **fields):
  """Returns the headings, the notes, and the tables by section and title, of a report."""
  by_encoder = {encoder: record(encoder, x, **fields) for encoder, x in results.items()}
  sections = report.sections(by_encoder)
  tables = {
    (section.title, table.title): {
      row: dict(zip(table.header[1:], cells, strict=True)) for row, cells in table.rows.items()
    }
    for section in sections
    for table in section.tables
  }
  return [x.title for x in sections], [note for x in sections for note in x.notes], tables


def test_numbers_are_next_to_published_ones_and_cut_vectors():
  sizes = [{"dimension": 64 << i, "summary": {"average": 50.0 + i}} for i in range(3)]
  partial = tatoeba(76.5, ["deu"], "average (incomplete)", missing=["fra"])
  _, notes, tables = content(
    {"own": {"tatoeba": tatoeba(75, dimensions=sizes)}, "x": {"tatoeba": partial}}
  )
  assert tables["Overview", "Main averages"] == {
    "Title: average": {"own": "75.00", "x": "–"},
    "Title: average (incomplete)": {"own": "–", "x": "76.50"},
  }
  assert tables["Title", "Averages"] == {
    "own": {"average": "75.00", "average (incomplete)": "–"},
    "own, first 64 dimensions": {"average": "50.00", "average (incomplete)": "–"},
    "own, first 128 dimensions": {"average": "51.00", "average (incomplete)": "–"},
    "x": {"average": "–", "average (incomplete)": "76.50"},
  }
  compared = tables["Title", COMPARED]
  assert compared["own"] == {"average": "75.00"}
  assert compared[f"{SYSTEM} (vmsst, Table 1)"] == {"average": "81.1"}
  assert "x" not in compared
  row = tables["Title", "Results"]["deu"]
  assert (row["x: average"], row["EMS (ems, Table IV): average"]) == ("76.50", "99.3")
  for start in (
    "The encoders were evaluated on different sets",
    "x: Title does not include fra",
    "ems: EMS",
  ):
    assert any(note.startswith(start) for note in notes)
  assert not any(note.startswith("agnostic: ") for note in notes)


def test_own_files_come_first():
  name = "/runs/vmsst_24l/checkpoint_9"
  bitext = scored({"accuracy": 90.0}, title="my.de-en.tsv")
  headings, _, tables = content({name: {"xlsts": scored({"pearson": 70.0}), "bitext-my": bitext}})
  assert headings[:2] == ["Your files", "Overview"]
  assert tables["Your files", "my.de-en.tsv"] == {name: {"accuracy": "90.00"}}
  assert f"{SYSTEM} (vmsst, Table 1)" in tables["Title", COMPARED]
  assert content({name: {"bitext-my": bitext}})[0] == ["Your files"]


def test_the_score_is_next_to_published_ones_if_it_is_complete():
  complete = {
    "sts": scored({"pearson": 60.0}),
    "xlsts": scored({"pearson": 60.0}),
    "tatoeba": scored({"average": 60.0}),
    "bucc": scored({"cosine_f1": 50.0, "margin_f1": 70.0}),
    "questions": scored({"nq": 60.0, "mkqa": 60.0}),
  }
  incomplete = {name: complete[name] for name in ("xlsts", "tatoeba")}
  absent, failed = {"bucc": "no folder"}, {"sts": "no correlations"}
  headings, notes, tables = content({"a": complete, "b": incomplete}, absent=absent, failed=failed)
  title = "Overall Score of the VMSST paper"
  averages = tables[title, "Averages"]
  assert [*averages] == ["a"]
  assert averages["a"]["Score"] == "60.00"
  assert tables[title, COMPARED][f"{SYSTEM} (vmsst, Table 1)"] == {"Score": "65.9"}
  assert any("A third of MKQA's questions" in note for note in notes)
  assert {"b: bucc was not run: no folder", "b: sts failed: no correlations"} <= {*notes}
  assert any(note.startswith("b: its training languages are unknown") for note in notes)
  assert (headings[0], headings[-1]) == ("Overview", "What is missing")


def test_errors_are_averaged_over_rows_columns_languages_and_texts():
  texts = [
    matrix("a", ["en", "uk"], [[0, 10], [30, 0]]),
    matrix("b", ["en", "pl_1", "pl_2"], [[0, 1, 2], [3, 0, 5], [4, 6, 0]]),
  ]
  _, _, tables = content({"x": {"translations": scored({"error": 1.0}) | {"results": texts}}})
  columns = ("x: error", "x: a", "x: b", "x: mean of texts")
  rows = tables["Title", "Results"].items()
  values = {name: tuple(row[x] for x in columns if row[x] != "–") for name, row in rows}
  means = {"b en->*": ("1.50",), "b *->en": ("3.50",), "b pl_1->pl_2": ("5.00",)}
  # Polish on text b: pl_1 has 4 (row) and 3.5 (column), pl_2 has 5 and 3.5.
  means |= {"en": ("20.00", "2.50", "11.25"), "pl": ("4.00", "4.00")}
  assert means.items() <= values.items()


def test_a_page_has_lengths_prompts_and_figures_and_names_stay_text(tmp_path):
  codes = ["deu", "eng", "rus"]
  errors_of = scored({"error": 1.0}, title=NASTY)
  errors_of["results"] = [matrix("all languages", codes, [[0, 1, 2], [1, 0, 2], [2, 2, 0]])]
  absent = {"bucc": f"no folder {NASTY}"}
  folders = [
    write(tmp_path / "a", NASTY, {"agnosticism": errors_of}, absent=absent),
    write(tmp_path / "b", "e5", {"tatoeba": tatoeba(76)}, max_length=512),
  ]
  path = folders[1] / "results.json"
  path.write_text(path.read_text().replace('"name": "e5"', '"name": "e5", "prompt": "query: <b>"'))
  source = report.html(folders)
  text = " ".join(html.unescape(source).split())
  assert f"{NASTY} unknown; e5 512 tokens, “query: <b>”. Results with" in text
  assert f"{NASTY}: bucc was not run: no folder {NASTY}" in text
  titles = re.findall(r'<img alt="(.*?)"', source)
  figures = [f"{figure}: {NASTY}, {NASTY}" for figure in ("Errors", "Languages by error")]
  assert [*map(html.unescape, titles)] == figures
  assert not re.search("<(script|link|iframe|b)>", source)
  assert "\"default-src 'none'; " in source
  links = re.findall(r' (?:href|src)="(.*?)"', source)
  assert all(link.startswith(("#section-", "data:image/svg+xml;base64,")) for link in links)


def test_broken_files_are_named_with_their_line(tmp_path):
  folder = write(tmp_path / "a", "x", {})
  (folder / "results.json").write_text("{}")
  with pytest.raises(errors.InputError, match=r"results\.json: .*; pass a results"):
    report.html([folder])
