from vmsst.evaluation import evaluation_texts
from vmsst.evaluation.benchmarks import BENCHMARKS
from vmsst.io import text_files
from vmsst.opus import cleaning
from vmsst.opus.decontamination import EvaluationSentences

TEXTS = [
  ("tatoeba", "Hello, world!"),
  ("tatoeba", "Wo ist Tom?"),
  ("ntrex", "hello world"),
  ("ntrex", "今天天气很好。"),
  ("sts", "…?!"),
]


def matching_sets(held_out, text):
  return held_out.sets(cleaning.sentence_key(text))


def test_sets_with_a_sentence(tmp_path):
  held_out = EvaluationSentences.of(TEXTS)
  path = tmp_path / "held_out.npz"
  held_out.save(path)
  for found in (held_out, EvaluationSentences.load(path)):
    assert matching_sets(found, "HELLO WORLD") == ("ntrex", "tatoeba")
    assert matching_sets(found, "«Wo ist Tom»") == ("tatoeba",)
    assert matching_sets(found, "今天 天气很好") == ("ntrex",)
    for other in ("Hello, worlds!", "Wo ist Tim?", "Hello", "", "?", "…?!"):
      assert matching_sets(found, other) == ()
    assert len(found.keys_K) == 3
    assert found.counts == {"ntrex": 2, "sts": 0, "tatoeba": 2}
    assert found.digest == held_out.digest
  # The digest depends on content, not order.
  assert EvaluationSentences.of(TEXTS[::-1] + TEXTS[:1]).digest == held_out.digest
  assert EvaluationSentences.of(TEXTS[:-2]).digest != held_out.digest
  renamed = [(name.replace("ntrex", "xtrex"), text) for name, text in TEXTS]
  assert EvaluationSentences.of(renamed).digest != held_out.digest
  EvaluationSentences.of([]).save(path)
  assert EvaluationSentences.load(path).sets(0) == ()


def test_planted_tatoeba_sentences_are_found_and_training_data_is_not(data_root):
  held_out = EvaluationSentences.of(evaluation_texts.iter_texts([BENCHMARKS["tatoeba"]], data_root))
  german = text_files.read_lines(str(data_root / "tatoeba" / "tatoeba.deu-eng.deu.gz"))
  for text in german:
    for planted in (text, text.upper(), f" »{text.rstrip('.?!')}« …", text.replace(" ", "  ")):
      assert matching_sets(held_out, planted) == ("tatoeba",), planted
    for near in (f"{text} xyzzy", f"xyzzy {text}", text.replace(" ", " xyzzy ", 1) + "x"):
      assert matching_sets(held_out, near) == (), near
  # As the README of the data says, a few sentences match one of another language, such as Malay.
  lines = text_files.read_lines(str(data_root / "bitext_tatoeba" / "ind-eng.tsv.gz"))
  texts = (text for line in lines for text in line.split("\t"))
  assert 0 < sum(bool(matching_sets(held_out, text)) for text in texts) <= 23
