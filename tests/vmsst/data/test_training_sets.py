"""Training sets from files and rows: columns, prompts, hard negatives, scores and batches."""

import collections
import json
import types

import line_files
import memory_store
import numpy as np
import pytest

from vmsst import errors
from vmsst.data import readers, training_sets, vocabularies
from vmsst.languages import language

BYTES = vocabularies.ByteVocabulary()
PROMPTS = {"query": "q: ", "document": "d: ", None: "t: "}


def read(data, **options):
  """The roles and the columns of a set, without language ids."""
  ((name, settings),) = training_sets.by_name(data, "pairs", **options).items()
  opened = training_sets.open_set(name, settings, PROMPTS)
  columns = opened.table.rows(np.arange(len(opened.table)))
  texts = {key: x for key, x in columns.items() if not key.endswith("language")}
  return opened.roles, {
    key: x.tolist() if isinstance(x, np.ndarray) else x for key, x in texts.items()
  }


@pytest.mark.parametrize(("content", "roles", "expected"), [
  (  # plain pairs, with hard negatives of which some are missing
    "a\tb\tn\tm\nc\td\t\to\n",
    (None, None),
    {
      "inputs": ["t: a", "t: c"],
      "targets": ["t: b", "t: d"],
      "negatives": [["t: n", "t: m"], ["", "t: o"]],
    },
  ),
  (  # the output of `vmsst mine`
    "1.2\ta\tb\n1.1\tc\td\n",
    (None, None),
    {"inputs": ["t: a", "t: c"], "targets": ["t: b", "t: d"]},
  ),
  (
    "question\tanswer\nwho\tme\n",
    ("query", "document"),
    {"inputs": ["q: who"], "targets": ["d: me"]},
  ),
  (
    "sentence1\tsentence2\tscore\na\tb\t4.5\n \tc\t1\n",
    (None, None),
    {"inputs": ["t: a"], "targets": ["t: b"], "scores": [[4.5]]},
  ),
])  # fmt: skip
def test_tables_with_and_without_a_header(tmp_path, content, roles, expected):
  path = tmp_path / "x.tsv"
  path.write_text(content)
  assert read(path) == (roles, expected)


RECORDS = [
  (
    [{"id": 7, "idx": "x", "anchor": "a", "positive": "b", "negative_1": "n", "negative_2": "m"}],
    {},
    {"inputs": ["t: a"], "targets": ["t: b"], "negatives": [["t: n", "t: m"]]},
  ),
  (  # FlagEmbedding's: each positive is a pair
    [{"query": "a", "pos": ["b", "c"], "neg": ["n"], "pos_scores": [3, 2], "neg_scores": [1]}],
    {},
    {
      "inputs": ["q: a", "q: a"],
      "targets": ["d: b", "d: c"],
      "negatives": [["d: n"], ["d: n"]],
      "scores": [[3, 1], [2, 1]],
    },
  ),
  (
    [{"query": "a", "pos": "b", "neg": ["n", "m"]}, {"query": "c", "pos": "d", "neg": []}],
    {"negatives": 1, "prompts": ("", "p: ")},
    {"inputs": ["a", "c"], "targets": ["p: b", "p: d"], "negatives": [["p: n"], [""]]},
  ),
  (  # the first record may have no negatives, and other texts are none
    [
      {"query": "a", "pos": ["b"], "neg": [], "neg_scores": [], "pos_scores": [2]},
      {"query": "c", "pos": ["d"], "neg": ["n"], "neg_scores": [1], "pos_scores": [3], "type": "x"},
    ],
    {},
    {
      "inputs": ["q: a", "q: c"],
      "targets": ["d: b", "d: d"],
      "negatives": [[""], ["d: n"]],
      "scores": [[2, 0], [3, 1]],
    },
  ),
  (
    [{"translation": {"en": "b", "de": "a"}, "id": 1}],
    {"languages": ("de", "en")},
    {"inputs": ["t: a"], "targets": ["t: b"]},
  ),
  (
    [{"text": "a", "other": "b"}],
    {"roles": ("query", "document")},
    {"inputs": ["q: a"], "targets": ["d: b"]},
  ),
]


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize(("records", "options", "expected"), RECORDS)
def test_named_columns(tmp_path, records, options, expected, in_file):
  data = records
  if in_file:
    data = tmp_path / "x.jsonl"
    data.write_text("".join(f"{json.dumps(record)}\n" for record in records))
  assert read(data, **options)[1] == expected


@pytest.mark.parametrize(("data", "message"), [
  ([], "pairs has no pair of two texts"),
  ([("a", "b"), "c"], "row 2 of pairs: 'c'; give texts"),
  ([{"x": "a"}], r"row 1 of pairs: the text fields are \['x'\]; a pair needs two"),
  ([{"x": "a", "y": "b"}, {"x": "a", "y": 3}], "row 2 of pairs: .*3.; give texts"),
  ([{"x": "a", "y": "b", "label": "good"}], "'good'. are not numbers"),
  ([{"x": "a", "y": "b", "relevance": 0}], "'relevance'. may be scores; rename one to 'score'"),
  ([{"x": "a", "y": "b", "z": "c", "label": [1]}, {"x": "a", "y": "b", "label": [1, 2, 3]}],
   "pairs: pair 1 has 1 scores"),
])  # fmt: skip
def test_errors_name_the_row_that_cannot_be_read(data, message):
  with pytest.raises(errors.InputError, match=message):
    read(data)


@pytest.mark.parametrize(("content", "message"), [
  ("a\tb\t0\n", "x.tsv:1: unexpected number after the pair; add a header"),
  ("question\tanswer\na\tb\tc\n", "x.tsv:2: expected source .*; write 2 columns"),
  ("a;b\n", "x.tsv:1: expected source TAB target"),
])  # fmt: skip
def test_a_damaged_line_is_named(tmp_path, content, message):
  path = tmp_path / "x.tsv"
  path.write_text(content)
  with pytest.raises(errors.InputError, match=message):
    read(path)


def test_a_file_in_a_store_and_scores_before_its_pairs(monkeypatch, caplog):
  store = memory_store.installed(monkeypatch)
  store.pipe_file("gs://bucket/mined.tsv", b"1.2\ta\tb\n")
  assert read("gs://bucket/mined.tsv")[1] == {"inputs": ["t: a"], "targets": ["t: b"]}
  assert "gs://bucket/mined.tsv: ignoring the scores in column 1" in caplog.text


def test_files_give_their_lines_in_order(tmp_path):
  line_files.write_tsv(tmp_path / "a.de-en.tsv.gz", [(f"s{i}", f"t{i}") for i in range(5)])
  line_files.write_text(tmp_path / "b.de-en.de", "\ufeffs5\r\n \r\ns7")
  line_files.write_text(tmp_path / "b.de-en.en", "t5\r\nt6\nt7")
  files = readers.find_bitext(str(tmp_path / "*.de-en.*"))
  settings = training_sets.TrainingSet(files, languages=("de", "en"))
  table = training_sets.open_set("x", settings).table
  assert (len(table), table.dropped) == (7, 1)
  rows = table.rows(np.array([6, 0, 5]))
  assert rows["inputs"] == ["s7", "s0", "s5"]
  assert rows["targets"] == ["t7", "t0", "t5"]
  assert rows["target_language"].tolist() == [[language("en").index]] * 3


def test_names_of_sets():
  rows = [("a", "b")]
  assert [*training_sets.by_name(["x/a.de-en.tsv", "b.tsv"], "pairs")] == ["a", "b"]
  assert [*training_sets.by_name({"nli": rows, "sts": rows}, "pairs")] == ["nli", "sts"]
  sets = [training_sets.TrainingSet(rows), training_sets.TrainingSet(rows)]
  assert [*training_sets.by_name(sets, "dev")] == ["dev1", "dev2"]
  with pytest.raises(errors.InputError, match="pass a dictionary with a unique name"):
    training_sets.by_name(["x/a.tsv", "y/a.tsv"], "pairs")


def open_sets(**sizes):
  return [
    training_sets.open_set(
      name,
      training_sets.TrainingSet(
        [(f"{name} {i}", f"{name}{i}") for i in range(size)], weight=weight
      ),
    )
    for name, (size, weight) in sizes.items()
  ]


def get_batches(sets, batch_size, max_length, *, seed=0, **options):
  cfg = types.SimpleNamespace(batch_size=batch_size, seed=seed)
  options |= {"sets": sets, "vocabulary": BYTES, "max_length": max_length}
  return training_sets.get_batches(cfg, **options)


def names_in(batch):
  return {BYTES.decode(row.tolist()).split()[0] for row in batch["inputs"]}


@pytest.mark.parametrize(
  ("power", "weight", "share"), [(1.0, None, 0.9), (0.0, None, 0.5), (1.0, 30, 0.75)]
)
def test_a_batch_is_of_one_set_chosen_by_size_or_weight(power, weight, share):
  sets = open_sets(a=(90, weight and 3 * weight), b=(10, weight))
  batches = get_batches(sets, 4, 12, sampling_power=power)
  counts = collections.Counter()
  for _ in range(40):
    (name,) = names_in(next(batches))
    counts[name] += 1
  assert counts["a"] == pytest.approx(40 * share, abs=1)


def test_a_weight_is_positive():
  with pytest.raises(errors.InputError, match="weight is 0; set it to a number in"):
    get_batches(open_sets(a=(9, 0)), 4, 12)


def test_mixed_batches_have_rows_of_all_sets():
  sets = open_sets(a=(50, None), b=(50, None))
  batches = get_batches(sets, 32, 12, mixed=True)
  assert names_in(next(batches)) == {"a", "b"}
  graded = training_sets.TrainingSet([{"x": "a", "y": "b", "score": 1}])
  sets.append(training_sets.open_set("graded", graded))
  with pytest.raises(errors.InputError, match=r"'graded'.* differ in their columns"):
    get_batches(sets, 4, 12, mixed=True)


@pytest.mark.parametrize("slices", [0, 2])
def test_batches_resume_and_have_the_features_of_their_set(slices):
  graded = [{"x": "a", "y": "b", "score": i} for i in range(9)]
  mined = [("a", "b", "n")] * 8 + [("a", "b", "n", "m")]

  def batches():
    sets = [
      training_sets.open_set("graded", training_sets.TrainingSet(graded, objective="similarity")),
      training_sets.open_set("mined", training_sets.TrainingSet(mined)),
    ]
    return get_batches(sets, 4, 6, seed=3, packed_slices=slices)

  uninterrupted, resumed = batches(), batches()
  first = [next(uninterrupted) for _ in range(5)]
  resumed.set_state(json.loads(json.dumps(uninterrupted.state())))
  for _ in range(5):
    batch, resumed_batch = next(uninterrupted), next(resumed)
    assert batch.keys() == resumed_batch.keys()
    for name in batch:
      np.testing.assert_array_equal(batch[name], resumed_batch[name])
  for batch in first:
    assert ("packing" in batch) == bool(slices)
    if "scores" in batch:
      assert batch["scores"].shape == (4, 1)
      assert batch["objective/similarity"].shape == (4, 0)
    else:
      assert batch["negatives"].shape == (4, 2, 6)
      missing_B = ~batch["negatives"][:, 1].any(axis=1)
      assert batch["negatives"][:, 0].any()
      assert missing_B.sum() >= 3


def test_the_digest_is_of_texts_scores_and_use():
  def digest(data, **options):
    return training_sets.open_set("x", training_sets.TrainingSet(data, **options)).digest

  same = digest([("a", "b")])
  assert same == digest([{"x": "a", "y": "b"}])
  variants = [
    digest([("a", "c")]),
    digest([("ab", " "), ("a", "b")], prompts=("", "p")),
    digest([("a", "b")], weight=2),
    digest([{"x": "a", "y": "b", "score": 1}]),
    digest([{"x": "a", "y": "b", "score": 2}]),
  ]
  assert len({same, *variants}) == 1 + len(variants)
