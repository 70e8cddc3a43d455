import unicodedata

import fake_encoders
import numpy as np
import pytest

from vmsst import errors
from vmsst.mining import hard_negative_mining

# Cosines with the query: positive 0.88; documents 1.00, 0.96, 0.83, 0.70 and 0.36.
QUERY, POSITIVE = "query 0", "positive 0.5"
CORPUS = ["d 0.8", "b 0.3", "a 0.1", "e 1.2", "c 0.6"]


@pytest.mark.parametrize(("options", "expected"), [
  ({}, "abc"),
  ({"count": 7}, "abcde"),
  ({"range_min": 1, "count": 2}, "bc"),
  ({"range_min": 3}, "de"),
  ({"relative_margin": 0.0}, "cde"),
  ({"relative_margin": 0.05, "count": 1}, "c"),  # at most 0.834
  ({"relative_margin": 0.1}, "de"),  # at most 0.790
  ({"relative_margin": 0.0, "range_max": 3}, "c"),
  ({"relative_margin": 0.0, "range_min": 3}, "de"),
])  # fmt: skip
def test_ranks_and_margins(options, expected):
  encoder = fake_encoders.FakeEncoder(fake_encoders.angle_vector)
  (example,) = hard_negative_mining.hard_negatives(encoder, [(QUERY, POSITIVE)], CORPUS, **options)
  assert [example["query"], example["pos"]] == [QUERY, [POSITIVE]]
  assert [text[0] for text in example["neg"]] == [*expected]
  assert len(example) == 3


@pytest.mark.parametrize("is_encoder", [True, False])
def test_a_teacher_scores_the_candidates_of_the_encoder(is_encoder):
  grades = {POSITIVE: -2.0, "a 0.1": -2.05, "b 0.3": -3.0, "c 0.6": 4.0, "d 0.8": -2.2}
  angles = {QUERY: 0.0, POSITIVE: 0.5, "a 0.1": 0.45, "b 0.3": 0.9, "c 0.6": 0.2, "d 0.8": 0.6}
  asked = []

  def grade(pairs):
    asked.extend(pairs)
    return np.array([grades[document] for _, document in pairs], np.float32)

  teacher, expected = grade, ["b 0.3", "d 0.8"]  # at most -2.1
  scores = [grades[text] for text in expected]
  if is_encoder:
    teacher = fake_encoders.FakeEncoder(lambda text: [np.cos(angles[text]), np.sin(angles[text])])
    scores = [np.cos(angles[text]) for text in expected]
    grades[POSITIVE] = np.cos(0.5)
  encoder = fake_encoders.FakeEncoder(fake_encoders.angle_vector)
  (example,) = hard_negative_mining.hard_negatives(
    encoder, [(QUERY, POSITIVE)], CORPUS[:3] + CORPUS[4:], teacher=teacher, relative_margin=0.05
  )
  assert example["neg"] == expected
  np.testing.assert_allclose(example["pos_scores"], [grades[POSITIVE]], atol=1e-6)
  np.testing.assert_allclose(example["neg_scores"], scores, atol=1e-6)
  if not is_encoder:  # the positive, and the candidates, nearest first
    assert asked == [(QUERY, POSITIVE), *((QUERY, x) for x in sorted(CORPUS) if x != "e 1.2")]


# Repeated sources and targets, exact or with other letters; empty sides; a source that is a target.
PAIRS = [
  *((f"quelle {i}", f"source {i}") for i in range(12)),
  ("quelle 3", "another source"),
  ("QUELLE  3", "a third\tsource"),
  ("noch eine", "Ｓource 5"),
  ("und noch eine", "SOURCE  5"),
  ("Source 6", "quelle 6"),
  ("", "alone"),
  ("allein", " "),
]
DOCUMENTS = [*(f"document {i}" for i in range(9)), "", "Document 3", "SOURCE 3", "source 4"]


class QuietEncoder(fake_encoders.FakeEncoder):
  """Records role, language and size of each call, which must not show its progress."""

  def __init__(self):
    super().__init__(fake_encoders.random_vector)
    self.batches = []

  def encode(self, sentences, *, language, batch_size, progress, on_cut=None, role=None):
    assert progress is False
    self.batches.append((role, language, len(sentences)))
    return super().encode(sentences)

  def encode_query(self, sentences, **options):
    return self.encode(sentences, role="query", **options)

  def encode_document(self, sentences, **options):
    return self.encode(sentences, role="document", **options)


def plain(text):
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def brute_force(pairs, corpus, count, range_min, range_max, margin):
  """Yields, by loops over pairs, the hard negatives of each pair."""
  whole = [(x, y) for x, y in pairs if plain(x) and plain(y)]
  for source, target in whole:
    known = {plain(y) for x, y in whole if plain(x) == plain(source)} | {plain(source)}
    rivals = {}
    for text in [y for _, y in whole] if corpus is None else corpus:
      if plain(text) and plain(text) not in known:
        rivals.setdefault(plain(text), text)
    first = next(x for x, _ in whole if plain(x) == plain(source))
    same = [y for _, y in whole] if corpus is None else [*corpus, *(y for _, y in whole)]
    positive = next(y for y in same if plain(y) == plain(target))
    texts = [first, positive, *rivals.values()]
    vectors = np.array([fake_encoders.random_vector(text) for text in texts])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit[1:] @ unit[0]
    order = sorted(range(len(rivals)), key=lambda i: -scores[1 + i])[range_min:range_max]
    limit = np.inf if margin is None else scores[0] - margin * abs(scores[0])
    chosen = [list(rivals.values())[i] for i in order if scores[1 + i] <= limit]
    yield {"query": source, "pos": [target], "neg": chosen[:count]}


@pytest.mark.parametrize("window", [4, 100])
@pytest.mark.parametrize("corpus", [None, DOCUMENTS])
@pytest.mark.parametrize(("count", "range_min", "range_max", "margin"), [
  (3, 0, None, None), (40, 0, None, None), (2, 3, None, None), (2, 1, 6, 0.2), (3, 0, None, -0.5),
])  # fmt: skip
def test_negatives_are_those_of_plain_loops(
  monkeypatch, window, corpus, count, range_min, range_max, margin
):
  monkeypatch.setattr(hard_negative_mining, "_WINDOW", window)
  found = hard_negative_mining.hard_negatives(
    QuietEncoder(),
    iter(PAIRS),
    corpus,
    count=count,
    range_min=range_min,
    range_max=range_max,
    relative_margin=margin,
  )
  most = range_max or range_min + count * (1 if margin is None else 10)
  assert list(found) == list(brute_force(PAIRS, corpus, count, range_min, most, margin))


def test_neither_a_positive_of_a_query_nor_the_query_itself_is_a_negative():
  found = list(hard_negative_mining.hard_negatives(QuietEncoder(), PAIRS, count=40))
  assert found[3]["neg"] == found[12]["neg"] == found[13]["neg"]
  assert not {"source 3", "another source", "a third\tsource"} & {*found[3]["neg"]}
  assert not {"source 5", "Ｓource 5", "SOURCE  5"} & {*found[5]["neg"], *found[14]["neg"]}
  assert "quelle 6" not in found[6]["neg"]


def test_each_distinct_text_is_embedded_once_by_role_and_language():
  encoder = QuietEncoder()
  languages = ("deu", "eng")
  list(hard_negative_mining.hard_negatives(encoder, PAIRS, DOCUMENTS, languages=languages))
  assert encoder.batches == [("query", "deu", 15), ("document", "eng", 24)]
  plain = list(hard_negative_mining.hard_negatives(encoder, PAIRS, roles=(None, None)))
  assert encoder.batches[2:] == [(None, None, 15), (None, None, 15)]
  assert list(plain[0]) == ["anchor", "positive", "negative"]


def test_of_equally_near_documents_the_first_come_first():
  encoder = fake_encoders.FakeEncoder(lambda _: [1.0, 2.0])
  pairs = [("a", "x"), ("b", "y"), ("b", "z"), ("c", "u"), ("d", "v")]
  found = hard_negative_mining.hard_negatives(encoder, pairs, relative_margin=0.0)
  assert ["".join(example["neg"]) for example in found] == ["yzu", "xuv", "xuv", "xyz", "xyz"]
  (example,) = hard_negative_mining.hard_negatives(encoder, [("a", "x")])
  assert example["neg"] == []


@pytest.mark.parametrize(("pairs", "corpus", "options", "message"), [
  ([("a", "b")], None, {"range_min": 5, "range_max": 7}, "range_max is 7; set it to at least 8"),
  ([("a", "b")], [" "], {}, "only blank texts"),
  ([("a", "\u200b")], None, {}, "every pair contains a blank text"),
  ([("a", "b")], None, {"count": 0}, "count is 0"),
  ([("a", "b")], None, {"range_min": -1}, "range_min is -1"),
])  # fmt: skip
def test_what_cannot_be_mined(pairs, corpus, options, message):
  found = hard_negative_mining.hard_negatives(QuietEncoder(), pairs, corpus, **options)
  with pytest.raises(errors.InputError, match=message):
    list(found)
