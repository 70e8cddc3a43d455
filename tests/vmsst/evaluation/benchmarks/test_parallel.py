import itertools
import json

import benchmark_runs
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import paracrawl, parallel


def nearest(sources, targets, margin):
  """Returns, by loops, for every source the one of its 4 nearest targets with the best ratio."""
  unit = [[x / np.linalg.norm(x) for x in side] for side in (sources, targets)]
  cosine = np.array([[x @ y for y in unit[1]] for x in unit[0]])
  mean_x = np.sort(cosine, axis=1)[:, -4:].mean(axis=1)
  mean_y = np.sort(cosine, axis=0)[-4:].mean(axis=0)
  found = []
  for i, row in enumerate(cosine):
    near = sorted(range(len(row)), key=lambda j, row=row: -row[j])[: 4 if margin else 1]
    found.append(max(near, key=lambda j, i=i, row=row: row[j] / (mean_x[i] + mean_y[j])))
  return found


def texts_and_vectors(codes, count=20):
  """Writes translations with one repeated sentence per language; returns a vector per text."""
  rng = np.random.default_rng(0)
  meaning = rng.normal(size=[count, 6]) + 0.5
  texts, vectors = {}, {}
  for code in codes:
    texts[code] = [f"{code} {i if i != 7 else 3}" for i in range(count)]
    for text, vector in zip(texts[code], meaning, strict=True):
      vectors.setdefault(text, vector + 0.8 * rng.normal(size=6))
  return texts, vectors


def test_every_ordered_pair_is_that_of_plain_loops(tmp_path):
  codes = ["deu_Latn", "eng_Latn", "fra_Latn", "kor_Hang"]
  texts, vectors = texts_and_vectors(codes)
  for code in codes:
    line_files.write_lines(tmp_path / "flores200" / "devtest" / f"{code}.devtest", texts[code])
    line_files.write_lines(tmp_path / "flores200" / "dev" / f"{code}.dev", texts[code][:2])
  seen = [languages.language(code) for code in ("de", "fr")]
  found = benchmark_runs.run_benchmark(
    parallel.FLORES, fake_encoders.table_encoder(vectors), tmp_path, seen=seen
  )
  names = [f"{x}-{y}" for x, y in itertools.permutations(codes, 2)]
  assert [each["name"] for each in found["results"]] == names
  values = {}
  for each in found["results"]:
    x, y = each["languages"]
    sides = [[vectors[text] for text in texts[code]] for code in (x, y)]
    plain, margin = (nearest(*sides, margin) for margin in (False, True))
    errors_ = [i for i, row in enumerate(margin) if texts[y][row] != texts[y][i]]
    # Of two equal sentences the first is found for both.
    hits = [i for i, row in enumerate(plain) if row == i]
    assert each["metrics"] == pytest.approx({"accuracy": 5 * len(hits), "xsim": 5 * len(errors_)})
    assert 7 not in hits
    values[x[:3], y[:3]] = each["metrics"]
  parts = {
    "": list(values),
    " without English": [pair for pair in values if "eng" not in pair],
    " to English": [pair for pair in values if pair[1] == "eng"],
    " from English": [pair for pair in values if pair[0] == "eng"],
    " seen": [("deu", "fra"), ("fra", "deu")],
    " unseen": [pair for pair in values if {*pair} != {"deu", "fra"}],
  }
  for metric, (part, pairs) in itertools.product(parallel.METRICS, parts.items()):
    expected = np.mean([values[pair][metric] for pair in pairs])
    assert found["summary"][f"{metric}{part} (incomplete)"] == pytest.approx(expected)
  muse = [values[pair]["accuracy"] for pair in parts[" without English"]]
  assert found["summary"]["accuracy mUSE (182) (incomplete)"] == pytest.approx(np.mean(muse))
  soft = [values[pair]["xsim"] for pair in values if "deu" not in pair]
  assert found["summary"]["xsim en fr ja ko ru (incomplete)"] == pytest.approx(np.mean(soft))
  into = [values["eng", "fra"]["xsim"], values["kor", "fra"]["xsim"]]
  assert found["summary"]["xsim en fr ja ko ru: fr (incomplete)"] == pytest.approx(np.mean(into))
  assert "xsim en fr ja ko ru: ja (incomplete)" not in found["summary"]
  assert len(found["missing"]) == 204 - 4


def test_a_group_whose_languages_are_all_there_keeps_its_name():
  pairs = itertools.permutations(["eng_Latn", "fra_Latn", "jpn_Jpan", "kor_Hang", "rus_Cyrl"], 2)
  results = [
    suite.Result("-".join(pair), pair, {"accuracy": 0.0, "xsim": float(i)})
    for i, pair in enumerate(pairs)
  ]
  summary = parallel.FLORES.summarize(results, None)
  assert summary["xsim en fr ja ko ru"] == pytest.approx(19 / 2)
  # English is the first target of the other four languages, which have four targets each.
  assert summary["xsim en fr ja ko ru: en"] == pytest.approx((4 + 8 + 12 + 16) / 4)
  assert summary["xsim en fr ja ko ru: ru"] == pytest.approx((3 + 7 + 11 + 15) / 4)
  assert not [name for name in summary if name.startswith("accuracy") and ": " in name]


def test_changed_english_sentences_are_taken_for_translations(tmp_path):
  # The first source is nearest to a change of its translation, the second to its translation, the
  # third to a change of another sentence.
  axes = np.eye(7)
  vectors = {f"x {i}": axes[i] for i in range(3)}
  vectors |= {"y 0": axes[0] + 0.5 * axes[3], "y 1": axes[1], "y 2": axes[2] + axes[4]}
  vectors |= {"y 0 not": axes[0] + 0.1 * axes[3], "y 1 new": axes[2] + 0.1 * axes[5]}
  vectors["odd"] = axes[6]
  folder = tmp_path / "flores200"
  line_files.write_lines(folder / "dev" / "deu_Latn.dev", [f"x {i}" for i in range(3)])
  line_files.write_lines(folder / "dev" / "eng_Latn.dev", [f"y {i}" for i in range(3)])
  line_files.write_lines(
    folder / "dev_augmented" / "eng_Latn_augmented.dev", ["y 0 not ", "y 1 new", "odd"]
  )
  types = folder / "dev_augmented" / "eng_Latn_errtype.dev.json"
  content = {
    "y 0 not": {"src": "y 0", "errtype": "Causality"},
    "y 1 new": {"src": "y 1", "errtype": "Entity"},
    "odd": {"src": "y 2", "errtype": "Number"},
  }
  types.write_text(json.dumps(content), encoding="utf-8")
  found = benchmark_runs.run_benchmark(
    parallel.FLORES_DEV, fake_encoders.table_encoder(vectors), tmp_path
  )
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  assert by_name["eng_Latn-deu_Latn"].keys() == {"accuracy", "xsim"}
  third = pytest.approx(100 / 3)
  assert {key: value for key, value in by_name["deu_Latn-eng_Latn"].items() if "++" in key} == {
    "xsim++": pytest.approx(200 / 3),
    "xsim++ Causality": third,
    "xsim++ Entity": 0,
    "xsim++ Misaligned": third,
    "xsim++ Number": 0,
  }
  assert found["summary"]["xsim++ (incomplete)"] == pytest.approx(200 / 3)
  assert len(found["missing"]) == 204 - 2
  types.write_text('{"y": "z"}', encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"errtype.dev.json: not a JSON object of objects"):
    parallel.FLORES_DEV.read(tmp_path)
  types.unlink()
  with pytest.raises(errors.InputError, match=r"neither .*errtype.dev.json nor .*xsimplusplus"):
    parallel.FLORES_DEV.read(tmp_path)


def test_ntrex_is_read_as_published_and_variants_of_a_language_are_not_compared(tmp_path):
  texts, vectors = texts_and_vectors(["eng", "eng-GB", "deu", "zho-CN"], 4)
  folder = tmp_path / "ntrex" / "NTREX-128"
  line_files.write_lines(folder / "newstest2019-src.eng.txt", texts["eng"])
  for code in ("eng-GB", "deu", "zho-CN"):
    line_files.write_lines(folder / f"newstest2019-ref.{code}.txt", texts[code])
  found = benchmark_runs.run_benchmark(
    parallel.NTREX, fake_encoders.table_encoder(vectors), tmp_path
  )
  names = {each["name"] for each in found["results"]}
  assert len(names) == 4 * 3 - 2
  assert {"eng-eng-GB", "eng-GB-eng"} & names == set()
  line_files.write_lines(folder / "newstest2019-ref.eng.txt", texts["eng"])
  with pytest.raises(
    errors.InputError, match=r"ref.eng.txt and .*src.eng.txt both have language eng"
  ):
    parallel.NTREX.read(tmp_path)


def test_queries_are_looked_up_by_margin(tmp_path):
  rng = np.random.default_rng(1)
  queries, candidates = [f"x{i}" for i in range(20)], [f"y{i}" for i in range(60)]
  vectors = {text: rng.normal(size=5) + 0.5 for text in (*queries, *candidates)}
  for x, y in zip(queries, candidates, strict=False):
    vectors[y] = vectors[x] + 0.8 * rng.normal(size=5)
  for name, sides in {"bg": (queries, candidates), "yo": (queries[:2], ["y1", "y0"])}.items():
    for kind, texts in zip(("queries", "candidates"), sides, strict=True):
      line_files.write_lines(tmp_path / "paracrawl" / f"v5.{name}-en.{kind}", texts)
  sides = [[vectors[text] for text in side] for side in (queries, candidates)]
  by_cosine, by_margin = (
    sum(row == i for i, row in enumerate(nearest(*sides, margin))) for margin in (False, True)
  )
  assert by_cosine != by_margin
  seen = [languages.language(code) for code in ("bg", "en")]
  found = benchmark_runs.run_benchmark(
    paracrawl.BENCHMARK, fake_encoders.table_encoder(vectors), tmp_path, seen=seen
  )
  scores = {each["name"]: each["metrics"]["accuracy"] for each in found["results"]}
  assert scores == pytest.approx({"v5.bg-en": 5 * by_margin, "v5.yo-en": 0})
  assert found["summary"] == pytest.approx(
    {
      "accuracy (incomplete)": scores["v5.bg-en"] / 2,
      "accuracy seen (incomplete)": scores["v5.bg-en"],
      "accuracy unseen (incomplete)": 0,
    }
  )
  assert len(found["missing"]) == 20
