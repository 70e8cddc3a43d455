"""Damaged files, bombs and code: each reader reads or refuses them.

Nothing else changes, within limits of time and memory.
"""

import gzip
import json
import pickle
import re

import benchmark_trees
import entry_points
import killed_commands
import numpy as np
import opus_tree
import pytest
import trials
from trials import Reader

import vmsst
from vmsst.data import formats, input_texts
from vmsst.data import readers as bitext_readers
from vmsst.evaluation import benchmarks, results_files
from vmsst.evaluation.benchmarks import questions as questions_lib
from vmsst.formats import tensors
from vmsst.io import text_files
from vmsst.opus import releases

PAIRS = [("Hallo Welt", "hello world"), ("Wie geht’s?", "how are you?"), ("ja <3", "yes & no")]
TSV = "".join(f"{x}\t{y}\n" for x, y in PAIRS).encode()
SIDES = ["".join(f"{text}\n" for text in side).encode() for side in zip(*PAIRS, strict=True)]
JSONL = "".join(json.dumps({"translation": {"de": x, "en": y}}) + "\n" for x, y in PAIRS).encode()
PARTS = [
  opus_tree.Part("Europarl", "v8", ("de", "en"), PAIRS),
  opus_tree.Part("UNPC", "v1", ("de", "en"), PAIRS, "tmx", "loose"),
  opus_tree.Part("Tatoeba", "v1", ("de", "en"), PAIRS, "tsv", "flat"),
]
TMX = gzip.decompress(PARTS[1].content)

RESULTS = b"""{"encoder": {"name": "mine"}, "seen": ["de", "en"], "absent": {"sts": "no folder"},
  "failed": {}, "benchmarks": {"tatoeba": {"title": "Tatoeba", "summary": {"average": 90.5},
    "missing": ["fra"], "seconds": {"embed": 1.5}, "data": {"digest": "0"}, "options": {},
    "results": [{"name": "deu", "languages": ["deu", "eng"], "metrics": {"average": 90}}]}}}"""


def bitext(folder):
  for pattern in ("m.de-en.*", "x.*", "t.*", "j.*"):
    for found in bitext_readers.find_bitext(str(folder / pattern)):
      for row in bitext_readers.read_rows(found):
        "".join(row.texts).encode()


def opus_releases(folder):
  for release in releases.scan(str(folder))[0]:
    for item in releases.read(release):
      assert isinstance(item, (formats.Row, formats.Fault))


def all_benchmarks(folder):
  for benchmark in benchmarks.BENCHMARKS.values():
    for task in benchmark.read(folder):
      assert all(isinstance(text, str) for text in task.held_out_texts())


def questions(folder):
  for span in text_files.cut([str(folder / "a.jsonl")], 2).spans:
    list(text_files.records(span.read(), questions_lib.Question, span.name, span.first))


def texts(folder):
  input_texts.as_list(folder / "x.txt")
  for kind, key in (("tsv", "2"), ("jsonl", "text")):
    list(text_files.read_texts(str(folder / f"x.{kind}"), key))


def readers_of_data(folder):
  """Returns readers of texts, benchmarks, settings and archives."""
  opus_tree.write(folder / "opus", PARTS)
  tree = killed_commands.contents(benchmark_trees.write(folder / "benchmarks"))
  plain = {k.removesuffix(".gz"): gzip.decompress(x) if ".gz" in k else x for k, x in tree.items()}
  return [
    Reader("bitext", {
      "m.de-en.de": SIDES[0], "m.de-en.en": SIDES[1], "x.de-en.tsv": TSV,
      "x.de-tr.tsv.gz": gzip.compress(TSV), "x.de-fr.tmx": TMX,
      "x.de-es.tmx.gz": gzip.compress(TMX), "j.de-en.jsonl": JSONL,
      "t.de-en.tsv": TSV.replace(b"\n", b"\tno\t\n")}, bitext),
    Reader("opus releases", killed_commands.contents(folder / "opus"), opus_releases),
    Reader("benchmarks", plain, all_benchmarks),
    Reader("questions", {
      "a.jsonl": b'{"question": "who?", "answer": ["he", "she"]}\n'}, questions),
    Reader("texts", {"x.txt": SIDES[0], "x.tsv": TSV, "x.jsonl": b'{"text": "a"}\n' * 2}, texts),
    Reader("results", {"results.json": RESULTS},
      lambda folder: results_files.read_results(folder / "results.json")),
  ]  # fmt: skip


SMALL = (
  "bitext", "opus releases", "benchmarks", "questions", "texts", "results",
  "SentencePiece model", "tokenizer.json", "vectors",
)  # fmt: skip
LARGE = (
  "vmsst.load of a run", "vmsst.load of a safetensors export", "import mt5", "import encoder",
  "vmsst.load of a sentence-transformers export", "import ems, torch",
)  # fmt: skip


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
  pytest.importorskip("torch", reason="needs torch to make its files")
  every = [*readers_of_data(tmp_path_factory.mktemp("files")), *entry_points.all_readers()]
  assert {reader.name for reader in every} == {*SMALL, *LARGE}
  return {reader.name: reader for reader in every}


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_damaged_files_are_read_or_refused(name, times, readers, tmp_path):
  trials.check(readers[name], times * (24 if name in SMALL else 8), tmp_path, seed=times)


CODE = pickle.dumps({"a": entry_points.Touch()})
# The file that is refused, its content, and the message.
REFUSED = {
  "one line of 80 MB in 80 kB": (
    "x.gz", lambda: gzip.compress(bytes(1 << 22)) * 20, "longer than 64 MB"),
  "a pickle": ("x.pt", lambda: CODE, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_grow_or_run_code_are_refused(name, tmp_path, monkeypatch):
  path, content, match = REFUSED[name]
  if path == "x.pt":  # imported before memory is limited
    pytest.importorskip("torch", reason="needs torch to read the file")
  (tmp_path / path).write_bytes(content())
  monkeypatch.chdir(tmp_path)

  def read(folder):
    if path == "x.gz":
      return sum(map(len, text_files.read_lines(str(folder / path))))
    return [tensor.read() for tensor in tensors.open_file(folder / path).values()]

  error, fault = trials.attempt(read, tmp_path)
  assert not fault
  assert re.search(match, str(error))
  assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
  ("reader", "file", "changes"),
  [
    ("vmsst.load of a safetensors export", "encoder.json", {"num_encoder_layers": 1 << 70}),
    ("import encoder", "config.json", {"num_hidden_layers": 10**9}),
  ],
)
def test_models_of_huge_sizes_are_refused(reader, file, changes, readers, tmp_path):
  place = trials.lay_out(readers[reader].files, tmp_path) / "m" / file
  record = json.loads(place.read_bytes())
  config = record["network"]["config"] if file == "encoder.json" else record
  assert config.keys() >= changes.keys()
  config.update(changes)
  place.write_text(json.dumps(record))
  error, fault = trials.attempt(readers[reader].read, tmp_path)
  assert error
  assert not fault


def test_an_opus_archive_that_names_files_outside_and_expands_a_thousand_times(tmp_path):
  members = {"../../../X.de-en.de": b"a" * (1 << 26), "/X.de-en.en": b"b\n" * 3}
  trials.lay_out({"X/v1/moses/de-en.txt.zip": opus_tree.zipped(members)}, tmp_path)

  def read(place):
    for release in releases.scan(str(place))[0]:
      assert all(isinstance(item, formats.Fault) for item in releases.read(release))

  assert trials.attempt(read, tmp_path) == (None, "")


def test_nothing_in_the_folder_of_a_run_is_executed(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  trials.lay_out(entry_points.run_files(), tmp_path)
  assert {"config.gin", "model.py"} <= {path.name for path in (tmp_path / "m").iterdir()}
  assert np.isfinite(vmsst.load(tmp_path / "m").encode(["a"])).all()
  assert not (tmp_path / "ran").exists()
