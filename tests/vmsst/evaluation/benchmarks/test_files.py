"""Files of benchmarks that are broken or missing are named in one line."""

import collections
import gzip
import json

import benchmark_trees
import line_files
import memory_store
import pytest

from vmsst import errors
from vmsst.evaluation import benchmarks, evaluation_texts, suite
from vmsst.evaluation.benchmarks import BENCHMARKS, bitext_mining, files, questions, sts, tatoeba
from vmsst.evaluation.data_digests import DataDigests


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
  """The same data on this machine and in a store, which other tests of this module only read."""
  with pytest.MonkeyPatch.context() as patch:
    memory_store.installed(patch)
    root = benchmark_trees.write(tmp_path_factory.mktemp("data"))
    yield root, benchmark_trees.upload(root, "gs://bucket/my[1]/data")


def described(task):
  """Returns the texts of a task, and the documents of one of documents."""
  splits = None
  if isinstance(task, suite.LargeTask):
    splits = getattr(task.measure, "keywords", {}).get("splits")
  return task.name, getattr(task, "sides", ()), list(task.texts()), splits


@pytest.mark.parametrize("name", benchmarks.BENCHMARKS)
def test_a_store_has_the_same_tasks_and_digests(roots, name):
  benchmark = benchmarks.BENCHMARKS[name]
  local, remote = ([described(task) for task in benchmark.read(root)] for root in roots)
  assert local == remote
  assert local
  assert all(texts for _, _, texts, _ in local)
  own, other = (
    DataDigests(root, leave_out=root / "results").identity(
      benchmark.folders, (*benchmark.files, *benchmark.more_files)
    )
    for root in roots
  )
  assert own["digest"] == other["digest"]
  assert (own["name"], other["name"]) == tuple(map(str, roots))


def test_a_store_has_the_same_texts_to_exclude_from_training(roots):
  local, remote = (
    list(evaluation_texts.iter_texts(benchmarks.BENCHMARKS.values(), root)) for root in roots
  )
  assert local == remote
  # "bucc" and "bucc_test" share a folder, as do others; all benchmarks have texts.
  assert {name for name, _ in local} == {*benchmarks.BENCHMARKS, evaluation_texts.TICO19}


@pytest.mark.parametrize("left_out", ["", "xlsts", "xlsts/gold", "xlsts/gold/x", "xlsts/gol"])
def test_results_inside_the_data_count_as_in_a_local_folder(roots, left_out):
  local, remote = (
    DataDigests(root, leave_out=root / left_out).identity(["xlsts"])["digest"] for root in roots
  )
  assert local == remote
  whole = DataDigests(roots[0], leave_out="elsewhere").identity(["xlsts"])["digest"]
  assert (local == whole) == (left_out not in ("xlsts/gold", "xlsts/gold/x"))


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
  ("sts", _sts("2013", "images", "a\tb\n", "1\n"), r"not a test set of 2013 .FNWN, headlines"),
  ("sts", _sts("gold", "MSRpar", "a\tb\n", "1\n"), r"unknown year: move the file"),
  ("sts", _sts("2012", "MSRpar", "a\tb\n", None), r"neither .*STS.gs.MSRpar.txt.*; download"),
  (
    "sts",
    {"sts/STS12.MSRpar.tsv": "1\ta\tb\n"} | _sts("2012", "MSRpar", "a\tb\n", "1\n"),
    r"MSRpar.tsv and .* are both STS12.MSRpar",
  ),
  ("sts", {"sts/x": ""}, r"has no YEAR/STS\.input"),
  ("xlsts", _xlsts("track0.ar-qq", "a\tb\n", "1\n"), r"ar-qq.txt: unknown language code 'qq'"),
  ("stsb", {"stsb/stsb.de.tsv": "valid\tf\t1\t1\t2\ta\tb\n"}, r"de.tsv:1: 'valid' is not train"),
  ("stsb", {"stsb/stsb.de.tsv": "train\tf\t1\t1\t1\ta\tb\n"}, r"no pairs of dev or test"),
  ("stsb", {"stsb/sts-dev.csv": "genre\tf\t1\t1\t1\ta\n"}, r"sts-dev.csv:1: 6 fields"),
  ("stsb", {"stsb/other.tsv": ""}, r"has no stsb.\*.tsv or sts-dev.csv or sts-test.csv; English"),
  (
    "tatoeba",
    {"tatoeba/tatoeba.deu-eng.deu": "", "tatoeba/tatoeba.deu-eng.eng": ""},
    r"eng.deu is empty",
  ),
  ("mining", _mining(german="d1 x\n"), r"de-en.de:1: no TAB"),
  ("mining", _mining(german="d1\tx\nd1\tz\n"), r"de-en.de:2: id 'd1' occurs twice"),
  ("mining", _mining(gold="d1\te1\nd1\te2\n"), r"de-en.gold:2: no sentence has the id 'e2'"),
  ("mining", _mining(gold="d1\te1\nd1\te1\n"), r"de-en.gold:2: repeats the pair of line 1"),
  ("questions", _questions(nq=""), "NQ-open.dev.jsonl: no questions"),
  ("questions", _questions(nq='{"question": "x"}\n'), "jsonl:1: 'answer' is neither"),
  ("questions", _questions(nq='{"question": 3, "answer": "x"}\n'), "jsonl:1: no text under 'ques"),
  ("questions", _questions(nq="[]\n"), "jsonl:1: not a JSON object but list"),
  ("questions", _questions(nq='{"question"\n'), "jsonl:1: not JSON"),
  ("questions", _questions(mkqa='{"queries": {"en": "x"}}\n'), "jsonl:1: no English answers"),
  ("questions", _questions(mkqa=json.dumps(_MKQA) + "\n"), "no questions with an"),
  ("questions", _questions(paq=None), r"paq has no .*facebookresearch/PAQ"),
  ("questions", _questions(nq=None), r"no questions: add nq/NQ-open\.dev\.jsonl or mkqa"),
  (
    "mkqa_small",
    {"mkqa/mkqa.wide.tsv": "id\tsplit\tar\n1\tdev\tone\n", "nq/x.jsonl": _QUESTION},
    r"mkqa\.wide\.tsv:1: expected a header",
  ),
  (
    "ntrex",
    {"ntrex/newstest2019-src.eng.txt": "a\n", "ntrex/newstest2019-ref.eng.txt": "a\n"},
    r"ref.eng.txt and .*src.eng.txt both have language eng",
  ),
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
  (
    "paracrawl",
    {"paracrawl/a.bg-en.queries": "", "paracrawl/a.bg-en.candidates": "1\n"},
    r"queries has 0 lines",
  ),
  ("paracrawl", {"paracrawl/a.bg.queries": "1\n"}, r"'bg' is not a language pair"),
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
  ("nusax", {"nusax/javanese.tsv": _GOOD}, "nusax has no English file"),
  ("nusax", {"nusax/english.tsv": _GOOD.replace("label", "class")}, r"english\.tsv:1: columns"),
  ("nusax", {"nusax/english.tsv": _GOOD + "exam\t4\tx\tt\n"}, r"english\.tsv:5: split 'exam'"),
  ("nusax", {"nusax/english.tsv": _GOOD.replace("valid", "train")}, r"tsv: no sentences for dev"),
  (
    "nusax",
    {"nusax/english.tsv": _GOOD, "nusax/javanese.tsv": _GOOD + "test\t4\tx\tt\n"},
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


SPLITS = ("train", "dev", "test")


def found(root, *names):
  """Returns the texts by set, sorted; of all benchmarks, or of some."""
  texts = collections.defaultdict(set)
  for name, text in evaluation_texts.iter_texts(
    [BENCHMARKS[name] for name in names or BENCHMARKS], root
  ):
    texts[name].add(text)
  return {name: sorted(own) for name, own in texts.items()}


def test_only_scored_texts_come_and_documents_come_by_sentence(tmp_path):
  line_files.write_lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.deu", ["Ja.", "Nein."])
  line_files.write_lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.eng", ["Yes.", "No."])
  for code in ("eng_Latn", "deu_Latn"):
    rows = [f"{split}\t{i}\ttopic\t{code} {split}" for i, split in enumerate(SPLITS)]
    line_files.write_lines(
      tmp_path / "sib200" / f"{code}.tsv", ["split\tindex_id\tcategory\ttext", *rows]
    )
  rows = [f"{split}\tf\t2012\t{i}\t1.0\t{split} a\t{split} b" for i, split in enumerate(SPLITS)]
  line_files.write_lines(tmp_path / "stsb" / "stsb.eng.tsv.gz", rows)
  for name in ("english", "german"):
    for part in ("train.1000", "dev", "test"):
      line = f"CCAT\tThis is {name}. It is {part}!"
      line_files.write_lines(tmp_path / "mldoc" / name / f"{name}.{part}", [line])
  assert found(tmp_path) == {
    "tatoeba": ["Ja.", "Nein.", "No.", "Yes."],
    "sib200": ["deu_Latn dev", "deu_Latn test", "eng_Latn dev", "eng_Latn test"],
    "stsb": ["dev a", "dev b", "test a", "test b"],
    "mldoc": ["It is dev!", "It is test!", "This is english.", "This is german."],
  }
  assert set(found(tmp_path, "tatoeba", "ntrex")) == {"tatoeba"}


def test_streamed_sets_give_what_is_looked_up_and_not_the_knowledge_base(tmp_path):
  line_files.write_lines(tmp_path / "bucc2018" / "de-en.training.de", ["de-1\teins", "de-2\tzwei"])
  line_files.write_lines(tmp_path / "bucc2018" / "de-en.training.en", ["en-1\tone", "en-2\tother"])
  line_files.write_lines(tmp_path / "bucc2018" / "de-en.training.gold", ["de-1\ten-1"])
  line_files.write_lines(tmp_path / "paracrawl" / "x.de-en.queries", ["Frage"])
  line_files.write_lines(tmp_path / "paracrawl" / "x.de-en.candidates", ["question", "distractor"])
  line_files.write_lines(
    tmp_path / "nq" / "NQ-open.dev.jsonl", [json.dumps({"question": "who", "answer": ["me"]})]
  )
  queries = {"queries": {"en": "where", "de": "wo"}, "answers": {"en": [{"text": "here"}]}}
  line_files.write_lines(tmp_path / "mkqa" / "mkqa.jsonl.gz", [json.dumps(queries)])
  expected = {
    "bucc": ["eins", "one", "other", "zwei"],
    "paracrawl": ["Frage", "distractor", "question"],
    "questions": ["where", "who", "wo"],
  }
  assert found(tmp_path) == expected  # Without a knowledge base.
  known = {"question": "known", "answer": ["x"]}
  line_files.write_lines(tmp_path / "paq" / "paq.jsonl", [json.dumps(known)])
  assert found(tmp_path) == expected


def test_tico19_in_either_layout(tmp_path):
  with pytest.raises(errors.InputError, match="has no evaluation set: give the data folder of"):
    found(tmp_path)
  line_files.write_lines(
    tmp_path / "tico19" / "wide.tsv.gz", ["eng\tdeu\tfra", "cough\tHusten\ttoux", "flu\t\tgrippe"]
  )
  header = "sourceLang\ttargetLang\tsourceString\ttargetString\tstringID"
  line_files.write_lines(
    tmp_path / "tico19" / "test" / "test.en-es.tsv", [header, "en\tes\tcold\tfrío\t1"]
  )
  texts = ["Husten", "cold", "cough", "flu", "frío", "grippe", "toux"]
  assert found(tmp_path) == {"tico19": texts}
  line_files.write_lines(tmp_path / "tico19" / "notes.tsv", ["who\tknows"])
  with pytest.raises(errors.InputError, match=r"notes\.tsv: .*'who'"):
    found(tmp_path)
