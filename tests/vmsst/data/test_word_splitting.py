"""Texts are split into the same words wherever they become ids."""

import functools
import os
import sys
import tempfile
import types

import numpy as np
import pytest
import sentencepiece
import seqio

import vmsst
from vmsst import errors
from vmsst.data import batches, sample, vocabularies, word_splitting
from vmsst.data.word_splitting import split_words
from vmsst.encoder import encoder as encoder_lib
from vmsst.tasks import bitext


def test_rules_equal_sacremoses():
  sacremoses = pytest.importorskip("sacremoses")
  texts = ["M. le Dr. A.B. Ça i.e. là. Etc. a.", "т.е. А.С. Пушкин. да", "No. 5 No. a ... x.y"]
  texts += ["Mr. Smith's dog isn't \"here\".", "<b>R&D</b>\tand  No. Way! ", "«Oui», 8 % près"]
  for language in ("en", "fr", "ru"):
    tokenizer = sacremoses.MosesTokenizer(language)
    expected = [" ".join(tokenizer.tokenize(text, escape=False)) for text in texts]
    assert split_words(texts, language) == expected
  # Other languages have English abbreviations and lone apostrophes.
  assert split_words(["Mr. Kovač's e.g. kuća."], "hr") == ["Mr. Kovač ' s e.g. kuća ."]


def test_jieba_splits_chinese_in_silence_and_leaves_no_cache(tmp_path, monkeypatch, capfd):
  pytest.importorskip("jieba")
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  word_splitting._jieba.cache_clear()
  words = split_words(["我来到北京清华大学。你好,  World!"], "zh")
  assert words == ["我 来到 北京 清华大学 。 你好 , World !"]
  for code in ("yue", "wuu", "zho_Hant"):
    assert split_words(["我来到北京"], code) == ["我 来到 北京"]
  assert capfd.readouterr() == ("", "")
  assert not any(tmp_path.iterdir())


# Imitates Juman++: words of two characters with alternative readings, an @ among the words, and no
# analysis of lines with an X.
JUMANPP = """#!{python}
import sys
for line in sys.stdin.buffer.read().decode().splitlines():
  if "!" in line:
    sys.exit("no model")
  if "X" in line:
    print("# ERROR")
  else:
    for start in range(0, len(line), 2):
      word = line[start : start + 2]
      print(word, word, word, "名詞", 6, "普通名詞", 1, "*", 0, "*", 0, '"代表表記:x/x y:z"')
      print("@", word, "よみ", word, "名詞", 6, "普通名詞", 1, "*", 0, "*", 0, "NIL")
  print("EOS")
"""


@pytest.fixture
def jumanpp(tmp_path, monkeypatch):
  path = tmp_path / "jumanpp"
  path.write_text(JUMANPP.format(python=sys.executable), encoding="utf-8")
  path.chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
  monkeypatch.setenv("PYTHONIOENCODING", "utf-8")


@pytest.mark.usefixtures("jumanpp")
def test_words_of_jumanpp_keep_their_lines(monkeypatch, tmp_path):
  texts = ["日本語だ", "", "あいう\u3000か @@@ @", "# Xい", "え\nお" + "か" * 1001]
  long = " ".join(["え", "おか", *["かか"] * 499, "かか"])
  assert split_words(texts, "ja") == ["日本 語だ", "", "あい う か @@ @ @", "# Xい", long]
  with pytest.raises(errors.InputError, match=r"analyzed 1 of 2 lines and .* code 1: no model"):
    split_words(["日本", "語!"], "ja")
  monkeypatch.setenv("PATH", str(tmp_path / "empty"))
  with pytest.raises(errors.InputError, match=r"jumanpp is not on the PATH.*github\.com/ku-nlp"):
    split_words(["日本語"], "ja")


# By code: a text, and its words in small letters, worked out by hand.
TEXTS = {
  "deu": ("Wie geht's Dr. Müller, z.B. 8.30?", "wie geht ' s dr. müller , z.b. 8.30 ?"),
  "fra": ("L'élève dit « C'est M. Dupont »", "l' élève dit « c' est m. dupont »"),
  "tur": ('İstanbul\'da "5.000" KIŞI var...', 'i\u0307stanbul \' da " 5.000 " kişi var ...'),
  "cmn": ("我来到北京清华大学。你好, World!", "我 来到 北京 清华大学 。 你好 , world !"),
  "kor": ("안녕하세요, 세계!(테스트)", "안녕하세요 , 세계 ! ( 테스트 )"),
  "arb": ("مرحبا، كيف حالك؟", "مرحبا ، كيف حالك ؟"),
}
ENGLISH = ("Mr. Smith's dog ISN'T here & there.", "mr. smith 's dog isn 't here & there .")


@pytest.fixture(scope="module")
def vocabulary():
  pytest.importorskip("sacremoses")
  pytest.importorskip("jieba")
  return vocabularies.SentencePieceVocabulary(
    sample.vocabulary_path(), lowercase=True, pretokenize=True
  )


@pytest.fixture(scope="module")
def expected(vocabulary):
  """Ids of each text by SentencePiece alone, EOS included, and ids of the English text."""
  processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary.path)
  ids = {code: [*processor.encode(words), 1] for code, (_, words) in TEXTS.items()}
  unsplit = vocabularies.SentencePieceVocabulary(vocabulary.path, lowercase=True)
  for code, (text, _) in TEXTS.items():
    assert unsplit.encode([text], 99) != [ids[code]]
  return ids | {"eng": [*processor.encode(ENGLISH[1]), 1]}


def test_tasks_split_words(tmp_path, vocabulary, expected):
  for code, (text, _) in TEXTS.items():
    path = tmp_path / f"a.{code}-eng.tsv"
    path.write_text(f"{text}\t{ENGLISH[0]}\n", encoding="utf-8")
    (task,) = seqio.get_subtasks(seqio.get_mixture_or_task(bitext.files(str(path), vocabulary)))
    (row,) = task.get_dataset(None, shuffle=False).as_numpy_iterator()
    assert row["inputs"].tolist() == expected[code]
    assert row["targets"].tolist() == expected["eng"]


def test_encoders_split_words(vocabulary, expected, monkeypatch):
  network = types.SimpleNamespace(latent_dim=64, config=None)
  encoder = vmsst.Encoder(network, {}, vocabulary, max_length=64)
  # The fake backend returns ids in place of vectors.
  encoder._backend.start = lambda ids_BT, alone: functools.partial(
    np.pad, ids_BT, ((0, 0), (0, 64 - ids_BT.shape[1]))
  )
  expected_ids = np.array([ids + [0] * (64 - len(ids)) for ids in expected.values()])
  texts = [*(text for text, _ in TEXTS.values()), ENGLISH[0]]
  np.testing.assert_array_equal(encoder.encode(texts[:1], language="deu"), expected_ids[:1])
  monkeypatch.setattr(encoder_lib, "_WINDOW", 2)  # languages are cut as sentences are
  vectors = encoder.encode(texts, language=list(expected), batch_size=2)
  np.testing.assert_array_equal(vectors, expected_ids)
  with pytest.raises(errors.InputError, match="pass language="):
    encoder.encode(texts)


def test_negatives_are_split_as_targets(vocabulary):
  columns = {"inputs": ["L'eau"], "targets": ["it's"], "negatives": [["he's", "a."]]}
  columns |= {"input_language": np.array([[83]]), "target_language": np.array([[74]])}
  tokenizer = batches.Tokenizer(vocabulary, max_length=None, keep_all=False)
  rows = tokenizer(columns, dict.fromkeys(columns))
  unsplit = vocabularies.SentencePieceVocabulary(vocabulary.path, lowercase=True)
  ids = [rows["inputs"][0], rows["targets"][0], *rows["negatives"][0]]
  for row, text in zip(ids, ["L' eau", "it 's", "he 's", "a ."], strict=True):
    assert [x for x in row.tolist() if x] == unsplit.encode([text], 99)[0]
