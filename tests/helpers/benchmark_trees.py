"""A data folder with a few sentences of every benchmark, on this machine or copied to a store."""

import itertools
import json

import line_files

from vmsst.files import atomic_files, storage

_REVIEW = "<item><rating>{}</rating><summary>{}</summary><text>{}</text></item>"


def write(root):
  """Writes files of all benchmarks, some gzipped, in folders at several depths; returns `root`."""
  for name, write_benchmark in _WRITERS.items():
    write_benchmark(root / name)
  line_files.write_lines(root / "tatoeba" / ".hidden", ["not part of the data"])
  return root


def upload(folder, url):
  """Copies a folder to a store; returns the path of the copy."""
  for path in sorted(folder.rglob("*")):
    if path.is_file():
      atomic_files.write_bytes(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
  return storage.path(url)


def _lines(folder, **texts):
  """Writes five sentences, which all files share up to a word, to files by name and word."""
  for name, word in texts.items():
    line_files.write_lines(folder / name, (f"{word} {n}" for n in range(5)))


def _sts(folder):
  rows = [(n, f"first {n}", f"second {n % 3}") for n in range(4)]
  line_files.write_tsv(folder / "STS12.MSRpar.tsv", rows)
  line_files.write_tsv(folder / "JSTS.ja.valid.tsv", rows)
  line_files.write_tsv(folder / "STS13-en" / "in" / "STS.input.FNWN.txt", [x[1:] for x in rows])
  line_files.write_tsv(folder / "STS13-en" / "in" / "STS.gs.FNWN.txt.gz", [x[:1] for x in rows])


def _xlsts(folder):
  rows = [(n, f"eins {n}", f"zwei {n % 3}") for n in range(4)]
  line_files.write_tsv(folder / "STS17.track1.ar-ar.tsv.gz", rows)
  line_files.write_tsv(folder / "in" / "STS.input.track5.en-en.txt", [x[1:] for x in rows])
  line_files.write_tsv(folder / "gold" / "x" / "STS.gs.track5.en-en.txt", [x[:1] for x in rows])


def _stsb(folder):
  rows = [("test", "f", 2012, n, n, f"ein {n}", f"zwei {n % 3}") for n in range(4)]
  line_files.write_tsv(folder / "stsb.de.tsv", rows)


def _tatoeba(folder):
  _lines(folder, **{"tatoeba.deu-eng.deu": "ja", "tatoeba.deu-eng.eng.gz": "yes"})


def _mining(folder, stem="de-en"):
  for code in ("de", "en"):
    line_files.write_tsv(folder / f"{stem}.{code}", [(f"{code}{n}", f"s {n}") for n in range(4)])
  line_files.write_tsv(folder / f"{stem}.gold", [("de1", "en1"), ("de2", "en2")])


def _bucc(folder):
  _mining(folder, "de-en.training")
  _mining(folder / "de-en", "de-en.test")


def _questions(name, count):
  return [json.dumps({"question": f"{name} {n}", "answer": [str(n)]}) for n in range(count)]


def _nq(folder):
  line_files.write_lines(folder / "NQ-open.dev.jsonl", _questions("who", 3))


def _paq(folder):
  line_files.write_lines(folder / "PAQ.1.jsonl.gz", _questions("who", 5))
  line_files.write_tsv(folder / "PAQ.2.tsv", [("where 1", "1"), ("where 7", "7")])


def _mkqa(folder):
  rows = [
    {"queries": {"en": f"where {n}", "de": f"wo {n}"}, "answers": {"en": [{"text": str(n)}]}}
    for n in range(3)
  ]
  line_files.write_lines(folder / "mkqa.jsonl.gz", map(json.dumps, rows))
  wide = [(n, "test", f"where {n}", f"wo {n}") for n in range(11)]
  line_files.write_tsv(folder / "mkqa.wide.tsv", [("id", "split", "en", "de"), *wide])


def _flores(folder):
  for split in ("dev", "devtest"):
    _lines(folder / split, **{f"eng_Latn.{split}": "a", f"deu_Latn.{split}.gz": "ein"})
  augmented = folder / "devtest_augmented"
  _lines(augmented, **{"eng_Latn_augmented.devtest": "no"})
  types = {f"no {n}": {"src": f"a {n}", "errtype": "Negation"} for n in range(5)}
  line_files.write_text(augmented / "eng_Latn_errtype.devtest.json", json.dumps(types))


def _ntrex(folder):
  names = {"newstest2019-src.eng.txt": "a", "newstest2019-ref.deu.txt.gz": "ein"}
  _lines(folder / "NTREX-128", **names)


def _paracrawl(folder):
  _lines(folder, **{"x.de-en.queries": "ein", "x.de-en.candidates": "a"})


def _mldoc(folder):
  for name, part in itertools.product(("english", "german"), ("train.1000", "dev", "test")):
    rows = [(label, f"This is {name}. It is {part}.") for label in ("CCAT", "ECAT")]
    line_files.write_tsv(folder / name / f"{name}.{part}", rows)


def _cls(folder):
  for name, part in itertools.product(("en", "de"), ("train", "test")):
    reviews = "".join(_REVIEW.format(stars, name, part) for stars in (5, 1))
    line_files.write_text(folder / name / "dvd" / f"{part}.review.gz", f"<items>{reviews}</items>")


def _amazon(folder):
  for code, (part, count) in itertools.product(
    ("en", "de"), {"train": 500, "dev": 1, "test": 1}.items()
  ):
    reviews = [
      json.dumps({"language": code, "stars": stars, "review_body": f"{part} {n}"})
      for stars in (1, 2, 4, 5)
      for n in range(count)
    ]
    line_files.write_lines(folder / part / f"dataset_{code}_{part}.json", reviews)


def _labeled(folder, header, names):
  rows = [(split, n, n % 2, f"{split} {n}") for split in ("train", "dev", "test") for n in range(4)]
  for name in names:
    line_files.write_tsv(folder / name, [header, *rows])


def _sib200(folder):
  header = ("split", "index_id", "category", "text")
  _labeled(folder, header, ("eng_Latn.tsv", "deu_Latn.tsv.gz"))


def _nusax(folder):
  _labeled(folder, ("split", "id", "label", "text"), ("english.tsv", "javanese.tsv.gz"))


def _wmt2012(folder):
  _lines(folder, **{f"newstest2012.{code}": code for code in ("cs", "de", "en", "es", "fr")})


def _translations(folder):
  _lines(folder, **{"a.eng.txt": "a", "a.deu.txt": "ein", "a.eng+deu.txt.gz": "der"})


def _tico19(folder):
  rows = [("sourceString", "targetString"), ("fever", "Fieber")]
  line_files.write_tsv(folder / "en-de" / "all.tsv", rows)


_WRITERS = {
  "sts": _sts,
  "xlsts": _xlsts,
  "stsb": _stsb,
  "tatoeba": _tatoeba,
  "mining": _mining,
  "bucc2018": _bucc,
  "nq": _nq,
  "paq": _paq,
  "mkqa": _mkqa,
  "flores200": _flores,
  "ntrex": _ntrex,
  "paracrawl": _paracrawl,
  "mldoc": _mldoc,
  "cls-acl10-unprocessed": _cls,
  "amazon_reviews": _amazon,
  "sib200": _sib200,
  "nusax": _nusax,
  "wmt2012": _wmt2012,
  "translations": _translations,
  "tico19": _tico19,
}
