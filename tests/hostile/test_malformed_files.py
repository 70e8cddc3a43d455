"""Malformed files, bombs and code: each reader reads them or raises one clear error.

Nothing else changes, within limits of time and memory.
"""

import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import tarfile
import zipfile

import benchmark_trees
import gin
import model_readers
import numpy as np
import opus_tree
import pytest
import trials
from trials import Reader

import vmsst
from vmsst import errors
from vmsst.bitext import formats
from vmsst.bitext import readers as bitext_readers
from vmsst.checkpoints import tensors
from vmsst.checkpoints.importers import bert, mt5, vmsst_release
from vmsst.downloads import tables
from vmsst.evaluation import benchmarks
from vmsst.evaluation.benchmarks import documents, knowledge_search
from vmsst.evaluation.report import reading
from vmsst.files import archives, line_spans, text_fields, text_files
from vmsst.launch.runtime import gin_utils
from vmsst.tasks.opus import recipes, releases
from vmsst.text import input_texts

PAIRS = [("Hallo Welt", "hello world"), ("Wie geht’s?", "how are you?"), ("ja <3", "yes & no")]

TSV = "".join(f"{x}\t{y}\n" for x, y in PAIRS).encode()

SIDES = ["".join(f"{text}\n" for text in side).encode() for side in zip(*PAIRS, strict=True)]

JSONL = "".join(json.dumps({"translation": {"de": x, "en": y}}) + "\n" for x, y in PAIRS).encode()

PARTS = [
  opus_tree.Part("Europarl", "v8", ("de", "en"), PAIRS),
  opus_tree.Part("UNPC", "v1", ("de", "en"), PAIRS, "tmx", "loose"),
  opus_tree.Part("Tatoeba", "v1", ("de", "en"), PAIRS, "tsv", "flat"),
]

TMX = opus_tree.tmx(PARTS[1])

CLS = b"""<?xml version="1.0" encoding="utf-8"?>
<items><item><rating>1.0</rating><summary>Gut</summary><text>Buch &amp; mehr</text></item>
<item><rating>5.0</rating><summary>Gut</summary><text>Buch</text></item></items>
"""

RECIPE = b"""\
name: mine
languages: [de, en, tr]
pivots: [en]
corpora:
  - {name: Europarl, version: v8}
  - {name: OpenSubtitles, cap: 2000000, caps: {en-tr: 500000}}
  - {name: Tatoeba, only_where_nothing_else: true}
targets: {de: 8000000}
expected: {de: 100, de-en: 7}
validation: {share: 0.01, at_most: 500}
cleaning: {max_ratio: 4.0}
seed: 0x10
"""

RESULTS = b"""{"encoder": {"name": "mine"}, "seen": ["de", "en"], "absent": {"sts": "no folder"},
  "failed": {}, "benchmarks": {"tatoeba": {"title": "Tatoeba", "summary": {"average": 90.5},
    "missing": ["fra"], "seconds": {"embed": 1.5}, "data": {"digest": "0"}, "options": {},
    "results": [{"name": "deu", "languages": ["deu", "eng"], "metrics": {"average": 90}}]}}}"""
GIN = b"""\
from __gin__ import dynamic_registration
from vmsst.networks import t5
include 'other.gin'
STEPS = %gin.REQUIRED
SIZES = {'a': [1, 2.5, None], "b": (True, 'text')}
t5.T5Config:
  vocab_size = 100
  emb_dim = %WIDTH
run/t5.T5Config.num_heads = 3
"""

CONTENT = b"".join(b"%d\n" % i for i in range(900))


def bitext(folder):
  for pattern in ("m.de-en.*", "x.*", "t.*", "j.*"):
    for found in bitext_readers.find_bitext(str(folder / pattern)):
      assert found.text_bytes >= 0
      for row in bitext_readers.read_rows(found, 2 if pattern == "t.*" else 0):
        "".join(row).encode()


def opus_releases(folder):
  for release in releases.scan(str(folder))[0]:
    for item in releases.read(release):
      assert isinstance(item, (formats.Row, formats.Fault))
    release.license()


def all_benchmarks(folder):
  for benchmark in benchmarks.BENCHMARKS.values():
    for task in benchmark.read(folder):
      texts = task.texts() if hasattr(task, "texts") else (x for s in task.sides for x in s.texts)
      assert all(isinstance(text, str) for text in texts)


def questions(folder):
  for span in line_spans.cut([str(folder / "a.tsv"), str(folder / "b.jsonl")], 2).spans:
    list(knowledge_search.parse(span))


def documents_of(folder):
  documents.mldoc(folder / "mldoc")
  documents.cls(folder / "cls")
  documents.amazon(folder / "amazon", "en")


def texts(folder):
  input_texts.as_list(folder / "x.txt")
  for kind, key in (("tsv", "2"), ("jsonl", "text")):
    list(text_fields.read_texts(str(folder / f"x.{kind}"), key))


def gin_files(folder, *bindings):
  gin.clear_config()
  try:
    gin_utils.parse_gin_flags([str(folder)], ["x.gin"], ["STEPS = 7", *bindings])
  finally:
    gin.clear_config()


def unpack(folder):
  (folder / "out").mkdir()
  for path in sorted(folder.glob("a.*")):
    out = folder / "out" / path.name
    found = archives.unpack(path, out, lambda name: name if ".txt" in name else None, 1 << 20)
    assert all(each.is_file() and out in each.parents for each in found)


def archive_files():
  zipped, tarred = io.BytesIO(), io.BytesIO()
  members = {"top/x.txt": CONTENT, "top/deep/y.txt": b"y\n", "top/z.bin": b"z"}
  with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as tar:
    for name, content in members.items():
      info = tarfile.TarInfo(name)
      info.size, info.pax_headers = len(content), {"comment": "x" * 30}
      tar.addfile(info, io.BytesIO(content))
  tar, zipped = tarred.getvalue(), opus_tree.zipped(members)
  return {
    "a.zip": zipped, "a.tar": tar, "a.tgz": gzip.compress(tar, mtime=0),
    "a.tar.bz2": bz2.compress(tar), "a.tar.xz": lzma.compress(tar),
  }  # fmt: skip


def readers_of_data(folder):
  """Returns readers of texts, benchmarks, settings and archives."""
  opus_tree.write(folder / "opus", PARTS)
  tree = trials.files_below(benchmark_trees.write(folder / "benchmarks"))
  plain = {k.removesuffix(".gz"): gzip.decompress(x) if ".gz" in k else x for k, x in tree.items()}
  amazon = plain["amazon_reviews/test/dataset_en_test.json"]
  moses = {"News/v1/moses/N.de-en.de": SIDES[0], "News/v1/moses/N.de-en.en": SIDES[1]}
  return [
    Reader("bitext", {
      "m.de-en.de": SIDES[0], "m.de-en.en": SIDES[1], "x.de-en.tsv": TSV,
      "x.de-tr.tsv.gz": gzip.compress(TSV), "x.de-fr.tmx": TMX,
      "x.de-es.tmx.gz": gzip.compress(TMX), "j.de-en.jsonl": JSONL,
      "t.de-en.tsv": TSV.replace(b"\n", b"\tno\t\n")}, bitext),
    Reader("opus releases", {**trials.files_below(folder / "opus"), **moses}, opus_releases),
    Reader("benchmarks", plain, all_benchmarks),
    Reader("questions", {
      "a.tsv": b"who?\t['he', 'she']\nwhy?\tso\nx\t[1\n",
      "b.jsonl": b'{"question": "who?", "answer": ["he", "she"]}\n'}, questions),
    Reader("documents", {
      "mldoc": b"CCAT\tb'Gut \\xc3\\xa4'\nMCAT\tplain text\n", "cls": CLS, "amazon": amazon},
      documents_of),
    Reader("texts", {"x.txt": SIDES[0], "x.tsv": TSV, "x.jsonl": b'{"text": "a"}\n' * 2}, texts),
    Reader("recipes", {"x.yaml": RECIPE}, lambda folder: recipes.load(folder / "x.yaml").digest),
    Reader("results", {
      "results.json": RESULTS,
      "train/metrics.jsonl": b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": NaN}\n'},
      lambda folder: reading.read_runs([folder])),
    Reader("gin files", {"x.gin": GIN, "other.gin": b"# More.\nWIDTH = 8\nLONG = 1\n"}, gin_files),
    Reader("archives", archive_files(), unpack, tuple(archive_files())),
  ]  # fmt: skip


SMALL = (
  "bitext", "opus releases", "benchmarks", "questions", "documents", "texts", "recipes", "results",
  "gin files", "archives", "SentencePiece model", "tokenizer.json", "vectors", "vectors to resume",
)  # fmt: skip
LARGE = (
  "vmsst.load of a run", "vmsst.load of a safetensors export",
  "vmsst.load of a sentence-transformers export", "import mt5", "import mt5, shards",
  "import bert", "import ems, torch", "import vmsst",
)  # fmt: skip


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
  pytest.importorskip("torch", reason="needs torch to make its files")
  every = [*readers_of_data(tmp_path_factory.mktemp("files")), *model_readers.all_readers()]
  assert [reader.name for reader in every] == [*SMALL, *LARGE]
  return {reader.name: reader for reader in every}


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_malformed_files_are_read_or_refused(name, times, readers, tmp_path):
  trials.check(readers[name], times * (24 if name in SMALL else 8), tmp_path, seed=times)


@pytest.mark.parametrize(
  "value", ["", "'", "[" * 300, "9" * 5000, "@", "%", "@x()", "%x", "\ud800"]
)
def test_any_value_of_a_gin_binding_is_read_or_refused(value, tmp_path):
  trials.lay_out({"x.gin": GIN, "other.gin": b"WIDTH = 8\n"}, tmp_path)
  for binding in (f"WIDTH = {value}", f"t5.T5Config.emb_dim = {value}", f"{value} = 1", value):
    outcome, _ = trials.attempt(lambda folder, text=binding: gin_files(folder, text), tmp_path)
    assert outcome in ("read", "refused"), binding


@pytest.mark.parametrize(
  ("read", "source"),
  [
    (bert.import_bert, "safetensors"),
    (bert.import_bert, "sentence-transformers"),
    (mt5.import_mt5, "safetensors"),
    (vmsst_release.import_vmsst, "safetensors"),
    (vmsst_release.import_vmsst, "sentence-transformers"),
  ],
)
def test_an_export_of_another_model_is_refused_in_one_line(read, source, readers, tmp_path):
  trials.lay_out(readers[f"vmsst.load of a {source} export"].files, tmp_path)
  with pytest.raises(errors.InputError, match=r"\A.*(json|spiece|projection|vmsst\.load).*\Z"):
    read(tmp_path / "m", tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["m"]


def refused(read, place, match=""):
  """Calls a reader that must refuse its file, within limits of time and memory."""
  outcome, message = trials.attempt(read, place)
  assert outcome == "refused"
  assert re.search(match, message)


def unpacked(place):
  archives.unpack(place / "a.tgz", place / "out", str, 12 * 10**9)


def tar_of(kind, size):
  stream, info = io.BytesIO(), tarfile.TarInfo("a.txt")
  info.type, info.size = kind, size
  with tarfile.open(fileobj=stream, mode="w") as archive:
    archive.addfile(info)
  return stream.getvalue()[:512]


def large_window():
  filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 3 << 29, "mode": lzma.MODE_FAST,
              "mf": lzma.MF_HC3, "nice_len": 4}]  # fmt: skip
  return lzma.compress(b"x", filters=filters)


@pytest.mark.parametrize(
  ("content", "read", "match"),
  [
    # 80 MB in 80 kB, one line; 280 MB of lines in 400 kB
    (lambda: gzip.compress(bytes(1 << 22)) * 20, text_files.read_lines, "longer than 64 MB"),
    (lambda: gzip.compress((b"a" * 4095 + b"\n") * (1 << 10)) * 70, text_files.read_lines,
     "compressed more than 500 times"),
    # headers of 3.4 GB in 3.4 MB; a chain of headers
    *((lambda kind=kind: gzip.compress(tar_of(kind, 3 << 30)) + 200 * gzip.compress(bytes(1 << 24)),
       unpacked, "header")
      for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE)),
    (lambda: gzip.compress(tar_of(tarfile.XHDTYPE, 0) * 5000), unpacked, "broken"),
    (large_window, lambda place: archives.unpack(place / "a.tar.xz", place / "out", str, 10**9),
     "broken"),
    (lambda: b"a,b\n" + b"x," * (1 << 27),
     lambda place: tables.join({"x": place / "x.csv"}, {"a": "a"}, place / "out" / "y", quoted=True,
                               header=True), "characters"),
  ],
)  # fmt: skip
def test_files_that_grow(content, read, match, tmp_path):
  for name in ("a.tgz", "a.tar.xz", "x.gz", "x.csv"):
    (tmp_path / name).write_bytes(content())
  is_lines = read is text_files.read_lines
  refused((lambda p: sum(map(len, read(str(p / "x.gz"))))) if is_lines else read, tmp_path, match)


def test_an_opus_archive_that_names_files_outside_and_expands_a_thousand_times(tmp_path):
  (tmp_path / "X" / "v1" / "moses").mkdir(parents=True)
  members = {"../../../X.de-en.de": b"a" * (1 << 26), "/X.de-en.en": b"b\n" * 3,
             "LICENSE": b"x" * (1 << 26)}  # fmt: skip
  (tmp_path / "X" / "v1" / "moses" / "de-en.txt.zip").write_bytes(opus_tree.zipped(members))

  def read(place):
    for release in releases.scan(str(place))[0]:
      assert all(isinstance(item, formats.Fault) for item in releases.read(release))
      assert len(release.license()) <= 1 << 16

  assert trials.attempt(read, tmp_path) == ("read", "")


@pytest.mark.parametrize("changes", [
  {"num_encoder_layers": 10**9}, {"num_encoder_layers": 1 << 70, "scan_layers": True},
  {"emb_dim": 10**9, "mlp_dim": 10**9}, {"vocab_size": 1 << 70},
  {"relpos_buckets": 4 * 10**9, "relpos_max_distance": 1 << 70},
])  # fmt: skip
def test_an_encoder_json_with_huge_sizes(changes, readers, tmp_path):
  files = dict(readers["vmsst.load of a safetensors export"].files)
  record = json.loads(files["m/encoder.json"])
  record["network"]["config"] |= changes
  files["m/encoder.json"] = json.dumps(record).encode()
  trials.lay_out(files, tmp_path)
  refused(lambda place: vmsst.load(place / "m"), tmp_path, "encoder.json|layers")


@pytest.mark.parametrize("size", [10**9, 1 << 70])
@pytest.mark.parametrize(
  ("read", "files", "key"),
  [
    (mt5.import_mt5, model_readers.mt5_files, "num_layers"),
    (bert.import_bert, model_readers.bert_files, "num_hidden_layers"),
  ],
)
def test_a_config_with_huge_sizes(read, files, key, size, tmp_path):
  place = trials.lay_out(files(), tmp_path) / "m" / "config.json"
  config = json.loads(place.read_bytes())
  assert key in config
  place.write_text(json.dumps({**config, key: size}))
  refused(lambda place: read(place / "m", place / "out" / "x"), tmp_path)


def zipped(kind=zipfile.ZIP_STORED, **members):
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, "w", kind) as archive:
    for name, content in members.items():
      archive.writestr(f"x/{name.replace('_pkl', '.pkl')}", content)
  return stream.getvalue()


def test_files_of_torch_that_run_code_or_grow(tmp_path, monkeypatch):
  torch = pytest.importorskip("torch", reason="needs torch to make its files")
  monkeypatch.chdir(tmp_path)

  def saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()

  nested = ("x",)
  for _ in range(22):
    nested = (nested, nested)
  place_21 = torch.zeros((2, 1), dtype=torch.int64)
  code = pickle.dumps({"a": model_readers.Touch()})
  files = {
    "pickle": code,
    "pickle in a zip": zipped(data_pkl=code, version=b"3\n"),
    "compressed": zipped(zipfile.ZIP_DEFLATED, data_pkl=pickle.dumps({}), version=b"3\n"),
    "object": saved({"a": torch.nn.Linear(1, 1)}),
    "one number as terabytes": saved({"a": torch.zeros(1).expand(10**6, 10**6)}),
    "sparse": saved(
      {"a": torch.sparse_coo_tensor(place_21, [1.0], (10**6, 10**6), check_invariants=True)}
    ),
    "on no device": saved({"a": torch.empty(10**6, 10**6, device="meta")}),
    "a name of 2^22 parts": saved({nested: torch.zeros(1)}),
    "no names": saved({1: torch.zeros(1)}),
    "a tar": b"x" * 100 + bytes(1948),
    "numbers": saved({"a": 1.5}),
  }
  trials.lay_out(files, tmp_path)
  for name in files:
    read = lambda place, name=name: [  # noqa: E731
      tensor.read() for tensor in tensors.open_file(place / name).values()
    ]
    assert (name, trials.attempt(read, tmp_path)[0]) == (name, "refused")
  assert not (tmp_path / "ran").exists()


def test_nothing_in_the_folder_of_a_run_is_executed(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  trials.lay_out(model_readers.run_files(), tmp_path)
  assert {"config.gin", "model.py"} <= {path.name for path in (tmp_path / "m").iterdir()}
  assert np.isfinite(vmsst.load(tmp_path / "m").encode(["a"])).all()
  assert not (tmp_path / "ran").exists()
