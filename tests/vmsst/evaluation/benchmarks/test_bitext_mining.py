import collections

import fake_encoders
import line_files
import naive_search
import numpy as np
import pytest

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
  results = suite.evaluate(encoder, [bitext_mining.BUCC], tmp_path)
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
