import collections
import dataclasses
import functools
import itertools
import json

import benchmark_trees
import fake_encoders
import line_files
import naive_search
import numpy as np
import pytest

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import bitext_mining, paracrawl, parallel, tatoeba
from vmsst.evaluation.metrics import xsim
from vmsst.evaluation.report import published


def nearest(sources, targets, margin):
  """Returns the target of every source by margin or by cosine; `test_metrics.py` tests these."""
  forward, _ = xsim.nearest(np.array(sources), np.array(targets))
  return (forward.margin_N if margin else forward.cosine_N).tolist()


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
  groups = {"accuracy": {"a": ["de", "fr", "ko"]}, "xsim": {"b": ["en", "fr"], "c": ["en", "ja"]}}
  averages = functools.partial(parallel.summarize, groups)
  benchmark = dataclasses.replace(parallel.FLORES, averages=averages)
  encoder = fake_encoders.table_encoder(vectors)
  found = benchmark_trees.run_benchmark(benchmark, encoder, tmp_path, seen=seen)
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
    assert each["metrics"] == pytest.approx(
      {
        "accuracy": 5 * len(hits),
        "xsim": 5 * len(errors_),
        "hubness": xsim.nearest(*map(np.array, sides))[0].hubness,
      }
    )
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
  foreign = [values[pair]["accuracy"] for pair in parts[" without English"]]
  assert found["summary"]["accuracy a"] == pytest.approx(np.mean(foreign))
  both = [values["eng", "fra"]["xsim"], values["fra", "eng"]["xsim"]]
  assert found["summary"]["xsim b"] == pytest.approx(np.mean(both))
  assert found["summary"]["xsim b: fr"] == pytest.approx(both[0])
  assert not any(name.startswith("xsim c") for name in found["summary"])
  assert len(found["missing"]) == 204 - 4


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
  found = benchmark_trees.run_benchmark(
    parallel.FLORES_DEV, fake_encoders.table_encoder(vectors), tmp_path
  )
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  assert by_name["eng_Latn-deu_Latn"].keys() == {"accuracy", "xsim", "hubness"}
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


def test_ntrex_is_read_as_published_and_variants_of_a_language_are_not_compared(tmp_path):
  texts, vectors = texts_and_vectors(["eng", "eng-GB", "deu", "zho-CN"], 4)
  folder = tmp_path / "ntrex" / "NTREX-128"
  line_files.write_lines(folder / "newstest2019-src.eng.txt", texts["eng"])
  for code in ("eng-GB", "deu", "zho-CN"):
    line_files.write_lines(folder / f"newstest2019-ref.{code}.txt", texts[code])
  found = benchmark_trees.run_benchmark(
    parallel.NTREX, fake_encoders.table_encoder(vectors), tmp_path
  )
  names = {each["name"] for each in found["results"]}
  assert len(names) == 4 * 3 - 2
  assert {"eng-eng-GB", "eng-GB-eng"} & names == set()


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
  found = benchmark_trees.run_benchmark(
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


def degrees_vector(text):
  """Returns the point of the unit circle at the angle, in degrees, that ends `text`."""
  return fake_encoders.angle_vector(str(np.radians(float(text.split()[-1]))))


def write_pairs(root, code, foreign, english):
  sides = {code: [f"{code} {x}" for x in foreign], "eng.gz": english}
  for side, lines in sides.items():
    line_files.write_lines(root / "tatoeba" / f"tatoeba.{code}-eng.{side}", lines)


def test_both_directions_and_means_by_hand(tmp_path, monkeypatch):
  monkeypatch.setattr(tatoeba, "GROUPS", {"whole": ("cor", "yid"), "partial": ("deu", "fra")})
  # The second German one finds the first in English; back, the second finds the third.
  write_pairs(tmp_path, "deu", [0, 20, 90], [5, 60, 95])
  write_pairs(tmp_path, "yid", [10], [300])  # One sentence is always found.
  # A duplicate: both find the first, both ways.
  write_pairs(tmp_path, "cor", [10, 10], [10, 10])
  seen = [languages.language("de"), languages.language("en")]
  found = benchmark_trees.run_benchmark(
    tatoeba.BENCHMARK, fake_encoders.FakeEncoder(degrees_vector), tmp_path, seen=seen
  )
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  german = {"to English": 200 / 3, "from English": 200 / 3, "average": 200 / 3}
  assert by_name["deu"] == pytest.approx(german)
  assert set(by_name["yid"].values()) == {100}
  assert set(by_name["cor"].values()) == {50}
  summary = found["summary"]
  assert summary["average (incomplete)"] == pytest.approx((200 / 3 + 150) / 3)
  assert summary["average seen (incomplete)"] == pytest.approx(200 / 3)
  assert summary["average unseen (incomplete)"] == pytest.approx(75)
  assert summary["whole"] == pytest.approx(75)
  assert not any(name.startswith("partial") for name in summary)
  assert len(found["missing"]) == 109


def test_groups_of_the_ems_paper_are_those_whose_means_it_prints():
  rows = collections.defaultdict(dict)
  means = []
  for number in published.load():
    if number.paper == "ems" and number.benchmark == "tatoeba":
      if number.of is not None:
        code = languages.language(number.of.removesuffix("-eng")).tatoeba
        rows[number.system][code] = number.value
      else:
        means.append(number)
  checked = collections.Counter()
  for number in means:
    if number.name in tatoeba.GROUPS and number.system in rows:
      codes = tatoeba.GROUPS[number.name]
      mean = np.mean([rows[number.system][code] for code in codes])
      # Both the languages' numbers and the mean are rounded.
      assert mean == pytest.approx(number.value, abs=0.101), (number.system, number.name)
      checked[number.name] += 1
  assert all(count >= 3 for count in checked.values())
  assert len(checked) == 10


def naive_f1(candidates, gold):
  """Returns the best F1 over all thresholds, for pairs of ids with scores."""
  best = 0.0
  for threshold in {score for score, *_ in candidates}:
    kept = {pair for score, *pair in candidates for pair in [tuple(pair)] if score >= threshold}
    hits = len(kept & gold)
    best = max(best, 2 * hits / (len(kept) + len(gold)))
  return best


def write_set(folder, name, sides, gold):
  for code, lines in sides.items():
    line_files.write_tsv(folder / f"{name}.{code}", lines)
  line_files.write_tsv(folder / f"{name}.gold", gold)


def corpora(rng):
  """Returns lines of two sides, some repeated, gold pairs and vectors of the texts."""
  count = 30
  vectors = {f"x{i}": rng.normal(size=5) + 0.3 for i in range(count)}
  vectors |= {f"y{i}": vectors[f"x{i}"] + 0.4 * rng.normal(size=5) for i in range(count)}
  german = [(f"de-{i}", f"x{i}") for i in range(count)]
  english = [(f"en-{i}", f" y{i} ") for i in reversed(range(count))]
  german += [("de-again", "x1"), ("de-more", "x2")]
  english += [("en-again", "y3")]
  gold = [*((f"de-{i}", f"en-{i}") for i in range(12)), ("de-again", "en-1")]
  return german, english, gold, vectors


def naive_scores(german, english, gold, vectors):
  """Computes F1 by cosine and by margin by plain loops; repeated sentences are never found."""
  ids = []
  for side in (german, english):
    ids.append(collections.defaultdict(list))
    for key, text in side:
      ids[-1][text.strip()].append(key)
  found = naive_search.Naive(*([vectors[text] for text in side] for side in ids), 4)
  keys = [list(side.values()) for side in ids]

  def f1(pairs, score):
    once = [
      (score(i, j), *keys[0][i], *keys[1][j])
      for i, j in pairs
      if len(keys[0][i]) == len(keys[1][j]) == 1
    ]
    return 100 * naive_f1(once, set(gold))

  nearest = enumerate(found.cosine.argmax(axis=1))
  return f1(nearest, lambda i, j: found.cosine[i, j]), f1(found.pairs(), found.score)


@pytest.mark.parametrize("nested", [False, True])
def test_scores_are_those_of_plain_loops_and_only_one_split_is_read(tmp_path, nested):
  sets = {name: corpora(np.random.default_rng(i)) for i, name in enumerate(bitext_mining.PAIRS)}
  vectors, expected = {}, {}
  for name, (german, english, gold, own) in sets.items():
    rename = {text: f"{name} {text}" for text in own}
    german, english = (
      [(key, rename[text.strip()]) for key, text in side] for side in (german, english)
    )
    own = {rename[text]: vector for text, vector in own.items()}
    vectors |= own
    sides = dict(zip(name.split("-"), (german, english), strict=True))
    folder = tmp_path / "bucc2018" / (name if nested else "")
    write_set(folder, f"{name}.training", sides, gold)
    write_set(folder, f"{name}.test", sides, gold)
    (folder / f"{name}.test.gold").unlink()
    expected[name] = naive_scores(german, english, gold, own)
  encoder = fake_encoders.table_encoder(vectors)
  both = [bitext_mining.BUCC, bitext_mining.BUCC_TEST]
  results = suite.evaluate(encoder, both, tmp_path)
  found = results["benchmarks"]
  texts = [text for call in encoder.calls for text in call]
  assert len(texts) == len(set(texts)) == 4 * 60  # each sentence once
  metrics = {each["name"]: each["metrics"] for each in found["bucc"]["results"]}
  for name, (cosine, margin) in expected.items():
    assert 20 < cosine < 100
    assert metrics[name]["cosine_f1"] == pytest.approx(cosine)
    assert metrics[name]["margin_f1"] == pytest.approx(margin)
    # Gold pairs of repeated sentences are not found: at most 9 of 13 are.
    assert metrics[name]["margin_recall"] <= 100 * 9 / 13
  means = np.mean(list(expected.values()), axis=0)
  assert found["bucc"]["summary"] == pytest.approx(
    {"cosine_f1": means[0], "margin_f1": means[1], "average": means.mean()}
  )
  assert found["bucc"]["missing"] == []
  assert results["absent"]["bucc_test"].startswith("no file of it in ")


def test_nothing_is_found_where_every_sentence_occurs_twice_or_is_like_all_others(tmp_path):
  sides = {"de": [("d1", "x"), ("d2", "x")], "en": [("e1", "y"), ("e2", "y")]}
  write_set(tmp_path / "mining", "de-en", sides, [("d1", "e1"), ("d2", "e2")])
  (task,) = bitext_mining.read_mining(tmp_path)
  (result,) = task.score(np.ones([1, 2]), np.ones([1, 2]))
  assert set(result.metrics.values()) == {0}
  sides = {"de": [("d1", "x"), ("d2", "z")], "en": [("e1", "y"), ("e2", "w")]}
  write_set(tmp_path / "mining", "de-en", sides, [("d1", "e1"), ("d2", "e2")])
  (task,) = bitext_mining.read_mining(tmp_path)
  (result,) = task.score(np.ones([2, 2]), np.ones([2, 2]))
  assert result.metrics["cosine_f1"] == 50  # Both find the first.
