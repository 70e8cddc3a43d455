import itertools

import numpy as np
import pytest

from vmsst.data import rows, sample, tables, vocabularies

BYTES = vocabularies.ByteVocabulary()
VOCABULARIES = {
  "bytes": vocabularies.ByteVocabulary(lowercase=True),
  "pieces": vocabularies.SentencePieceVocabulary(sample.vocabulary_path()),
}
LENGTHS = {"inputs": 9, "targets": 7}
# Empty, short, cut and over-long sides, as many as one chunk has.
TEXTS = [("x " * (i % 17), f"Y{i} " * (i % 5)) for i in range(256)]


def _texts(vocabulary, max_length, keep_all=False):
  return rows.Texts(
    "x", tables.TextTable(TEXTS, {}), rows.Tokenizer(vocabulary, max_length, keep_all)
  )


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("max_length", [12, None])
def test_rows_have_the_ids_of_the_vocabulary_and_counts_warn(kind, max_length, caplog):
  vocabulary = VOCABULARIES[kind]
  texts = _texts(vocabulary, max_length)
  kept, cut = [], 0
  for pair in TEXTS:
    sizes = list(map(len, vocabulary.tokenize(pair)))
    if min(sizes) > 0 and (max_length is None or max(sizes) <= max_length):
      kept.append(
        [vocabulary.encode([x], n)[0] for x, n in zip(pair, LENGTHS.values(), strict=True)]
      )
      cut += sum(size + 1 > n for size, n in zip(sizes, LENGTHS.values(), strict=True))
  assert 40 < len(kept) < 256
  chunks = rows.read_rows([texts], [1.0], LENGTHS, shuffle=False, seed=0, num_epochs=1)
  for number, side in enumerate(LENGTHS):
    ids_NT = np.concatenate([chunk[side] for chunk in chunks])
    padded = [ids[number] + [0] * (LENGTHS[side] - len(ids[number])) for ids in kept]
    assert ids_NT.tolist() == padded
  rows.check_texts([texts], LENGTHS)
  assert f"Of the first 256 pairs, dropped: {256 - len(kept)} (" in caplog.text
  assert f"texts cut to 7 tokens: {cut}\n" in caplog.text


def test_evaluation_keeps_all_rows():
  texts = _texts(BYTES, 6, keep_all=True)
  chunks = rows.read_rows([texts], [1.0], LENGTHS, shuffle=False, seed=0, num_epochs=1)
  inputs_NT = np.concatenate([chunk["inputs"] for chunk in chunks])
  assert len(inputs_NT) == 256
  assert np.count_nonzero(inputs_NT, axis=1).max() == 6


def _ids(window=10, **options):
  table = tables.TextTable(([f"s{i}"] for i in range(10)), {"id": np.arange(10, dtype=np.int32)})
  table.window = window
  texts = rows.Texts("ids", table, rows.Tokenizer(BYTES, max_length=None, keep_all=False))
  options = {"shuffle": True, "seed": 3, "num_epochs": 1, **options}
  chunks = rows.read_rows([texts], [1.0], {"inputs": 5, "id": None}, **options)
  ids = []
  for chunk in itertools.islice(chunks, 3):
    assert [BYTES.decode(text) for text in chunk["inputs"].tolist()] == [
      f"s{i}" for i in chunk["id"]
    ]
    ids += chunk["id"].tolist()
  return ids


def test_rows_are_whole_and_in_order():
  assert _ids(shuffle=False) == list(range(10))
  shards = [_ids(num_epochs=2, shard=(i, 3)) for i in range(3)]
  assert [len(shard) for shard in shards] == [7, 7, 6]
  assert sorted(itertools.chain(*shards)) == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("window", [10, 4])
def test_every_epoch_is_a_new_order_of_all_rows_within_windows(window):
  stream = _ids(window, num_epochs=3)
  for epoch in (0, 10, 20):
    for start in range(0, 10, window):
      end = min(start + window, 10)
      assert sorted(stream[epoch + start : epoch + end]) == list(range(start, end))
  assert len({tuple(stream[i : i + 10]) for i in (0, 10, 20)}) == 3
  assert stream == _ids(window, num_epochs=3)
  assert stream != _ids(window, num_epochs=3, seed=4)


def test_tables_are_sampled_at_their_rates_until_one_ends():
  tokenizer = rows.Tokenizer(BYTES, max_length=None, keep_all=False)
  parts = [
    rows.Texts(name, tables.TextTable([[name]] * count, {}), tokenizer)
    for name, count in (("a", 300), ("b", 100))
  ]

  def counts(epochs):
    chunks = rows.read_rows(
      parts, [3.0, 2.0], {"inputs": 2}, shuffle=True, seed=1, num_epochs=epochs
    )
    first_N = np.concatenate([chunk["inputs"][:, 0] for chunk in chunks])
    return np.unique(first_N, return_counts=True)[1].tolist()

  for epochs in (1, 2):
    of_a, of_b = counts(epochs)
    assert of_b == 100 * epochs
    assert of_a / of_b == pytest.approx(1.5, abs=0.3)
