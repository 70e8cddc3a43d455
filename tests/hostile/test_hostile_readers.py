"""Malformed files: each reader reads them or raises one clear error, and changes nothing else."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile

import benchmark_trees
import gin
import model_readers
import opus_tree
import page_fetcher
import pytest
import trials
from trials import Reader

from vmsst import errors
from vmsst.bitext import formats
from vmsst.bitext import readers as bitext_readers
from vmsst.checkpoints.importers import bert, mt5, vmsst_release
from vmsst.downloads import archives, evaluation_sets, fetch, opus, tables
from vmsst.evaluation import benchmarks
from vmsst.evaluation.benchmarks import documents, knowledge_search
from vmsst.evaluation.report import reading
from vmsst.files import line_spans, text_fields
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
JSON_RECIPE = b"""{"name": "mine", "languages": ["de", "en"], "pivots": ["en"],
  "targets": {"de": 8}, "seed": 1,
  "corpora": [{"name": "A", "version": "v1", "cap": 2, "caps": {"de-en": 3}}],
  "validation": {"share": 0.1, "at_most": 5}, "cleaning": {"max_ratio": 4.0}}"""
RESULTS = b"""{"encoder": "mine", "seen": ["de", "en"], "absent": {"sts": "no folder"},
  "benchmarks": {"tatoeba": {"title": "Tatoeba", "summary": {"average": 90.5}, "missing": ["fra"],
    "seconds": {"embed": 1.5}, "results":
      [{"name": "deu", "languages": ["deu", "eng"], "metrics": {"average": 90}}]}}}"""
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
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
URL = "https://example.org/a"
COLUMNS = {
  "corpus": "Europarl", "version": "v8", "preprocessing": "moses", "source": "de", "target": "en",
  "url": "https://example.org/OPUS-Europarl/v8/moses/de-en.txt.zip", "size": 7, "documents": "",
  "alignment_pairs": 100, "id": 1, "latest": "True", "source_tokens": 1, "target_tokens": 2,
}  # fmt: skip


def bitext(folder):
  for pattern in ("m.de-en.*", "x.*", "t.*", "j.*"):
    for found in bitext_readers.find_bitext(str(folder / pattern)):
      assert found.text_bytes >= 0
      for row in bitext_readers.read_rows(found, 2 if pattern == "t.*" else 0):
        "".join(row).encode()


def opus_releases(folder):
  for release in releases.find(str(folder)):
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


def resume(file):
  def read(folder):
    path = folder / "out" / "a"
    with page_fetcher.fetcher_of({"/a": CONTENT}) as fetcher:
      fetcher.fetch(file, path)
    assert [each.name for each in path.parent.iterdir()] == ["a"]
    assert path.stat().st_size == len(CONTENT)
    assert not file.checksum or path.read_bytes() == CONTENT

  return read


def evaluation_set(chosen, pages):
  def read(folder):
    root = folder / "out"
    with page_fetcher.fetcher_of(pages) as fetcher:
      found = evaluation_sets.download(fetcher, chosen, root)
    assert all(path.is_file() and root in path.parents for path in found)
    with page_fetcher.fetcher_of({}) as fetcher:
      assert evaluation_sets.download(fetcher, chosen, root) == found != []

  return read


def unpack(folder):
  (folder / "out").mkdir()
  for path in sorted(folder.glob("a.*")):
    out = folder / "out" / path.name
    found = archives.unpack(path, out, lambda name: name if ".txt" in name else None, 1 << 20)
    assert all(each.is_file() and out in each.parents for each in found)


def join(folder):
  (folder / "out").mkdir()
  for name in ("t.csv", "t.tsv"):
    parts, path = {"train": folder / name, "test": folder / name}, folder / "out" / name
    columns = {"who": "a", "part": tables.PART, "text": "b"}
    tables.join(parts, columns, path, quoted=name == "t.csv", header=True)
    assert all(line.count("\t") == 2 for line in path.read_text("utf-8").split("\n")[:-1])


def check_releases(found):
  for release in found:
    assert len(release.path.parts) == 4
    assert not {"..", "."} & set(release.path.parts)
    fetch.check_address(release.url)
  list(opus.describe(found))


def opus_list(folder):
  path = folder / "list.json"
  content = path.read_bytes() if path.is_file() else b""
  with page_fetcher.fetcher_of({"/opusapi/": content}) as fetcher:
    ask = opus.api(fetcher, "https://example.org/opusapi/")
    check_releases(opus.releases(ask, [("Europarl", None)], opus.anything))


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
    "a.zip": zipped, "a.tar": tar, "a.tgz": gzip.compress(tar, mtime=0), "a.txt.gz":
    gzip.compress(CONTENT, mtime=0), "a.tar.bz2": bz2.compress(tar), "a.tar.xz": lzma.compress(tar),
  }  # fmt: skip


def readers_of_data(folder):
  """Returns readers of texts, benchmarks, settings and downloads."""
  opus_tree.write(folder / "opus", PARTS)
  tree = trials.files_below(benchmark_trees.write(folder / "benchmarks"))
  plain = {k.removesuffix(".gz"): gzip.decompress(x) if ".gz" in k else x for k, x in tree.items()}
  amazon = plain["amazon_reviews/test/dataset_en_test.json"]
  moses = {"News/v1/moses/N.de-en.de": SIDES[0], "News/v1/moses/N.de-en.en": SIDES[1]}
  note = "out/.downloads/x.json"
  file, checked = fetch.File(URL, size=len(CONTENT)), fetch.File(URL, checksum=SHA256)
  part, other = (
    fetch.part_path(pathlib.Path("out/a"), each, '"1"', len(CONTENT)) for each in (file, checked)
  )
  left = (part.name, other.name, "a", ".downloads", "x")
  zipped = archive_files()["a.zip"]
  how = evaluation_sets.Unpack("*.txt", "y", flat=True, most=1 << 20)
  sets = (
    page_fetcher.set_of("x", URL, "x/a"), page_fetcher.set_of("y", f"{URL}.zip", "", how),
  )  # fmt: skip
  quoted = b'a,b,c\n"x, y",1,"two\nlines"\n"say ""so""",2,z\n'
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
    Reader("recipes", {"x.yaml": RECIPE, "y.yaml": JSON_RECIPE},
           lambda folder: [recipes.load(folder / f"{name}.yaml").digest for name in "xy"]),
    Reader("results", {
      "results.json": RESULTS,
      "train/metrics.jsonl": b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": NaN}\n'},
      lambda folder: reading.read_runs([folder])),
    Reader("gin files", {"x.gin": GIN, "other.gin": b"# More.\nWIDTH = 8\nLONG = 1\n"}, gin_files),
    Reader("partial download with a checksum", {str(other): CONTENT[:2000]}, resume(checked), left),
    Reader("partial download", {str(part): CONTENT[:2000]}, resume(file), left),
    Reader("complete download", {"out/a": CONTENT},
           resume(fetch.File(URL, size=len(CONTENT), checksum=SHA256)), left),
    Reader("note of an evaluation set",
           {note: json.dumps({"x/a": len(CONTENT)}).encode(), "out/x/a": CONTENT},
           evaluation_set(sets[0], {"/a": CONTENT}), left),
    Reader("archive of an evaluation set", {"out/.downloads/y/a.zip": zipped},
           evaluation_set(sets[1], {"/a.zip": zipped}), left),
    Reader("archives", archive_files(), unpack, tuple(archive_files())),
    Reader("tables", {"t.csv": quoted, "t.tsv": b"a\tb\tc\nx\ty\tz\n1\t2\t3\n"}, join, ("t.csv",)),
    Reader("list of the OPUS API", {"list.json": json.dumps({"corpora": [COLUMNS]}).encode()},
           opus_list),
  ]  # fmt: skip


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
  pytest.importorskip("torch", reason="needs torch to make its files")
  every = [*readers_of_data(tmp_path_factory.mktemp("files")), *model_readers.all_readers()]
  return {reader.name: reader for reader in every}


SMALL = (
  "bitext", "opus releases", "benchmarks", "questions", "documents", "texts", "recipes", "results",
  "gin files", "partial download with a checksum", "partial download", "complete download",
  "note of an evaluation set", "archive of an evaluation set", "archives", "tables",
  "list of the OPUS API", "SentencePiece model", "tokenizer.json", "vectors",
  "vectors to resume", "vectors of a teacher",
)  # fmt: skip
LARGE = (
  "vmsst.load of a run", "vmsst.load of a safetensors export",
  "vmsst.load of a sentence-transformers export", "import mt5", "import mt5, shards",
  "import bert", "import bert, XLM-R", "import ems, torch",
  "import ems, safetensors", "import vmsst", "export safetensors of a run",
  "export sentence-transformers of an import",
)  # fmt: skip


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_malformed_files_are_read_or_refused(name, readers, tmp_path):
  trials.check(readers[name], 24 if name in SMALL else 8, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_many_more_malformed_files_are_read_or_refused(name, readers, tmp_path):
  trials.check(readers[name], 600 if name in SMALL else 100, tmp_path, seed=1)


def test_all_readers_are_tested(readers):
  assert set(readers) == {*SMALL, *LARGE}


@pytest.mark.parametrize(
  "value", ["", "'", "[" * 300, "9" * 5000, "@", "%", "@x()", "%x", "\ud800"]
)
def test_any_value_of_a_gin_binding_is_read_or_refused(value, tmp_path):
  trials.lay_out({"x.gin": GIN, "other.gin": b"WIDTH = 8\n"}, tmp_path)
  for binding in (f"WIDTH = {value}", f"t5.T5Config.emb_dim = {value}", f"{value} = 1", value):
    outcome, _ = trials.attempt(lambda folder, text=binding: gin_files(folder, text), tmp_path)
    assert outcome in ("read", "refused"), binding


@pytest.mark.parametrize("source", ["safetensors", "sentence-transformers"])
@pytest.mark.parametrize("read", [bert.import_bert, mt5.import_mt5, vmsst_release.import_vmsst])
def test_an_export_of_another_model_is_refused_in_one_line(read, source, readers, tmp_path):
  if (read, source) == (mt5.import_mt5, "sentence-transformers"):
    pytest.skip("it is an mT5")
  trials.lay_out(readers[f"vmsst.load of a {source} export"].files, tmp_path)
  with pytest.raises(errors.InputError, match=r"\A.*(json|spiece|projection|vmsst\.load).*\Z"):
    read(tmp_path / "m", tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["m"]
