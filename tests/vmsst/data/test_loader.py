import collections
import itertools
import types

import numpy as np
import opus_tree
import pytest
import seqio
import toy_runs

from vmsst import errors
from vmsst.data import loader, vocabularies
from vmsst.data.seqio_tasks import BitextFeatureConverter
from vmsst.tasks import bitext

BYTES = vocabularies.ByteVocabulary()
LENGTHS = {"inputs": 24, "targets": 24, "input_language": 1, "target_language": 1}
BOUNDARIES = (8, 12, 16)


@pytest.fixture(scope="module")
def patterns(tmp_path_factory):
  """Files with three times as many German-English rows, in both directions, as French rows."""
  folder = tmp_path_factory.mktemp("bitext")
  rng = np.random.default_rng(0)
  for pair, count in {"de-en": 170, "en-de": 100, "fr-en": 90}.items():
    sizes = rng.integers(1, 20, [count, 2])
    lines = [f"{'s' * a}\t{'t' * b}\n" for a, b in sizes]
    (folder / f"x.{pair}.tsv").write_text("".join(lines), encoding="utf-8")
  return str(folder / "*.tsv")


@pytest.fixture(scope="module")
def mixture(patterns):
  return bitext.files(patterns, BYTES)


def _config(mixture, **changes):
  fields = {
    "mixture_or_task_name": mixture, "task_feature_lengths": LENGTHS, "split": "train",
    "batch_size": 8, "shuffle": True, "seed": 5, "use_cached": False, "pack": False,
    "use_custom_packing_ops": False, "module": None, "trim_output_features": True,
  }  # fmt: skip
  return types.SimpleNamespace(**{**fields, **changes})


def _dataset(mixture, shard=0, shards=1, num_epochs=None, *, changes=None, **options):
  return loader.get_batches(
    _config(mixture, **(changes or {})),
    shard,
    shards,
    BitextFeatureConverter,
    num_epochs,
    boundaries=BOUNDARIES,
    **{"group_by_length": True, **options},
  )


def _batches(dataset, count):
  return list(itertools.islice(dataset, count))


def _classes(batch):
  lengths = np.maximum(*((batch[name] != 0).sum(axis=1) for name in ("inputs", "targets")))
  return np.searchsorted(BOUNDARIES, lengths)


def _rows(batches):
  return [tuple(np.hstack([b[name][i] for name in LENGTHS]).tolist())
          for b in batches for i in range(len(b["inputs"]))]  # fmt: skip


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_seqio_gives_the_rows_of_a_task_in_the_same_order(mixture, shard):
  task = f"{mixture}_deu_eng"
  rows = _rows(_batches(_dataset(task, *shard, group_by_length=False), 40))
  dataset = seqio.get_dataset(
    task, LENGTHS, BitextFeatureConverter(), shuffle=True, seed=5, num_epochs=None,
    shard_info=seqio.ShardInfo(*shard), batch_size=1,
  ).take(len(rows))  # fmt: skip
  assert _rows(dataset.as_numpy_iterator()) == rows


def test_a_task_with_fewer_rows_than_hosts_does_not_end(tmp_path):
  (tmp_path / "x.de-en.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
  name = bitext.files(str(tmp_path / "*.tsv"), BYTES)
  last = _dataset(name, 2, 3, changes={"batch_size": 3}, group_by_length=False)
  assert {len(batch["inputs"]) for batch in _batches(last, 9)} == {1}


def test_hosts_batch_similar_lengths_and_one_language_pair_together(mixture):
  def halves(**options):
    shards = (_batches(_dataset(mixture, shard, 2, **options), 160) for shard in (0, 1))
    return zip(*shards, strict=True)

  def distance(**options):
    return np.mean([abs(_classes(a).mean() - _classes(b).mean()) for a, b in halves(**options)])

  assert distance() < 0.3
  assert distance(group_by_length=False) > 0.4
  pairs = [
    {tuple(row) for half in both for row in _languages(half)}
    for both in halves(group_by_length=False, one_language_pair=True)
  ]
  assert {len(both) for both in pairs} == {1}
  counts = collections.Counter(pair for (pair,) in pairs)
  assert sorted(counts.values()) == pytest.approx([40, 44, 76], abs=2)  # 90, 100 and 170 rows
  assert sum(a != b for a, b in itertools.pairwise(pairs)) > 70


def _languages(batch):
  return np.hstack([batch["input_language"], batch["target_language"]]).tolist()


TOY_LENGTHS = {"task_feature_lengths": {"inputs": 8}}


@pytest.mark.parametrize("count", [0, 37])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"one_language_pair": True},
    {"mixture": "toy", "group_by_length": False, "changes": TOY_LENGTHS},
  ],
)
def test_a_restored_iterator_of_a_host_resumes_exactly(mixture, options, count, tmp_path):
  """The last task is a plain SeqIO task, read through TensorFlow."""
  toy_runs.add_task("toy")
  options = {"mixture": mixture, "shard": 1, "shards": 2, **options}
  iterator = iter(_dataset(**options))
  for _ in range(count):
    next(iterator)
  iterator.save(tmp_path / "state")
  expected = [next(iterator) for _ in range(60)]
  restored = iter(_dataset(**options))
  if options["mixture"] == mixture:
    next(restored)
  restored.restore(tmp_path / "state")
  for batch in expected:
    np.testing.assert_equal(next(restored), batch)


def test_wrong_values_are_refused(mixture):
  with pytest.raises(errors.InputError, match="BATCH_SIZE is 8; set it to a multiple of 3"):
    _dataset(mixture, 0, 3)
  with pytest.raises(errors.InputError, match="one task per language pair, but toy is a single"):
    _dataset(toy_runs.add_task("toy"), one_language_pair=True)


def test_steps_of_epochs(tmp_path):
  pairs = [(f"s{i}", f"t{i}") for i in range(25)]
  opus_tree.write_dataset(tmp_path, "epochs", {("de", "en"): pairs, ("fr", "en"): pairs[:15]})
  built = bitext.opus("epochs", BYTES, str(tmp_path))  # one pair of each is for validation
  assert loader.epoch_steps(built, epochs=30, batch_size=32) == 36  # 30 * (24 + 14) / 32 = 35.6
  assert loader.epoch_steps(built, epochs=1, batch_size=1, split="validation") == 2
  with pytest.raises(errors.InputError, match=r"unknown.*set TRAIN_STEPS"):
    loader.epoch_steps(built, epochs=1, batch_size=1, split="test")
