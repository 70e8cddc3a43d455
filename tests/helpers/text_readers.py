"""Readers of text with small valid files: bitext, OPUS releases, benchmarks, recipes, reports."""

import functools
import gzip
import io
import json
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

from trials import Reader

from vmsst.bitext import formats, readers
from vmsst.evaluation import benchmarks
from vmsst.evaluation.benchmarks import documents, knowledge_search, questions
from vmsst.evaluation.report import reading
from vmsst.files import line_spans, text_fields
from vmsst.tasks.opus import recipes, releases
from vmsst.text import input_texts

_PAIRS = [("Hallo Welt", "hello world"), ("Wie geht’s?", "how are you?"), ("ja <3", "yes & no")]
_TSV = "".join(f"{x}\t{y}\n" for x, y in _PAIRS).encode()
_SIDES = ["".join(f"{text}\n" for text in side).encode() for side in zip(*_PAIRS, strict=True)]
_JSONL = "".join(json.dumps({"translation": {"de": x, "en": y}}) + "\n" for x, y in _PAIRS).encode()
_TMX = (
  '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
  '<tmx version="1.4"><header/><body>\n'
  + "".join(
    f'<tu><tuv xml:lang="de"><seg>{x}</seg></tuv><tuv xml:lang="en"><seg>{y}</seg></tuv></tu>\n'
    for x, y in (("Hallo <ph>x</ph> Welt", "hello world"), ("ja &lt;3", "yes &amp; no"))
  )
  + "</body></tmx>\n"
).encode()
_CLS = (
  '<?xml version="1.0" encoding="utf-8"?>\n<items>\n'
  + "".join(
    f"<item><rating>{stars}.0</rating><summary>Gut</summary><text>Buch &amp; mehr</text></item>\n"
    for stars in (1, 5, 4)
  )
  + "</items>\n"
).encode()
_RECIPE = b"""\
name: mine
description: German and Turkish with English.
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
_JSON_RECIPE = json.dumps(
  {
    "name": "mine",
    "languages": ["de", "en"],
    "pivots": ["en"],
    "targets": {"de": 8},
    "corpora": [{"name": "A", "version": "v1", "cap": 2, "caps": {"de-en": 3}}],
    "validation": {"share": 0.1, "at_most": 5},
    "cleaning": {"max_ratio": 4.0},
    "seed": 1,
  }
).encode()
_RESULTS = json.dumps(
  {
    "encoder": "mine",
    "seen": ["de", "en"],
    "absent": {"sts": "no folder"},
    "benchmarks": {
      "tatoeba": {
        "title": "Tatoeba",
        "summary": {"average": 90.5},
        "missing": ["fra"],
        "seconds": {"embed": 1.5},
        "results": [{"name": "deu", "languages": ["deu", "eng"], "metrics": {"average": 90}}],
      }
    },
  }
).encode()
_METRICS = b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": NaN, "accuracy": 0.5}\n'


def _lines(*rows: object) -> bytes:
  return "".join(f"{row}\n" for row in rows).encode()


def _records(*rows: dict[str, Any]) -> bytes:
  return _lines(*map(json.dumps, rows))


def _zipped(**members: bytes) -> bytes:
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
  return stream.getvalue()


def _gzipped(content: bytes) -> bytes:
  return gzip.compress(content, mtime=0)


def _bitext(pattern: str, folder: pathlib.Path, negatives: int = 0, **options: Any) -> None:
  for bitext in readers.find_bitext(str(folder / pattern), **options):
    assert bitext.text_bytes >= 0
    for row in readers.read_rows(bitext, negatives):
      assert len(row) == 2 + negatives
      "".join(row).encode()


def _opus(folder: pathlib.Path) -> None:
  for release in releases.find(str(folder)):
    for item in releases.read(release):
      assert isinstance(item, (formats.Row, formats.Fault))
    release.license()


def _benchmark(name: str, folder: pathlib.Path) -> None:
  for task in benchmarks.BENCHMARKS[name].read(folder):
    texts = (
      task.texts() if hasattr(task, "texts") else (x for side in task.sides for x in side.texts)
    )
    for text in texts:
      assert isinstance(text, str)


def _bench(name: str, **options: Any) -> Any:
  files = options.pop("files")
  return Reader(f"benchmark {name}", files, functools.partial(_benchmark, name), **options)


def _benchmark_readers() -> Iterator[Reader]:
  scored = _lines("4.5\tA man\tA person", "0\tx\ty", "2.25\tone\ttwo")
  stsb = _lines(
    *(f"{s}\tf\t2012\t{i}\t{i}.5\ta{i}\tb" for i, s in enumerate(("dev", "test", "train")))
  )
  texts = _lines("one", "two sentences", "three")
  yield _bench(
    "sts",
    files={
      "sts/STS12.MSRpar.tsv": scored,
      "sts/2014/STS.input.images.txt": _lines("a\tb", "c\td"),
      "sts/2014/STS.gs.images.txt": _lines("1.0", "2.0"),
    },
  )
  yield _bench(
    "xlsts",
    files={
      "xlsts/STS17.track1.ar-ar.tsv": scored,
      "xlsts/a/STS.input.track6.tr-en.txt": _lines("a\tb", "c\td"),
      "xlsts/a/STS.gs.track6.tr-en.txt": _lines("1.0"),
    },
  )
  yield _bench(
    "stsb",
    files={
      "stsb/stsb.de.tsv": stsb,
      "stsb/sts-dev.csv": _lines("main\tf\t2012\t1\t2.5\ta\tb"),
      "sts/JSTS.ja.valid.tsv": scored,
    },
  )
  yield _bench(
    "tatoeba",
    files={"tatoeba/tatoeba.deu-eng.deu": texts, "tatoeba/tatoeba.deu-eng.eng.gz": _gzipped(texts)},
  )
  corpus = _lines("de-1\tEins", "de-2\tZwei", "de-3\tZwei")
  for name, stem in (("bucc", "bucc2018/de-en.training."), ("mining", "mining/de-en.")):
    files = {f"{stem}de": corpus, f"{stem}en": corpus.replace(b"de-", b"en-")}
    yield _bench(name, files={**files, f"{stem}gold": _lines("de-1\ten-1", "de-2\ten-2")})
  nq = _records({"question": "who?", "answer": ["he", "she"]}, {"question": "why?", "answer": "so"})
  mkqa = _records(
    *(
      {
        "queries": {"en": "who?", "de": "wer?"},
        "answers": {"en": [{"text": "he", "aliases": ["him"]}], "de": [{"text": "er"}]},
      }
      for _ in range(2)
    )
  )
  yield _bench(
    "questions",
    files={
      "nq/NQ-open.dev.jsonl": nq,
      "mkqa/mkqa.jsonl.gz": _gzipped(mkqa),
      "paq/x.tsv": b"a\tb\n",
    },
    hostile=("nq/NQ-open.dev.jsonl", "mkqa/mkqa.jsonl.gz"),
  )
  yield Reader(
    "benchmark questions: mkqa.jsonl",
    {"mkqa.jsonl": mkqa.splitlines(keepends=True)[0]},
    lambda folder: questions.mkqa(folder / "mkqa.jsonl"),
    json=("mkqa.jsonl",),
  )
  yield Reader(
    "benchmark questions: knowledge base",
    {"a.tsv": _lines("who?\t['he', 'she']", "why?\tso", "x\t[1"), "b.jsonl": nq},
    lambda folder: [
      pair
      for span in line_spans.cut([str(folder / "a.tsv"), str(folder / "b.jsonl")], 2).spans
      for pair in knowledge_search.parse(span)
    ],
  )
  yield _bench(
    "mkqa_small",
    files={
      "mkqa/mkqa.wide.tsv": _lines("id\tsplit\ten\tde\tfr", "1\tx\twho\twer\tqui"),
      "nq/x.jsonl": nq,
    },
  )
  types = json.dumps(
    {"one!": {"src": "one", "errtype": "x"}, "two!": {"src": "two", "errtype": "y"}}
  )
  yield _bench(
    "flores",
    files={
      "flores200/devtest/eng_Latn.devtest": texts,
      "flores200/devtest/deu_Latn.devtest": texts,
      "flores200/devtest_augmented/eng_Latn_augmented.devtest": _lines("one!", "two!"),
      "flores200/devtest_augmented/eng_Latn_errtype.devtest.json": types.encode(),
    },
    json=("flores200/devtest_augmented/eng_Latn_errtype.devtest.json",),
  )
  ntrex = {"ntrex/newstest2019-src.eng.txt": texts, "ntrex/newstest2019-ref.deu.txt": texts}
  yield _bench("ntrex", files=ntrex)
  yield _bench("agnosticism", files=ntrex)
  yield _bench(
    "wmt2012", files={f"wmt2012/newstest2012.{x}": texts for x in ("cs", "de", "en", "es", "fr")}
  )
  yield _bench(
    "paracrawl",
    files={"paracrawl/x.bg-en.queries": _lines("one"), "paracrawl/x.bg-en.candidates": texts},
  )
  mldoc = _lines("CCAT\tb'Gut \\xc3\\xa4'", "MCAT\tplain text")
  yield Reader("benchmark mldoc", {"x": mldoc}, lambda folder: documents.mldoc(folder / "x"))
  yield Reader("benchmark cls", {"x": _CLS}, lambda folder: documents.cls(folder / "x"))
  reviews = _records(
    {"language": "en", "stars": "5", "review_body": "good"},
    {"language": "en", "stars": 1, "review_body": "bad"},
  )
  yield Reader(
    "benchmark amazon",
    {"x": reviews, "y": reviews.splitlines(keepends=True)[0]},
    lambda folder: [documents.amazon(folder / name, "en") for name in ("x", "y")],
    json=("y",),
  )
  topics = [f"{split}\t{i}\tsport\ttext {i}" for i, split in enumerate(("train", "dev", "test"))]
  sib = _lines("split\tindex_id\tcategory\ttext", *topics)
  yield _bench(
    "sib200", files={"sib200/eng_Latn.tsv": sib, "sib200/deu_Latn.tsv.gz": _gzipped(sib)}
  )
  nusax = sib.replace(b"index_id\tcategory", b"id\tlabel")
  yield _bench("nusax", files={"nusax/english.tsv": nusax, "nusax/balinese.tsv": nusax})
  yield _bench(
    "translations",
    files={
      "translations/x.eng.txt": texts,
      "translations/x.eng+deu.txt": texts,
      "translations/x.deu.a.txt": texts,
    },
  )


READERS: tuple[Reader, ...] = (
  Reader(
    "bitext moses",
    {"x.de-en.de": _SIDES[0], "x.de-en.en": _SIDES[1]},
    functools.partial(_bitext, "x.de-en.*"),
  ),
  Reader("bitext tsv", {"x.de-en.tsv": _TSV}, functools.partial(_bitext, "*.tsv")),
  Reader(
    "bitext tsv.gz", {"x.de-en.tsv.gz": _gzipped(_TSV)}, functools.partial(_bitext, "*.tsv.gz")
  ),
  Reader(
    "bitext tsv with negatives",
    {"x.de-en.tsv": _TSV.replace(b"\n", b"\tno\t\n")},
    functools.partial(_bitext, "*.tsv", negatives=2),
  ),
  Reader("bitext tmx", {"x.de-en.tmx": _TMX}, functools.partial(_bitext, "*.tmx")),
  Reader("bitext tmx.gz", {"x.de-en.tmx.gz": _gzipped(_TMX)}, functools.partial(_bitext, "*.gz")),
  Reader("bitext jsonl", {"x.de-en.jsonl": _JSONL}, functools.partial(_bitext, "*.jsonl")),
  Reader(
    "bitext jsonl, one object",
    {"x.de-en.jsonl": json.dumps({"a": "x", "b": "y", "c": [1, {"d": None}]}).encode()},
    functools.partial(_bitext, "*.jsonl", fields=("a", "b")),
    json=("x.de-en.jsonl",),
  ),
  Reader(
    "texts of vmsst embed",
    {"x.txt": _SIDES[0], "x.tsv": _TSV, "x.jsonl": _records({"text": "a"}, {"text": "b"})},
    lambda folder: [
      input_texts.as_list(folder / "x.txt"),
      *(
        list(text_fields.read_texts(str(folder / f"x.{kind}"), key))
        for kind, key in (("tsv", "2"), ("jsonl", "text"))
      ),
    ],
  ),
  Reader(
    "opus releases",
    {
      "Europarl/v8/moses/de-en.txt.zip": _zipped(
        **{"X.de-en.de": _SIDES[0], "X.de-en.en": _SIDES[1], "LICENSE": b"free", "README": b"x"}
      ),
      "News/v1/moses/N.de-en.de": _SIDES[0],
      "News/v1/moses/N.de-en.en": _SIDES[1],
      "UNPC/v1/tmx/de-en.tmx.gz": _gzipped(_TMX),
      "Tatoeba/v1/tsv/de-en.tsv.gz": _gzipped(_TSV),
      "OPUS-Wiki/v1/tmx/de-en.tmx": _TMX,
      "Flat_v1_tsv_de-en.tsv": _TSV,
    },
    _opus,
  ),
  Reader("recipe", {"x.yaml": _RECIPE}, lambda folder: recipes.load(folder / "x.yaml").digest),
  Reader(
    "recipe as JSON",
    {"x.yaml": _JSON_RECIPE},
    lambda folder: recipes.load(folder / "x.yaml").digest,
    json=("x.yaml",),
  ),
  Reader(
    "results.json and metrics.jsonl",
    {"results.json": _RESULTS, "train/metrics.jsonl": _METRICS},
    lambda folder: reading.read_runs([folder]),
    json=("results.json",),
  ),
  Reader(
    "metrics.jsonl",
    {"train/metrics.jsonl": _METRICS.splitlines(keepends=True)[0]},
    lambda folder: reading.read_runs([folder]),
    json=("train/metrics.jsonl",),
  ),
  *_benchmark_readers(),
)
