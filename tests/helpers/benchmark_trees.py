"""A data folder with a few sentences of every benchmark, on this machine or copied to a store."""

import itertools
import json

import line_files

from vmsst import storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism
from vmsst.jobs import outputs

_REVIEW = "<item><rating>{}</rating><summary>{}</summary><text>{}</text></item>"


def write(root):
  """Writes files of all benchmarks, some gzipped, in folders at several depths; returns `root`."""
  for path, rows in {**_pairs(), **_aligned(), **_questions(), **_labeled()}.items():
    lines = (row if isinstance(row, str) else "\t".join(map(str, row)) for row in rows)
    line_files.write_lines(root / path, lines)
  return root


def upload(folder, url):
  """Copies a folder to a store; returns the path of the copy."""
  for path in sorted(folder.rglob("*")):
    if path.is_file():
      outputs.write_bytes(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
  return storage.path(url)


_TED = [*agnosticism.TED_CODES[:-1], "zh-cn"]


def _pairs():
  """Returns the rows or lines of files with rated or aligned pairs, by path."""
  rated = [(n, f"first {n}", f"second {n % 3}") for n in range(4)]
  texts, scores = [row[1:] for row in rated], [row[:1] for row in rated]
  found = {
    "sts/STS12.MSRpar.tsv": rated,
    "sts/2013/STS.input.FNWN.txt": texts,
    "sts/2013/STS.gs.FNWN.txt.gz": scores,
    "xlsts/STS17.track1.ar-ar.tsv.gz": rated,
    "xlsts/STS.input.track5.en-en.txt": texts,
    "xlsts/STS.gs.track5.en-en.txt": scores,
    "stsb/stsb.de.tsv": [("test", "f", 2012, n, n, f"ein {n}", f"zwei {n % 3}") for n in range(4)],
    "ted/all_talks_train.tsv": [(*_TED, "talk_name")]
    + [(*(f"{code} {n}" for code in _TED), "talk") for n in range(4)],
    "tatoeba/.hidden": ["not part of the data"],
  }
  for path in ("mining/de-en", "bucc2018/de-en.training"):
    for code in ("de", "en"):
      found[f"{path}.{code}"] = [(f"{code}{n}", f"s {n}") for n in range(4)]
    found[f"{path}.gold"] = [("de1", "en1"), ("de2", "en2")]
  return found


def _aligned():
  """Returns files of five sentences, which share them up to a word."""
  words = {
    "tatoeba/tatoeba.deu-eng.deu": "ja", "tatoeba/tatoeba.deu-eng.eng.gz": "yes",
    "flores200/devtest/eng_Latn.devtest": "a", "flores200/devtest/deu_Latn.devtest.gz": "ein",
    "flores200/devtest_augmented/eng_Latn_augmented.devtest": "no",
    "ntrex/NTREX-128/newstest2019-src.eng.txt": "a",
    "ntrex/NTREX-128/newstest2019-ref.deu.txt.gz": "ein", "paracrawl/x.de-en.queries": "ein",
    "paracrawl/x.de-en.candidates": "a", "translations/a.eng.txt": "a",
    "translations/a.deu.txt": "ein", "translations/a.eng+deu.txt.gz": "der",
    **{f"wmt2012/newstest2012.{code}": code for code in ("cs", "de", "en", "es", "fr")},
  }  # fmt: skip
  return {path: [f"{word} {n}" for n in range(5)] for path, word in words.items()}


def _questions():
  who = [json.dumps({"question": f"who {n}", "answer": [str(n)]}) for n in range(5)]
  both = [
    {"queries": {"en": f"where {n}", "de": f"wo {n}"}, "answers": {"en": [{"text": str(n)}]}}
    for n in range(3)
  ]
  wide = [(n, "test", f"where {n}", f"wo {n}") for n in range(11)]
  return {
    "nq/NQ-open.dev.jsonl": who[:3],
    "paq/PAQ.1.jsonl.gz": who,
    "paq/PAQ.2.jsonl": [json.dumps({"question": f"where {n}", "answer": str(n)}) for n in (1, 7)],
    "mkqa/mkqa.jsonl.gz": map(json.dumps, both),
    "mkqa/mkqa.wide.tsv": [("id", "split", "en", "de"), *wide],
  }


def _labeled():
  """Returns files of classifiers."""
  rows = [(split, n, n % 2, f"{split} {n}") for split in ("train", "dev", "test") for n in range(4)]
  sib200 = [("split", "index_id", "category", "text"), *rows]
  found = {
    "sib200/eng_Latn.tsv": sib200,
    "sib200/deu_Latn.tsv.gz": sib200,
  }
  for name, part in itertools.product(("english", "german"), ("train.1000", "dev", "test")):
    text = f"This is {name}. It is {part}."
    found[f"mldoc/{name}/{name}.{part}"] = [("CCAT", text), ("ECAT", text)]
  for code, part in itertools.product(("en", "de"), ("train", "test")):
    reviews = "".join(_REVIEW.format(stars, code, part) for stars in (5, 1))
    found[f"cls-acl10-unprocessed/{code}/dvd/{part}.review.gz"] = [f"<items>{reviews}</items>"]
  return found


def run_benchmark(benchmark, encoder, root, **options):
  """Evaluates `encoder` on the files under `root`; returns the results of `benchmark`."""
  return suite.evaluate(encoder, [benchmark], root, **options)["benchmarks"][benchmark.name]
