import gzip
import hashlib
import unicodedata

import pytest

from vmsst.evaluation.benchmarks import BENCHMARKS, held_out_texts
from vmsst.io import text_files
from vmsst.languages import LANGUAGES, UNDETERMINED, language
from vmsst.opus import cleaning
from vmsst.opus.cleaning import Cleaner, Cleaning, EvaluationSentences

PERSIAN = "می\u200cخواهم"  # Written apart, in one word.

MALAYALAM = "അവന്\u200d"  # The joiner makes the last letter a chillu.

FAMILY = "\U0001f469\U0001f3fd\u200d\U0001f467"


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("  a\t b\r\n\u00a0\u3000c\u2028d\x85 ", "a b c d"),
    ("\ufeffa\u200bb\u00ad\u202ec\u2069\x00\x07d", "abcd"), ("u\u0308ber", "über"),
    ("u\u00ad\u0308ber", "über"), ("e\u200cf \u200d", "ef"), (PERSIAN, PERSIAN),
    (MALAYALAM, MALAYALAM), (f"ja {FAMILY}!", f"ja {FAMILY}!"), ("سورة \u06dd٣", "سورة \u06dd٣"),
    ("\u200b \ufeff", ""), ("ﬁ ① ｱ", "ﬁ ① ｱ"), ("\ud800x", "x"),
  ],
)  # fmt: skip
def test_normalize(text, expected):
  assert cleaning.normalize(text) == expected


def test_normal_forms():
  # Normalizing a second time changes nothing, for many pairs of neighboring characters.
  odd = [chr(code) for code in range(0x3000)] + ["\u200c", "\u200d", "\ufeff", "\ufdfa", "\ufe0f"]
  for shift in (1, 7, 1000):
    text = "".join(a + b for a, b in zip(odd, odd[shift:] + odd[:shift], strict=True))
    once = cleaning.normalize(text)
    assert cleaning.normalize(once) == once
    assert not {unicodedata.category(x) for x in once} & {"Cc", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
  ("source", "target", "reason"),
  [
    ("Hallo\tWelt ", "hello world", None), (" \u200b", "hello", "empty"), ("Hallo", "", "empty"),
    ("Gr\ufffdn", "green", "encoding"), ("a" * 1001, "b", "too_long"),
    ("Hello, World!", "hello world", "copy"), ("10:30 ...", "- 10.30", "copy"),
    ("Nein.", "Certainly not, sir.", None), ("Nein, mein Freund.", "No " * 40, "ratio"),
    ("Привет, мир", "hello world", "script"),
    ("Das Wort «привет» ist russisch", "The word «привет» is Russian", None),
    ("12345", "one two", "script"), ("!?", "?!.", "script"),
  ],
)  # fmt: skip
def test_reasons(source, target, reason):
  result = Cleaner(Cleaning(), language("de"), language("en"))(source, target)
  expected = reason or (cleaning.normalize(source), cleaning.normalize(target))
  assert result == expected
  assert reason is None or reason in cleaning.REASONS


def test_texts_in_undetermined_languages_have_letters_of_any_script():
  clean = Cleaner(Cleaning(), UNDETERMINED, UNDETERMINED)
  assert clean("Привет, мир", "hello world") == ("Привет, мир", "hello world")
  assert clean("12345", "one two") == "script"
  chinese, english = (
    "那天这个国家北方的天气非常好。",
    "The weather in the north of the country was good then.",
  )
  assert clean(chinese, english) == (chinese, english)  # 15 characters and 54
  assert clean(chinese[:6], 2 * english) == "ratio"


def test_scripts_and_lengths_suit_the_language():
  english = "The weather in the north of the country was very good on that day."
  for code, text in {
    "zh": "那天这个国家北方的天气非常好。",
    "ja": "その日、国の北部は天気がとても良かった。",
    "ko": "그날 나라 북부의 날씨는 아주 좋았다.",
    "sr": "Vreme na severu zemlje bilo je tog dana veoma dobro.",
    "el": "Ο καιρός στα βόρεια της χώρας ήταν πολύ καλός.",
    "am": "በዚያ ቀን በሀገሪቱ ሰሜን ያለው የአየር ሁኔታ በጣም ጥሩ ነበር።",
  }.items():
    assert Cleaner(Cleaning(), language(code), language("en"))(text, english) == (text, english)
    russian = Cleaner(Cleaning(), language("ru"), language("en"))(text, english)
    assert russian in ("script", "ratio")
  for entry in LANGUAGES:  # Every script is known.
    Cleaner(Cleaning(), entry, entry)


def test_real_pairs_pass(data_root):
  for name in ("bitext_tatoeba/tur-eng", "bitext_news/cmn-eng", "bitext_tatoeba/srp-eng"):
    clean = Cleaner(Cleaning(), language(name[-7:-4]), language("eng"))
    with gzip.open(data_root / f"{name}.tsv.gz", "rt", encoding="utf-8", newline="\n") as stream:
      pairs = [line.rstrip("\n").split("\t") for line in stream]
    dropped = [pair for pair in pairs if isinstance(clean(*pair), str)]
    assert len(dropped) < 0.005 * len(pairs), dropped[:5]


def test_keys():
  assert cleaning.text_key("It’s ①: ÉCLAIR—Straße!") == "its1éclairstrasse"
  assert cleaning.text_key("It's 1, E\u0301CLAIR strasse") == "its1éclairstrasse"
  assert cleaning.text_key(PERSIAN) == PERSIAN.replace("\u200c", "")
  assert cleaning.text_key("हिन्दी।") == "हिन्दी"  # Its vowels are marks, and remain.
  assert cleaning.text_key("…?!") == ""
  for text in ("Wo ist Tom?", "今天天气很好。", "ÇA VA"):
    varied = cleaning.sentence_key(f" «{text.upper()}» ")
    assert cleaning.sentence_key(text) == varied == cleaning.sentence_key(text.lower())
    digest = hashlib.blake2b(cleaning.text_key(text).encode(), digest_size=8).digest()
    assert varied == int.from_bytes(digest, "little")
  pairs = [("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ("?", "!"), ("!", "?"), ("a", "?")]
  assert len({cleaning.keys(*pair)[2] for pair in pairs}) == len(pairs)
  assert cleaning.keys("A, b", "C") == cleaning.keys("ab", "c.")
  for a, b in [*pairs, ("\ud800", "x")]:
    assert cleaning.keys(a, b)[:2] == (cleaning.sentence_key(a), cleaning.sentence_key(b))


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
  held_out = EvaluationSentences.from_texts(TEXTS)
  path = tmp_path / "held_out.npz"
  held_out.save(path)
  for sentences in (held_out, EvaluationSentences.load(path)):
    assert matching_sets(sentences, "HELLO WORLD") == ("ntrex", "tatoeba")
    assert matching_sets(sentences, "«Wo ist Tom»") == ("tatoeba",)
    assert matching_sets(sentences, "今天 天气很好") == ("ntrex",)
    for unknown_text in ("Hello, worlds!", "Wo ist Tim?", "Hello", "", "?", "…?!"):
      assert matching_sets(sentences, unknown_text) == ()
    assert len(sentences.keys_K) == 3
    assert sentences.counts == {"ntrex": 2, "sts": 0, "tatoeba": 2}
    assert sentences.digest == held_out.digest
  # The digest depends on content, not order.
  assert EvaluationSentences.from_texts(TEXTS[::-1] + TEXTS[:1]).digest == held_out.digest
  assert EvaluationSentences.from_texts(TEXTS[:-2]).digest != held_out.digest
  renamed = [(name.replace("ntrex", "xtrex"), text) for name, text in TEXTS]
  assert EvaluationSentences.from_texts(renamed).digest != held_out.digest
  EvaluationSentences.from_texts([]).save(path)
  assert EvaluationSentences.load(path).sets(0) == ()


def test_planted_tatoeba_sentences_are_found_and_training_data_is_not(data_root):
  held_out = EvaluationSentences.from_texts(held_out_texts([BENCHMARKS["tatoeba"]], data_root))
  german = text_files.read_lines(str(data_root / "tatoeba" / "tatoeba.deu-eng.deu.gz"))
  for text in german:
    for planted in (text, text.upper(), f" »{text.rstrip('.?!')}« …", text.replace(" ", "  ")):
      assert matching_sets(held_out, planted) == ("tatoeba",), planted
    assert matching_sets(held_out, f"{text} xyzzy") == ()
  # As the README of the data says, a few sentences match one of another language, such as Malay.
  lines = text_files.read_lines(str(data_root / "bitext_tatoeba" / "ind-eng.tsv.gz"))
  texts = (text for line in lines for text in line.split("\t"))
  assert 0 < sum(bool(matching_sets(held_out, text)) for text in texts) <= 23
