import collections
import gzip
import json

import line_files
import pytest

from vmsst import errors
from vmsst.evaluation import evaluation_texts
from vmsst.evaluation.benchmarks import BENCHMARKS

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


@pytest.mark.slow
def test_every_real_set_is_there(data_root):
  folders = {
    path.name for path in data_root.iterdir() if path.is_dir() and "bitext" not in path.name
  }
  texts = found(data_root)
  aliases = {"mkqa": "mkqa_small", "nq": "questions"}
  assert {aliases.get(name, name) for name in folders} - set(texts) == {"bible", "vocab"}
  with gzip.open(data_root / "tatoeba" / "tatoeba.tur-eng.tur.gz", "rt", encoding="utf-8") as lines:
    assert {line.rstrip("\n") for line in lines} <= set(texts["tatoeba"])
  with gzip.open(data_root / "sib200" / "eng_Latn.tsv.gz", "rt", encoding="utf-8") as lines:
    rows = [line.rstrip("\n").split("\t") for line in lines][1:]
  by_split = {split: {row[3] for row in rows if row[0] == split} for split in SPLITS}
  assert by_split["dev"] | by_split["test"] <= set(texts["sib200"])
  assert not by_split["train"] & set(texts["sib200"])
