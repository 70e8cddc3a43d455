import io

import line_files
import numpy as np
import pytest
import sentencepiece
import tiny_tokenizers

from vmsst import errors
from vmsst.data import vocabularies

ODD_TEXTS = [
  "Hello, world!", "  two  spaces\tand a tab ", "", "   ", "İstanbul'da IĞDIR ve ışık",
  "ΟΔΥΣΣΕΥΣ ΚΑΙ Ο ΣΩΚΡΑΤΗΣ. ΑΣ-Β Σ", "STRAẞE straße GROẞ", "日本語のテキスト、ﾊﾝｶｸ ｶﾅ",
  "Привет 👋🏽 мир\u00a0nbsp\u200bzero\u00adsoft", "e\u0301 versus é, ﬁ ligature, ½, ²",
  "اَلْعَرَبِيَّةُ שָׁלוֹם हिन्दी", "\U00010570\U00010571 ꟀA ⱯB",
]  # fmt: skip


@pytest.fixture(scope="module")
def model_with_eos(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "tiny.model"
  _train(path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  return str(path)


def _train(path, **ids):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["Hello world, this is a sentence", "odd one out: Straße, Σ"] * 20),
    model_writer=model,
    vocab_size=60,
    hard_vocab_limit=False,
    byte_fallback=False,
    minloglevel=2,
    **ids,
  )
  path.write_bytes(model.getvalue())


def test_seqio_has_the_same_ids(model_with_eos, data_root):
  from vmsst.data.seqio_tasks import SeqioVocabulary

  ems = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  for vocabulary, eos_id, size in (
    (vocabularies.SentencePieceVocabulary(model_with_eos), 1, None),
    (vocabularies.SentencePieceVocabulary(ems, lowercase=True), None, 60_000),
    (vocabularies.ByteVocabulary(lowercase=True), 1, 259),
  ):
    wrapped = SeqioVocabulary(vocabulary)
    assert wrapped.eos_id == eos_id
    assert wrapped.vocab_size == (size or vocabulary.size)
    for text, ids in zip(ODD_TEXTS, vocabulary.tokenize(ODD_TEXTS), strict=True):
      assert list(wrapped.encode(text)) == ids
      assert wrapped.encode_tf(text).numpy().tolist() == ids
      assert wrapped.decode_tf(np.array(ids)).numpy().decode() == wrapped.decode(ids)


def test_every_letter_is_lowercased_alike_in_python_and_tensorflow():
  import tensorflow as tf

  letters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
  expected = [text.decode() for text in tf.strings.lower(letters, encoding="utf-8").numpy()]
  assert [vocabularies.small_letters(letter) for letter in letters] == expected
  assert vocabularies.small_letters("ΑΣ İI ẞ") == "ας i\u0307i ß"


def test_encode_keeps_the_eos_token_when_it_cuts_and_decode_stops_there(model_with_eos):
  vocabulary = vocabularies.SentencePieceVocabulary(model_with_eos)
  (ids,) = vocabulary.tokenize(["Hello world"])
  assert vocabulary.encode(["Hello world"], 100) == [[*ids, 1]]
  assert vocabulary.encode(["Hello world", ""], 3) == [[*ids[:2], 1], [1]]
  assert vocabulary.decode([*ids, 1, 0, 0, 5]) == "Hello world"
  byte = vocabularies.ByteVocabulary()
  assert byte.encode(["abc"], 3) == [[100, 101, 1]]
  assert byte.decode(byte.encode(["né 日"], 50)[0] + [0, 0]) == "né 日"
  assert byte.decode([3 + 0xFF]) == "\ufffd"
  with pytest.raises(ValueError, match="id 259 is outside"):
    byte.decode([259])


def test_the_file_is_read_again_and_named_if_it_cannot_be_used(tmp_path):
  path, sizes = tmp_path / "v.model", []
  for words in ("one two", "one two three four five"):
    path.write_bytes(tiny_tokenizers.sentencepiece_model([words]))
    sizes.append(vocabularies.SentencePieceVocabulary(str(path)).size)
  assert sizes[0] < sizes[1]
  _train(path)
  with pytest.raises(errors.InputError, match=r"id 0 must be padding but is '<unk>'.*vocab train"):
    vocabularies.SentencePieceVocabulary(str(path)).tokenize(["a"])
  path.write_bytes(b"hello\t0\n")
  with pytest.raises(errors.InputError, match=r"v\.model: not a SentencePiece model"):
    _ = vocabularies.SentencePieceVocabulary(str(path)).size


SENTENCES = [
  f"the {a} {b} sees a {c}"
  for a in ("old", "new", "Big")
  for b in ("dog", "cat")
  for c in ("house", "river", "mountain", "bridge")
]


def test_vocab_training_is_deterministic_and_samples_from_all_lines(tmp_path):
  line_files.write_tsv(tmp_path / "a.de-en.tsv.gz", [(x, x.upper()) for x in SENTENCES])
  line_files.write_lines(tmp_path / "b.txt", ["a plain line", "", "and another one"])
  line_files.write_lines(tmp_path / "long.txt", SENTENCES * 5 + ["zzz"] * 100)
  output = tmp_path / "new.model"

  def train(limit):
    counts = vocabularies.train_vocabulary(
      [str(tmp_path / "*.txt"), str(tmp_path / "*.gz")], str(output), size=45, max_sentences=limit
    )
    assert [*counts.values()] == [2, 220, 48]
    return output.read_bytes()

  all_lines = train(None)
  assert all_lines == train(270)
  sampled = train(42)
  assert all_lines != sampled == train(42)
  # None of the first 42 lines has the letter.
  assert "z" in vocabularies.SentencePieceVocabulary(str(output)).decode([*range(3, 45)])


def test_vocab_training_skips_no_line(tmp_path):
  rng = np.random.default_rng(0)

  def text(letters, count, width):
    return " ".join("".join(rng.choice([*letters], width)) for _ in range(count))

  lines = [
    *(text("abcd", 5, 4) for _ in range(200)),
    text("efgh", 2000, 4),
    text("ijkl", 1, 9000),
    *(text("ω語", 3, 600) for _ in range(3)),  # few characters, more than 4,192 bytes
    *("\u2585 " + text("mnop", 5, 4) for _ in range(200)),
  ]
  path, output = line_files.write_lines(tmp_path / "lines.txt", lines), tmp_path / "new.model"
  counts = vocabularies.train_vocabulary(str(path), output, size=60, character_coverage=1.0)
  assert [*counts.values()] == [len(lines)]
  pieces = vocabularies.SentencePieceVocabulary(str(output)).decode([*range(3, 60)])
  assert {*"abcdefghijklmnopω語"} <= {*pieces}


def test_a_vocabulary_is_trained_on_words(tmp_path):
  pytest.importorskip("sacremoses")
  (tmp_path / "a.fr-de.tsv").write_text("l'eau d'or\tdas geht's\n" * 50, encoding="utf-8")
  (tmp_path / "b.en.txt").write_text("it's\n" * 50, encoding="utf-8")

  def train(*names):
    inputs, output = [str(tmp_path / name) for name in names], str(tmp_path / "new.model")
    options = {"size": 40, "model_type": "bpe", "pretokenize": True}
    vocabularies.train_vocabulary(inputs, output, **options)
    processor = sentencepiece.SentencePieceProcessor(model_file=output)
    return {processor.id_to_piece(i) for i in range(processor.get_piece_size())}

  assert {"▁eau", "▁or", "▁geht", "▁s", "▁it", "▁'"} <= train("a.fr-de.tsv", "b.en.txt")
