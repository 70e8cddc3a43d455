import benchmark_runs
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import bitext_mining


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
  texts = [list(dict.fromkeys(text.strip() for _, text in side)) for side in (german, english)]
  ids = [{}, {}]
  for place, side in enumerate((german, english)):
    for key, text in side:
      ids[place].setdefault(text.strip(), []).append(key)
  unit = {text: vector / np.linalg.norm(vector) for text, vector in vectors.items()}
  cosine = {(x, y): unit[x] @ unit[y] for x in texts[0] for y in texts[1]}
  mean = {x: np.mean(sorted(cosine[x, y] for y in texts[1])[-4:]) for x in texts[0]}
  mean |= {y: np.mean(sorted(cosine[x, y] for x in texts[0])[-4:]) for y in texts[1]}

  def f1(pairs):
    once = [
      (score, ids[0][x][0], ids[1][y][0])
      for score, x, y in pairs
      if len(ids[0][x]) == len(ids[1][y]) == 1
    ]
    return 100 * naive_f1(once, set(gold))

  nearest = [max((cosine[x, y], x, y) for y in texts[1]) for x in texts[0]]
  margin = {(x, y): value / ((mean[x] + mean[y]) / 2) for (x, y), value in cosine.items()}
  near = {(x, y) for x in texts[0] for y in sorted(texts[1], key=lambda y: -cosine[x, y])[:4]}
  back = {(x, y) for y in texts[1] for x in sorted(texts[0], key=lambda x: -cosine[x, y])[:4]}
  chosen = {max((margin[p], *p) for p in near if p[0] == x) for x in texts[0]}
  chosen |= {max((margin[p], *p) for p in back if p[1] == y) for y in texts[1]}
  kept, used = [], set()
  for score, x, y in sorted(chosen, reverse=True):
    if not used & {x, y}:
      kept.append((score, x, y))
      used |= {x, y}
  return f1(nearest), f1(kept)


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
  results = suite.evaluate(encoder, both, tmp_path, tmp_path / "out", name="x")
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


def test_other_corpora_are_apart_from_bucc_and_seen_languages_from_others(tmp_path):
  german, english, gold, vectors = corpora(np.random.default_rng(0))
  for name in ("de-en", "yo-en"):
    sides = {name[:2]: german, "en": english}
    write_set(tmp_path / "mining", name, sides, gold)
  seen = [languages.language(code) for code in ("de", "en")]
  found = benchmark_runs.run_benchmark(
    bitext_mining.MINING, fake_encoders.table_encoder(vectors), tmp_path, seen=seen
  )
  cosine, margin = naive_scores(german, english, gold, vectors)
  for name in ("", " seen", " unseen"):
    assert found["summary"][f"cosine_f1{name}"] == pytest.approx(cosine)
    assert found["summary"][f"margin_f1{name}"] == pytest.approx(margin)


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
