import os
import sys
import tempfile

import pytest

from vmsst import errors
from vmsst.data import word_splitting
from vmsst.data.word_splitting import split_words
from vmsst.evaluation.benchmarks import documents


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ('J. S. Bach came. "Why?" he asked. So (it is.) At 3.5 km. it ended... Ok… no', 5),
    ("One!!! Two?! Three", 3),
    ("今天好。明天呢？「好！」她说。", 4),
    ("هل هذا؟ نعم. لا۔ہاں", 4),
    ("नमस्ते। कैसे", 2),
    ("first line\n\n second line \n", 2),
    ("Straße. é una frase", 1),
    ("  spare \t space. Here  ", 2),
    ("", 1),
    (" \n ", 1),
  ],
)
def test_documents_are_split_into_sentences(text, expected):
  found = documents.sentences(text)
  assert len(found) == expected, found
  assert "".join("".join(found).split()) == "".join(text.split())  # nothing is lost
  assert all(x == x.strip() for x in found)
  assert expected == 1 or all(found)


def test_what_looks_like_many_ends_is_split_in_linear_time():
  assert len(documents.sentences("!" * 100_000 + " " * 100_000)) == 1


def test_rules_are_those_of_sacremoses():
  sacremoses = pytest.importorskip("sacremoses")
  texts = ["M. le Dr. A.B. Ça i.e. là. Etc. a. Ab.", "т.е. А.С. Пушкин. да", "No. 5 No. a ... x.y"]
  texts += [
    "Mr. Smith's dog isn't \"here\".",
    "<b>R&D</b>\tand  No. Way! ",
    "«Oui», 8 % près; non?",
  ]
  for language in ("en", "fr", "ru", "fi", "sw"):
    tokenizer = sacremoses.MosesTokenizer(language)
    expected = [" ".join(tokenizer.tokenize(text, escape=False)) for text in texts]
    assert split_words(texts, language) == expected
  # Other languages have English abbreviations and lone apostrophes.
  assert split_words(["Mr. Kovač's e.g. kuća."], "hr") == ["Mr. Kovač ' s e.g. kuća ."]
  assert split_words(["Mr. X's"], "Esperanto") == ["Mr. X ' s"]


def test_texts_and_languages_that_cannot_be_used_are_refused():
  with pytest.raises(errors.InputError, match="pass language="):
    split_words(["a"], None)
  with pytest.raises(errors.InputError, match="xx"):
    split_words(["a"], ["xx"])
  with pytest.raises(ValueError, match="2 languages for 1 texts"):
    split_words(["a"], ["en", "de"])
  assert split_words([], []) == []
  for texts in ("Mr. Smith", {"Mr. Smith": 1}, {"Mr. Smith"}):
    with pytest.raises(TypeError, match="list of"):
      split_words(texts, "en")


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


@pytest.mark.parametrize(("package", "language"), [("sacremoses", "gl"), ("jieba", "zh")])
def test_a_missing_package_is_named(monkeypatch, package, language):
  monkeypatch.setitem(sys.modules, package, None)
  word_splitting._jieba.cache_clear()
  word_splitting._moses.cache_clear()
  with pytest.raises(errors.InputError, match=rf"{package}, which is not installed: pip install"):
    split_words(["a"], language)


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
def test_words_of_jumanpp_keep_their_lines():
  texts = ["日本語だ", "", "あいう\u3000か @@@ @", "# Xい", "え\nお" + "か" * 1001]
  assert split_words(texts, "ja") == [
    "日本 語だ",
    "",
    "あい う か @@ @ @",
    "# Xい",
    " ".join(["え", "おか", *["かか"] * 499, "かか"]),
  ]
  assert split_words([" ", ""], "jpn") == ["", ""]


@pytest.mark.usefixtures("jumanpp")
def test_a_jumanpp_that_fails_is_quoted_and_a_missing_one_is_named(monkeypatch, tmp_path):
  with pytest.raises(errors.InputError, match=r"analyzed 1 of 2 lines and .* code 1: no model"):
    split_words(["日本", "語!"], "ja")
  monkeypatch.setenv("PATH", str(tmp_path / "empty"))
  with pytest.raises(errors.InputError, match=r"jumanpp is not on the PATH.*github\.com/ku-nlp"):
    split_words(["日本語"], "ja")
