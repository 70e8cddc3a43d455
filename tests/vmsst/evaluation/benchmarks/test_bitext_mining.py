import collections

import fake_encoders
import line_files
import naive_search
import numpy as np
import pytest

from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import bitext_mining


def naive_f1(candidates, gold):
  """Returns the best F1 over all thresholds; candidates are a score and two ids."""
  best = 0.0
  for threshold in {score for score, *_ in candidates}:
    predicted = {(x, y) for score, x, y in candidates if score >= threshold}
    hits = len(predicted & gold)
    best = max(best, 2 * hits / (len(predicted) + len(gold)))
  return best


def write_set(folder, name, texts, gold):
  for code, lines in texts.items():
    line_files.write_tsv(folder / f"{name}.{code}", lines)
  line_files.write_tsv(folder / f"{name}.gold", gold)


def corpora(rng):
  """Returns two corpora with some repeated sentences, gold pairs, and vectors by text."""
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
  """Returns F1 by cosine and by margin, computed by loops, without repeated sentences."""
  ids = []
  for corpus in (german, english):
    ids.append(collections.defaultdict(list))
    for key, text in corpus:
      ids[-1][text.strip()].append(key)
  search = naive_search.Naive(*([vectors[text] for text in x] for x in ids), 4)
  keys = [list(x.values()) for x in ids]

  def f1(pairs, score):
    once = [
      (score(i, j), *keys[0][i], *keys[1][j])
      for i, j in pairs
      if len(keys[0][i]) == len(keys[1][j]) == 1
    ]
    return 100 * naive_f1(once, set(gold))

  nearest = enumerate(search.cosine.argmax(axis=1))
  return f1(nearest, lambda i, j: search.cosine[i, j]), f1(search.pairs(), search.score)


@pytest.mark.parametrize("nested", [False, True])
def test_scores_equal_plain_loops_and_only_the_training_split_is_read(tmp_path, nested):
  sets = {name: corpora(np.random.default_rng(i)) for i, name in enumerate(bitext_mining.PAIRS)}
  vectors, expected = {}, {}
  for name, (german, english, gold, set_vectors) in sets.items():
    rename = {text: f"{name} {text}" for text in set_vectors}
    german, english = (
      [(key, rename[text.strip()]) for key, text in corpus] for corpus in (german, english)
    )
    set_vectors = {rename[text]: vector for text, vector in set_vectors.items()}
    vectors |= set_vectors
    texts = dict(zip(name.split("-"), (german, english), strict=True))
    folder = tmp_path / "bucc2018" / (name if nested else "")
    write_set(folder, f"{name}.training", texts, gold)
    write_set(folder, f"{name}.test", texts, gold)
    (folder / f"{name}.test.gold").unlink()
    expected[name] = naive_scores(german, english, gold, set_vectors)
  encoder = fake_encoders.table_encoder(vectors)
  scored = suite.evaluate(encoder, [bitext_mining.BUCC], tmp_path)["benchmarks"]["bucc"]
  texts = [text for call in encoder.calls for text in call]
  assert len(texts) == len(set(texts)) == 4 * 60  # Each distinct sentence is embedded once.
  metrics = {x["name"]: x["metrics"] for x in scored["results"]}
  for name, (cosine, margin) in expected.items():
    assert 20 < cosine < 100
    assert metrics[name]["cosine_f1"] == pytest.approx(cosine)
    assert metrics[name]["margin_f1"] == pytest.approx(margin)
    # Four of the 13 gold pairs have a repeated sentence and cannot be found.
    assert metrics[name]["margin_recall"] <= 100 * 9 / 13
  means = np.mean(list(expected.values()), axis=0)
  assert scored["summary"] == pytest.approx(
    {"cosine_f1": means[0], "margin_f1": means[1], "average": means.mean()}
  )
  assert scored["missing"] == []


def test_repeated_sentences_score_0_and_equal_vectors_find_the_first_sentence(tmp_path):
  texts = {"de": [("d1", "x"), ("d2", "x")], "en": [("e1", "y"), ("e2", "y")]}
  write_set(tmp_path / "mining", "de-en", texts, [("d1", "e1"), ("d2", "e2")])
  (task,) = bitext_mining.read_mining(tmp_path)
  (result,) = task.score(np.ones([1, 2]), np.ones([1, 2]))
  assert set(result.metrics.values()) == {0}
  texts = {"de": [("d1", "x"), ("d2", "z")], "en": [("e1", "y"), ("e2", "w")]}
  write_set(tmp_path / "mining", "de-en", texts, [("d1", "e1"), ("d2", "e2")])
  (task,) = bitext_mining.read_mining(tmp_path)
  (result,) = task.score(np.ones([2, 2]), np.ones([2, 2]))
  assert result.metrics["cosine_f1"] == 50  # Both sentences find the first.
