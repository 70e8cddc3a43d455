import json

from vmsst.evaluation.report import markdown


def test_averages_are_listed(tmp_path):
  scored = {
    "title": "<b>*T*",
    "summary": {"average": 75},
    "missing": [],
    "results": [],
    "options": {},
  }
  results = {"encoder": {"name": "x"}, "seen": None, "absent": {}, "failed": {}}
  text = json.dumps(results | {"benchmarks": {"tatoeba": scored}})
  (tmp_path / "results.json").write_text(text, encoding="utf-8")
  assert markdown.averages(tmp_path) == r"- \<b\>\*T\*, average: 75.00"
