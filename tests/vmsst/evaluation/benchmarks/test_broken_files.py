"""Files of benchmarks that are broken or missing are named in one line."""

import gzip
import json

import line_files
import pytest

from vmsst import errors
from vmsst.evaluation import benchmarks, suite
from vmsst.evaluation.benchmarks import bitext_mining, files, questions, sts, tatoeba

_GOOD = "split\tid\tlabel\ttext\ntrain\t1\tx\tt\nvalid\t2\tx\tt\ntest\t3\tx\tt\n"
_MLDOC = {f"english/english.{part}": "CCAT\ttext\n" for part in ("train.1000", "dev", "test")}
_MKQA = {"queries": {"en": "x"}, "answers": {"en": []}}
_DE, _EN, _GOLD = "d1\tx\n", "e1\ty\n", "d1\te1\n"
_QUESTION = '{"question": "x", "answer": "y"}\n'


def _mining(german=_DE, english=_EN, gold=_GOLD):
  return {"mining/de-en.de": german, "mining/de-en.en": english, "mining/de-en.gold": gold}


def _sts(year, name, pairs, scores):
  where = f"sts/{year}/STS"
  return {f"{where}.input.{name}.txt": pairs} | (
    {} if scores is None else {f"{where}.gs.{name}.txt": scores}
  )


def _xlsts(track, pairs, scores):
  return {f"xlsts/STS.input.{track}.txt": pairs} | (
    {} if scores is None else {f"xlsts/x/STS.gs.{track}.txt": scores}
  )


def _reviews(content):
  return {
    f"cls-acl10-unprocessed/{code}/dvd/{part}.review": content
    for code in ("en", "de")
    for part in ("train", "test")
  }


def _review(rating):
  return f"<items>\n<item><rating>{rating}</rating></item></items>"


def _questions(**changed):
  paths = {"nq": "nq/NQ-open.dev.jsonl", "paq": "paq/b.tsv", "mkqa": "mkqa/mkqa.jsonl"}
  whole = {"nq": _QUESTION, "paq": "x\ty\n"} | changed
  return {paths[name]: content for name, content in whole.items() if content is not None}


# Benchmark, content of its files, and the message.
_CASES = [
  ("sts", _sts("2012", "MSRpar", "a\tb\nc\td\n", "1\n\n"), r"gs.MSRpar.txt:2: '' is not a score"),
  ("sts", _sts("2015", "belief", "a\tb\n", "\n"), r"belief.txt: no pair with a score"),
  ("sts", _sts("2014", "images", "a\tb\nc\td\n", "1\n"), r"images.txt has 2 lines and .* has 1"),
  ("sts", _sts("2014", "images", "a\tb\nc d\n", "1\n2\n"), r"images.txt:2: 1 field"),
  ("sts", _sts("2016", "headlines", "a\tb\n", "nan\n"), r"lines.txt:1: 'nan' is not a score"),
  ("sts", _sts("2013", "images", "a\tb\n", "1\n"), r"not a test set of 2013 .FNWN, headlines"),
  ("sts", _sts("gold", "MSRpar", "a\tb\n", "1\n"), r"unknown year: move the file"),
  ("sts", _sts("2012", "MSRpar", "a\tb\n", None), r"neither .*STS.gs.MSRpar.txt.*; download"),
  (
    "sts",
    {"sts/STS12.MSRpar.tsv": "1\ta\tb\n"} | _sts("2012", "MSRpar", "a\tb\n", "1\n"),
    r"MSRpar.tsv and .* are both STS12.MSRpar",
  ),
  ("sts", {"sts/x": ""}, r"has no YEAR/STS\.input"),
  ("xlsts", _xlsts("track1.ar-ar", "a\tb\n", "1\n2\n"), r"track1.ar-ar.txt has 1 lines and .* 2"),
  ("xlsts", _xlsts("track0.ar-ar", "a\tb\n", None), r"neither .*STS.gs.track0.ar-ar.txt"),
  ("xlsts", _xlsts("track0.ar-qq", "a\tb\n", "1\n"), r"ar-qq.txt: unknown language code 'qq'"),
  ("stsb", {"stsb/stsb.de.tsv": "valid\tf\t1\t1\t2\ta\tb\n"}, r"de.tsv:1: 'valid' is not train"),
  ("stsb", {"stsb/stsb.de.tsv": "dev\tf\t1\t1\t\ta\tb\n"}, r"stsb.de.tsv:1: '' is not a score"),
  ("stsb", {"stsb/stsb.de.tsv": "train\tf\t1\t1\t1\ta\tb\n"}, r"no pairs of dev or test"),
  ("stsb", {"stsb/stsb.qq.tsv": "dev\tf\t1\t1\t1\ta\tb\n"}, r"unknown language code 'qq'"),
  ("stsb", {"stsb/sts-dev.csv": "genre\tf\t1\t1\t1\ta\n"}, r"sts-dev.csv:1: 6 fields"),
  ("stsb", {"stsb/other.tsv": ""}, r"has no stsb.\*.tsv or sts-dev.csv or sts-test.csv; English"),
  (
    "tatoeba",
    {"tatoeba/tatoeba.deu-eng.deu": "a\nb\n", "tatoeba/tatoeba.deu-eng.eng": "a\n"},
    r"eng.deu has 2 lines and .*eng.eng has 1",
  ),
  (
    "tatoeba",
    {"tatoeba/tatoeba.deu-eng.deu": "", "tatoeba/tatoeba.deu-eng.eng": ""},
    r"eng.deu is empty",
  ),
  ("tatoeba", {"tatoeba/tatoeba.qqq-eng.eng": "a\n"}, r"eng.eng: unknown language code 'qqq'"),
  ("tatoeba", {"tatoeba/tatoeba.deu-eng.eng": "a\n"}, r"neither .*eng.deu .* copy data/tatoeba/v1"),
  ("mining", _mining(german="d1 x\n"), r"de-en.de:1: no TAB"),
  ("mining", _mining(german="d1\tx\nd1\tz\n"), r"de-en.de:2: id 'd1' occurs twice"),
  ("mining", _mining(gold="d1\te1\nd1\te2\n"), r"de-en.gold:2: no sentence has the id 'e2'"),
  ("mining", _mining(gold="d1\te1\nd1\te1\n"), r"de-en.gold:2: repeats the pair of line 1"),
  ("mining", _mining(gold="d1 e1\n"), r"de-en.gold:1: 1 fields"),
  ("mining", _mining(gold=""), r"de-en.gold is empty"),
  ("mining", _mining(german=""), r"de-en.de is empty"),
  ("mining", {"mining/de-en.gold": _GOLD}, r"neither .*de-en.de nor de-en.de.gz exists"),
  ("questions", _questions(nq=""), "NQ-open.dev.jsonl: no questions"),
  ("questions", _questions(nq='{"question": "x"}\n'), "jsonl:1: 'answer' is neither"),
  ("questions", _questions(nq='{"question": 3, "answer": "x"}\n'), "jsonl:1: no text under 'ques"),
  ("questions", _questions(nq="[]\n"), "jsonl:1: not a JSON object but list"),
  ("questions", _questions(nq='{"question"\n'), "jsonl:1: not JSON"),
  ("questions", _questions(mkqa='{"queries": {"en": "x"}}\n'), "jsonl:1: no English answers"),
  ("questions", _questions(mkqa=json.dumps(_MKQA) + "\n"), "no questions with an"),
  (
    "questions",
    _questions(mkqa=json.dumps(_MKQA | {"queries": {"qq": "x"}}) + "\n"),
    "mkqa.jsonl: unknown language code 'qq'",
  ),
  ("questions", _questions(paq=None), r"paq has no .*facebookresearch/PAQ"),
  ("questions", _questions(nq=None), r"no questions: add nq/NQ-open\.dev\.jsonl or mkqa"),
  ("questions", {"nq/x": ""}, r"nq has no .*google-research-datasets"),
  (
    "mkqa_small",
    {"mkqa/mkqa.wide.tsv": "id\tsplit\tar\n1\tdev\tone\n", "nq/x.jsonl": _QUESTION},
    r"mkqa\.wide\.tsv:1: expected a header",
  ),
  (
    "mkqa_small",
    {"mkqa/mkqa.wide.tsv": "id\tsplit\ten\tqq\n1\tdev\ta\tb\n", "nq/x.jsonl": _QUESTION},
    "unknown language code 'qq'",
  ),
  ("flores", {"flores200/devtest/x": ""}, r"has no \*\.devtest; download https://tinyurl"),
  ("ntrex", {"ntrex/ntrex.deu.txt": "a\nb\n", "ntrex/ntrex.fra.txt": "a\n"}, r"deu.txt has 2 li"),
  ("ntrex", {"ntrex/ntrex.deu.txt": "a\n", "ntrex/ntrex.qqq.txt": "a\n"}, r"language code 'qqq'"),
  (
    "ntrex",
    {"ntrex/newstest2019-src.eng.txt": "a\n", "ntrex/newstest2019-ref.eng.txt": "a\n"},
    r"ref.eng.txt and .*src.eng.txt both have language eng",
  ),
  ("agnosticism", {"ntrex/x": ""}, "ntrex has no .*MicrosoftTranslator"),
  ("agnosticism", {"ntrex/ntrex.eng.txt": "a\n"}, r"eng\.txt: add another file of the same texts"),
  (
    "agnosticism",
    {"ntrex/ntrex.eng.txt": "a\n", "ntrex/newstest2019-src.eng.txt": "a\n"},
    r"newstest2019-src\.eng\.txt and .*ntrex\.eng\.txt are the same version",
  ),
  (
    "agnosticism",
    {"ntrex/ntrex.eng.txt": "\n", "ntrex/ntrex.deu.txt": "a\n"},
    "every line has a text that is empty",
  ),
  (
    "translations",
    {"translations/talk.eng.txt": "a\n", "translations/talk.eng+deu+zho.txt": "b\n"},
    r"talk\.eng\+deu\+zho\.txt: its source eng\+deu is missing",
  ),
  ("translations", {"translations/talk.eng+qqq.txt": "b\n"}, r"qqq\.txt: unknown language code"),
  ("paracrawl", {"paracrawl/a.bg-en.queries": "1\n"}, r"neither .*candidates nor .*; create"),
  (
    "paracrawl",
    {"paracrawl/a.bg-en.queries": "1\n2\n", "paracrawl/a.bg-en.candidates": "1\n"},
    r"queries has 2 lines and .*candidates has 1",
  ),
  (
    "paracrawl",
    {"paracrawl/a.bg-en.queries": "", "paracrawl/a.bg-en.candidates": "1\n"},
    r"queries has 0 lines",
  ),
  ("paracrawl", {"paracrawl/a.bg.queries": "1\n"}, r"'bg' is not a language pair"),
  ("mldoc", {"mldoc/english/english.train.1000": "CCAT\tx\n"}, r"neither .*english\.dev nor"),
  ("mldoc", {f"mldoc/{x}": y for x, y in _MLDOC.items()}, "mldoc needs English and another"),
  ("mldoc", {"mldoc/english/english.train.1000": "XCAT\tx\n"}, r"1000:1: no label \(CCAT"),
  (
    "mldoc",
    {"mldoc/english/english.train.1000": "CCAT\tb'\\xff'\n"},
    r"1000:1: not a valid Python",
  ),
  ("cls", _reviews(_review("3.0")), r"train\.review: review 1 has 3 stars"),
  ("cls", _reviews(_review("")), r"train\.review: review 1: a rating of '', not 1 to 5 stars"),
  ("cls", _reviews("<items><item></items>"), r"train\.review:1: not well-formed XML"),
  ("cls", _reviews("<items></items>"), r"train\.review: contains no document"),
  ("cls", _reviews('<!DOCTYPE x [<!ENTITY a "b">]>\n<items>&a;</items>'), "a document type def"),
  ("cls", _reviews('<!DOCTYPE x SYSTEM "file:///x">\n<items>&c;</items>'), "a document type def"),
  ("cls", {"cls-acl10-unprocessed/en/dvd/x": ""}, r"neither .*train\.review nor train\.review\.gz"),
  ("nusax", {"nusax/x": ""}, r"nusax has no \*\.tsv"),
  ("nusax", {"nusax/javanese.tsv": _GOOD}, "nusax has no English file"),
  ("nusax", {"nusax/klingon.tsv": _GOOD}, r"klingon\.tsv: unknown language code 'klingon'"),
  ("nusax", {"nusax/english.tsv": _GOOD.replace("label", "class")}, r"english\.tsv:1: columns"),
  ("nusax", {"nusax/english.tsv": _GOOD + "test\t4\tx\n"}, r"english\.tsv:5: 3 fields"),
  ("nusax", {"nusax/english.tsv": _GOOD + "exam\t4\tx\tt\n"}, r"english\.tsv:5: split 'exam'"),
  ("nusax", {"nusax/english.tsv": _GOOD.replace("valid", "train")}, r"tsv: no sentences for dev"),
  (
    "nusax",
    {"nusax/english.tsv": _GOOD, "nusax/javanese.tsv": _GOOD + "test\t4\tx\tt\n"},
    "the lines of jav and eng",
  ),
  (
    "nusax",
    {"nusax/english.tsv": _GOOD, "nusax/javanese.tsv": _GOOD.replace("\tx", "\ty")},
    "the lines of jav and eng",
  ),
]


def test_each_fault_is_one_line_with_its_file(tmp_path):
  for number, (name, content, message) in enumerate(_CASES):
    root = tmp_path / str(number)
    for path, text in content.items():
      line_files.write_text(root / path, text)
    with pytest.raises(errors.InputError, match=message) as caught:
      benchmarks.BENCHMARKS[name].read(root)
    assert "\n" not in str(caught.value), name


def test_an_absent_benchmark_names_its_folders_and_files(tmp_path):
  for benchmark in benchmarks.BENCHMARKS.values():
    assert benchmark.folders[0] in (suite.absence(benchmark, tmp_path) or "")
  for name in ("mkqa", "nq"):
    (tmp_path / name).mkdir()
  reason = suite.absence(benchmarks.BENCHMARKS["mkqa_small"], tmp_path)
  assert reason.startswith(f"no file {tmp_path / 'mkqa' / 'mkqa.wide.tsv'} (")


def test_files_are_found_plain_or_gzipped_but_not_both(tmp_path):
  line_files.write_lines(tmp_path / "b.txt", ["eins", "zwei"])
  (tmp_path / "a.txt.gz").write_bytes(gzip.compress("ä\nö\n".encode()))
  found = files.files_in(tmp_path, "*.txt")
  assert [files.plain_name(path) for path in found] == ["a.txt", "b.txt"]
  assert files.aligned(*found) == [["ä", "ö"], ["eins", "zwei"]]
  assert files.plain_or_gzipped(tmp_path / "a.txt") == tmp_path / "a.txt.gz"
  line_files.write_lines(tmp_path / "a.txt", ["x"])
  with pytest.raises(errors.InputError, match=r"a\.txt and .*a\.txt\.gz both exist"):
    files.files_in(tmp_path, "*.txt")


def test_real_files_have_their_sizes(data_root):
  def read(name):
    return benchmarks.BENCHMARKS[name].read(data_root)

  assert [task.name for task in read("tatoeba")] == list(tatoeba.LANGUAGES)
  assert sum(len(task.sides[0].texts) for task in read("tatoeba")) == 88877
  assert {len(side.texts) for task in read("xlsts") for side in task.sides} == {250}
  assert len(read("xlsts")) == 7
  results = [
    suite.Result(pairs.name, ("en",), {}) for task in read("sts") for pairs in task.score.args[1]
  ]
  left_out = {"STS12.MSRpar", "STS12.MSRvid", "STS13.SMT", "STS14.deft-forum", "STS14.deft-news"}
  left_out |= {"STS15.belief", *(f"STS16.{name}" for name in sts.SETS["2016"])}
  assert set(sts.BENCHMARK.missing(results)) == left_out
  assert [task.name for task in read("mining")] == list(bitext_mining.PAIRS)
  assert [len(side.texts) for side in read("mining")[3].sides] == [4988, 5500]
  (task,) = read("mkqa_small")
  assert [len(side.texts) for side in task.sides] == [5758 + 3610 + 1800, *[5758] * 11]
  assert len(questions.nq_open(data_root / "nq" / "nq-open.dev.jsonl.gz").texts) == 3610
  (task,) = read("ntrex")
  assert [len(side.texts) for side in task.sides] == [1997] * 37
  (task,) = read("agnosticism")
  assert len(task.sides) == 37
  for side in task.sides:
    assert len(side.texts) == len(set(side.texts)) == len(task.sides[0].texts) > 1700
    assert max(len(text.split()) for text in side.texts) <= 50
