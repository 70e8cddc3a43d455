import collections
import dataclasses
import functools
import itertools

import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation import papers
from vmsst.evaluation.benchmarks import bitext_retrieval
from vmsst.evaluation.metrics import retrieval


def degrees_vector(text):
  """Returns the unit vector at the angle at the end of the text, in degrees."""
  return fake_encoders.angle_vector(str(np.radians(float(text.split()[-1]))))


def write_pairs(root, code, foreign, english):
  texts = {code: [f"{code} {x}" for x in foreign], "eng.gz": english}
  for suffix, lines in texts.items():
    line_files.write_lines(root / "tatoeba" / f"tatoeba.{code}-eng.{suffix}", lines)


def test_both_directions_and_means_by_hand(tmp_path, monkeypatch):
  monkeypatch.setattr(
    bitext_retrieval, "TATOEBA_GROUPS", {"whole": ("cor", "yid"), "partial": ("deu", "fra")}
  )
  # The second German sentence finds the first English one, the second English one the third German.
  write_pairs(tmp_path, "deu", [0, 20, 90], [5, 60, 95])
  write_pairs(tmp_path, "yid", [10], [300])  # A single sentence is always found.
  # Of two equal sentences, the first is always found.
  write_pairs(tmp_path, "cor", [10, 10], [10, 10])
  seen = [languages.language("de"), languages.language("en")]
  scored = benchmark_trees.run_benchmark(
    bitext_retrieval.TATOEBA, fake_encoders.FakeEncoder(degrees_vector), tmp_path, seen=seen
  )
  by_name = {x["name"]: x["metrics"] for x in scored["results"]}
  german = {"to English": 200 / 3, "from English": 200 / 3, "average": 200 / 3}
  assert by_name["deu"] == pytest.approx(german)
  assert set(by_name["yid"].values()) == {100}
  assert set(by_name["cor"].values()) == {50}
  summary = scored["summary"]
  assert summary["average (incomplete)"] == pytest.approx((200 / 3 + 150) / 3)
  assert summary["average seen (incomplete)"] == pytest.approx(200 / 3)
  assert summary["average unseen (incomplete)"] == pytest.approx(75)
  assert summary["whole"] == pytest.approx(75)
  assert not any(name.startswith("partial") for name in summary)
  assert len(scored["missing"]) == 109


def test_groups_have_the_means_that_the_ems_paper_prints():
  rows = collections.defaultdict(dict)
  means = []
  for number in papers.load():
    if number.paper == "ems" and number.benchmark == "tatoeba":
      if number.of is not None:
        code = languages.language(number.of.removesuffix("-eng")).tatoeba
        rows[number.system][code] = number.value
      else:
        means.append(number)
  checked = collections.Counter()
  for number in means:
    if number.name in bitext_retrieval.TATOEBA_GROUPS and number.system in rows:
      codes = bitext_retrieval.TATOEBA_GROUPS[number.name]
      mean = np.mean([rows[number.system][code] for code in codes])
      # The tolerance is for rounding: the paper rounds the languages and the mean.
      assert mean == pytest.approx(number.value, abs=0.101), (number.system, number.name)
      checked[number.name] += 1
  assert all(count >= 3 for count in checked.values())
  assert len(checked) == 10


def texts_and_vectors(codes, count=20):
  """Returns translations by language, with one repeated sentence, and a vector for each text."""
  rng = np.random.default_rng(0)
  meaning = rng.normal(size=[count, 6]) + 0.5
  texts, vectors = {}, {}
  for code in codes:
    texts[code] = [f"{code} {i if i != 7 else 3}" for i in range(count)]
    for text, vector in zip(texts[code], meaning, strict=True):
      vectors.setdefault(text, vector + 0.8 * rng.normal(size=6))
  return texts, vectors


def test_results_and_averages_of_ordered_pairs_equal_plain_loops(tmp_path):
  codes = ["deu_Latn", "eng_Latn", "fra_Latn", "kor_Hang"]
  texts, vectors = texts_and_vectors(codes)
  for code in codes:
    line_files.write_lines(tmp_path / "flores200" / "devtest" / f"{code}.devtest", texts[code])
  seen = [languages.language(code) for code in ("de", "fr")]
  groups = {"accuracy": {"a": ["de", "fr", "ko"]}, "xsim": {"b": ["en", "fr"], "c": ["en", "ja"]}}
  averages = functools.partial(bitext_retrieval.summarize_pairs, groups)
  benchmark = dataclasses.replace(bitext_retrieval.FLORES, averages=averages)
  encoder = fake_encoders.table_encoder(vectors)
  scored = benchmark_trees.run_benchmark(benchmark, encoder, tmp_path, seen=seen)
  names = [f"{x}-{y}" for x, y in itertools.permutations(codes, 2)]
  assert [result["name"] for result in scored["results"]] == names
  values = {}
  for result in scored["results"]:
    x, y = result["languages"]
    arrays = [np.array([vectors[text] for text in texts[code]]) for code in (x, y)]
    nearest, _ = retrieval.nearest(*arrays)
    errors_ = [i for i, row in enumerate(nearest.margin_N) if texts[y][row] != texts[y][i]]
    # Sentences 3 and 7 are equal, so that sentence 3 is found for both.
    hits = [i for i, row in enumerate(nearest.cosine_N) if row == i]
    expected = {"accuracy": 5 * len(hits), "xsim": 5 * len(errors_), "hubness": nearest.hubness}
    assert result["metrics"] == pytest.approx(expected)
    assert 7 not in hits
    values[x[:3], y[:3]] = result["metrics"]
  subsets = {
    "": list(values),
    " without English": [pair for pair in values if "eng" not in pair],
    " to English": [pair for pair in values if pair[1] == "eng"],
    " from English": [pair for pair in values if pair[0] == "eng"],
    " seen": [("deu", "fra"), ("fra", "deu")],
    " unseen": [pair for pair in values if {*pair} != {"deu", "fra"}],
  }
  summary = scored["summary"]
  for metric in bitext_retrieval.PARALLEL_METRICS:
    for suffix, pairs in subsets.items():
      expected = np.mean([values[pair][metric] for pair in pairs])
      assert summary[f"{metric}{suffix} (incomplete)"] == pytest.approx(expected)
  foreign = [values[pair]["accuracy"] for pair in subsets[" without English"]]
  assert summary["accuracy a"] == pytest.approx(np.mean(foreign))
  both = [values["eng", "fra"]["xsim"], values["fra", "eng"]["xsim"]]
  assert summary["xsim b"] == pytest.approx(np.mean(both))
  assert summary["xsim b: fr"] == pytest.approx(both[0])
  assert not any(name.startswith("xsim c") for name in summary)
  assert len(scored["missing"]) == 204 - 4


def test_changed_english_sentences_are_taken_for_translations(tmp_path):
  # The first source is nearest to a changed form of its translation, the second to its translation,
  # the third to a changed form of another sentence.
  axes = np.eye(7)
  vectors = {f"x {i}": axes[i] for i in range(3)}
  vectors |= {"y 0": axes[0] + 0.5 * axes[3], "y 1": axes[1], "y 2": axes[2] + axes[4]}
  vectors |= {"y 0 not": axes[0] + 0.1 * axes[3], "y 1 new": axes[2] + 0.1 * axes[5]}
  vectors["odd"] = axes[6]
  folder = tmp_path / "flores200"
  for path, lines in {
    "devtest/deu_Latn.devtest": [f"x {i}" for i in range(3)],
    "devtest/eng_Latn.devtest": [f"y {i}" for i in range(3)],
    "devtest_augmented/eng_Latn_augmented.devtest": ["y 0 not ", "y 1 new", "odd"],
  }.items():
    line_files.write_lines(folder / path, lines)
  scored = benchmark_trees.run_benchmark(
    bitext_retrieval.FLORES, fake_encoders.table_encoder(vectors), tmp_path
  )
  by_name = {x["name"]: x["metrics"] for x in scored["results"]}
  assert by_name["eng_Latn-deu_Latn"].keys() == {"accuracy", "xsim", "hubness"}
  assert by_name["deu_Latn-eng_Latn"]["xsim++"] == pytest.approx(200 / 3)
  assert scored["summary"]["xsim++ (incomplete)"] == pytest.approx(200 / 3)
  assert len(scored["missing"]) == 204 - 2


def test_ntrex_is_read_as_published_and_variants_of_a_language_are_not_compared(tmp_path):
  texts, vectors = texts_and_vectors(["eng", "eng-GB", "deu", "zho-CN"], 4)
  folder = tmp_path / "ntrex" / "NTREX-128"
  line_files.write_lines(folder / "newstest2019-src.eng.txt", texts["eng"])
  for code in ("eng-GB", "deu", "zho-CN"):
    line_files.write_lines(folder / f"newstest2019-ref.{code}.txt", texts[code])
  scored = benchmark_trees.run_benchmark(
    bitext_retrieval.NTREX, fake_encoders.table_encoder(vectors), tmp_path
  )
  names = {x["name"] for x in scored["results"]}
  assert len(names) == 4 * 3 - 2
  assert {"eng-eng-GB", "eng-GB-eng"} & names == set()


def test_paracrawl_searches_by_margin(tmp_path):
  rng = np.random.default_rng(1)
  queries, candidates = [f"x{i}" for i in range(20)], [f"y{i}" for i in range(60)]
  vectors = {text: rng.normal(size=5) + 0.5 for text in (*queries, *candidates)}
  for x, y in zip(queries, candidates, strict=False):
    vectors[y] = vectors[x] + 0.8 * rng.normal(size=5)
  for code, texts in {"bg": (queries, candidates), "yo": (queries[:2], ["y1", "y0"])}.items():
    for kind, lines in zip(("queries", "candidates"), texts, strict=True):
      line_files.write_lines(tmp_path / "paracrawl" / f"v5.{code}-en.{kind}", lines)
  arrays = (np.array([vectors[x] for x in texts]) for texts in (queries, candidates))
  forward, _ = retrieval.nearest(*arrays)  # test_retrieval.py compares this function with loops.
  by_cosine, by_margin = (sum(x == np.arange(20)) for x in (forward.cosine_N, forward.margin_N))
  assert by_cosine != by_margin
  seen = [languages.language(code) for code in ("bg", "en")]
  scored = benchmark_trees.run_benchmark(
    bitext_retrieval.PARACRAWL, fake_encoders.table_encoder(vectors), tmp_path, seen=seen
  )
  scores = {x["name"]: x["metrics"]["accuracy"] for x in scored["results"]}
  assert scores == pytest.approx({"v5.bg-en": 5 * by_margin, "v5.yo-en": 0})
  assert scored["summary"] == pytest.approx(
    {
      "accuracy (incomplete)": scores["v5.bg-en"] / 2,
      "accuracy seen (incomplete)": scores["v5.bg-en"],
      "accuracy unseen (incomplete)": 0,
    }
  )
  assert len(scored["missing"]) == 20
