import itertools

import grain
import jax
import numpy as np
import pytest

from vmsst.data import batches, sample, tables, vocabularies

BYTES = vocabularies.ByteVocabulary()
VOCABULARIES = {
  "bytes": vocabularies.ByteVocabulary(lowercase=True),
  "pieces": vocabularies.SentencePieceVocabulary(sample.vocabulary_path()),
}
LENGTHS = {"inputs": 9, "targets": 7}
# Empty, short, cut and over-long sides, as many as one chunk has.
TEXTS = [("x " * (i % 17), f"Y{i} " * (i % 5)) for i in range(256)]


def _texts(vocabulary, max_length):
  tokenizer = batches.Tokenizer(vocabulary, max_length, keep_all=False)
  return batches.Texts("x", tables.TextTable(TEXTS, {}), tokenizer)


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
  chunks = batches.read_rows([texts], [1.0], LENGTHS, shuffle=False, seed=0, num_epochs=1)
  for number, side in enumerate(LENGTHS):
    ids_NT = np.concatenate([chunk[side] for chunk in chunks])
    padded = [ids[number] + [0] * (LENGTHS[side] - len(ids[number])) for ids in kept]
    assert ids_NT.tolist() == padded
  batches.check_texts([texts], LENGTHS)
  assert f"Of the first 256 pairs, {256 - len(kept)} were dropped (" in caplog.text
  assert f"texts cut to 7 tokens: {cut}\n" in caplog.text


def _ids(window=10, **options):
  table = tables.TextTable(([f"s{i}"] for i in range(10)), {"id": np.arange(10, dtype=np.int32)})
  table.window = window
  texts = batches.Texts("ids", table, batches.Tokenizer(BYTES, max_length=None, keep_all=False))
  options = {"shuffle": True, "seed": 3, "num_epochs": 1, **options}
  chunks = batches.read_rows([texts], [1.0], {"inputs": 5, "id": None}, **options)
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
  tokenizer = batches.Tokenizer(BYTES, max_length=None, keep_all=False)
  parts = [
    batches.Texts(name, tables.TextTable([[name]] * count, {}), tokenizer)
    for name, count in (("a", 300), ("b", 100))
  ]

  def counts(epochs):
    chunks = batches.read_rows(
      parts, [3.0, 2.0], {"inputs": 2}, shuffle=True, seed=1, num_epochs=epochs
    )
    first_N = np.concatenate([chunk["inputs"][:, 0] for chunk in chunks])
    return np.unique(first_N, return_counts=True)[1].tolist()

  for epochs in (1, 2):
    of_a, of_b = counts(epochs)
    assert of_b == 100 * epochs
    assert of_a / of_b == pytest.approx(1.5, abs=0.3)


BOUNDARIES = (8, 12, 16)
SIDE_LENGTHS = {"inputs": 24, "targets": 24}


def _padded(size):
  """Returns ids of texts of these lengths, padded with 0."""
  return (np.arange(24) < size[..., None]).astype(np.int32)


def _rows(count, negatives=0, scores=0):
  """Returns an endless stream of chunks of `count` rows, of lengths 1 to 19."""
  rng = np.random.default_rng(0)
  chunks = []
  for first in range(0, 50 * count, count):
    chunk = {side: _padded(rng.integers(1, 20, count)) for side in SIDE_LENGTHS}
    chunk["id"] = np.arange(first, first + count)
    if negatives:
      chunk["negatives"] = _padded(rng.integers(1, 20, (count, negatives)))
    if scores:
      chunk["scores"] = rng.random((count, scores))
    chunks.append(chunk)
  return grain.MapDataset.source(chunks).repeat().to_iter_dataset()


def _batches(count, negatives=0, seed=5, scores=0):
  rows = _rows(50, negatives, scores)
  dataset = batches.length_batches(rows, 8, 24, seed, BOUNDARIES)
  iterator = iter(dataset)
  return [next(iterator) for _ in range(count)]


def _classes(batch):
  columns = [np.count_nonzero(batch[side], axis=-1) for side in SIDE_LENGTHS]
  if "negatives" in batch:
    columns.append(np.count_nonzero(batch["negatives"], axis=-1).max(axis=1))
  return np.searchsorted(BOUNDARIES, np.max(columns, axis=0))


@pytest.mark.parametrize("negatives", [0, 2])
def test_batches_have_one_length_class(negatives):
  mixed = sum(len(set(_classes(batch))) > 1 for batch in _batches(160, negatives))
  # At most one batch of a group of 16 crosses each of the three boundaries.
  assert mixed <= 3 * 10


def test_graded_pairs_are_not_sorted_by_length():
  graded, taught = (_batches(16, scores=scores) for scores in (1, 3))
  assert all(np.ptp(batch["id"]) == 7 for batch in graded)  # consecutive rows of the stream
  assert sum(len(set(_classes(batch))) > 1 for batch in taught) <= 3


def test_groups_have_the_rows_of_the_stream_in_mixed_or_ascending_order():
  for seed in (5, None):
    groups = _batches(32, seed=seed)
    for start in (0, 16):
      ids = np.concatenate([batch["id"] for batch in groups[start : start + 16]])
      assert sorted(ids.tolist()) == list(range(8 * start, 8 * start + 128))
    longest = [_classes(batch).max() for batch in groups[:16]]
    assert (longest == sorted(longest)) == (seed is None)


def test_an_iterator_takes_only_a_state_of_its_shard(tmp_path):
  """Resuming is tested with the loader."""
  first, second = (
    batches.BatchIterator(_rows(8), {"id": jax.ShapeDtypeStruct([8], np.int64)}, (shard, 2))
    for shard in (0, 1)
  )
  ids = [next(first)["id"].tolist() for _ in range(3)]
  first.save(tmp_path / "state")
  with pytest.raises(ValueError, match=r"data shard \[0, 2\], not \[1, 2\]"):
    second.restore(tmp_path / "state")
  first.reset()
  assert next(first)["id"].tolist() == ids[0]
