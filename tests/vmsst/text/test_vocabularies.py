import io

import pytest

from vmsst import errors
from vmsst.text import vocabularies

ODD_TEXTS = [
  "Hello, world!",
  "  two  spaces\tand a tab ",
  "",
  "   ",
  "İstanbul'da IĞDIR ve ışık",
  "ΟΔΥΣΣΕΥΣ ΚΑΙ Ο ΣΩΚΡΑΤΗΣ. ΑΣ-Β Σ",
  "STRAẞE straße GROẞ",
  "日本語のテキスト、ﾊﾝｶｸ ｶﾅ",
  "Привет 👋🏽 мир\u00a0nbsp\u200bzero\u00adsoft",
  "e\u0301 versus é, ﬁ ligature, ½, ²",
  "اَلْعَرَبِيَّةُ שָׁלוֹם हिन्दी",
  "\U00010570\U00010571 ꟀA ⱯB",
]


@pytest.fixture(scope="module")
def model_with_eos(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "tiny.model"
  _train(path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  return str(path)


def _train(path, **ids):
  import sentencepiece

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


def _ids_in_tensorflow(vocabulary, texts):
  import tensorflow as tf

  from vmsst.tasks.seqio_vocabulary import SeqioVocabulary

  encoder = SeqioVocabulary(vocabulary)
  dataset = tf.data.Dataset.from_tensor_slices(texts).map(encoder.encode_tf)
  return [row.tolist() for row in dataset.as_numpy_iterator()]


def test_ems_model_gives_the_same_ids_in_python_and_tensorflow(data_root):
  import gzip

  path = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  vocabulary = vocabularies.SentencePieceVocabulary(path, lowercase=True)
  texts = list(ODD_TEXTS)
  for name in ("tur", "ell", "deu", "jpn", "ara"):
    lines = gzip.decompress((data_root / "tatoeba" / f"tatoeba.{name}-eng.{name}.gz").read_bytes())
    texts += lines.decode().splitlines()[:200]
  assert vocabulary.eos_id is None
  assert vocabulary.size == 60_000
  assert vocabulary.tokenize(texts) == _ids_in_tensorflow(vocabulary, texts)
  assert vocabulary.tokenize(["STRASSE"]) == vocabulary.tokenize(["strasse"])


@pytest.mark.parametrize("lowercase", [False, True])
def test_tiny_model_and_bytes_give_the_same_ids_in_python_and_tensorflow(model_with_eos, lowercase):
  from vmsst.tasks.seqio_vocabulary import SeqioVocabulary

  for vocabulary in (
    vocabularies.SentencePieceVocabulary(model_with_eos, lowercase),
    vocabularies.ByteVocabulary(lowercase),
  ):
    ids = vocabulary.tokenize(ODD_TEXTS)
    assert ids == _ids_in_tensorflow(vocabulary, ODD_TEXTS)
    assert any(ids)
    seqio_side = SeqioVocabulary(vocabulary)
    assert seqio_side.vocab_size == vocabulary.size
    assert seqio_side.eos_id == 1


def test_every_letter_is_lowercased_alike_in_python_and_tensorflow():
  import tensorflow as tf

  letters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
  expected = [text.decode() for text in tf.strings.lower(letters, encoding="utf-8").numpy()]
  assert [vocabularies.lowercase(letter) for letter in letters] == expected
  assert vocabularies.lowercase("ΑΣ İI ẞ") == "ας i\u0307i ß"


def test_encode_keeps_the_eos_token_when_it_cuts(model_with_eos):
  vocabulary = vocabularies.SentencePieceVocabulary(model_with_eos)
  (whole,) = vocabulary.tokenize(["Hello world"])
  assert vocabulary.encode(["Hello world"], 100) == [[*whole, 1]]
  assert vocabulary.encode(["Hello world", ""], 3) == [[*whole[:2], 1], [1]]
  assert vocabularies.ByteVocabulary().encode(["abc"], 3) == [[100, 101, 1]]
  with pytest.raises(ValueError, match="max_length"):
    vocabulary.encode(["a"], 0)


def test_decode_undoes_encode_and_stops_at_the_eos_token(model_with_eos):
  vocabulary = vocabularies.SentencePieceVocabulary(model_with_eos)
  assert vocabulary.decode([*vocabulary.encode(["Hello world"], 50)[0], 0, 0, 5]) == "Hello world"
  byte = vocabularies.ByteVocabulary()
  assert byte.decode(byte.encode(["né 日"], 50)[0] + [0, 0]) == "né 日"
  assert byte.decode([3 + 0xFF]) == "\ufffd"
  with pytest.raises(ValueError, match="id 259 is not in"):
    byte.decode([259])


def test_vocabularies_are_equal_by_what_they_are(model_with_eos):
  from vmsst.tasks.seqio_vocabulary import SeqioVocabulary

  a = vocabularies.SentencePieceVocabulary(model_with_eos)
  b = vocabularies.SentencePieceVocabulary(model_with_eos)
  assert a == b
  assert hash(a) == hash(b)
  assert SeqioVocabulary(a) == SeqioVocabulary(b)
  lowercased = vocabularies.SentencePieceVocabulary(model_with_eos, lowercase=True)
  assert SeqioVocabulary(a) != SeqioVocabulary(lowercased)


def test_model_without_padding_at_0_is_refused_with_advice(tmp_path):
  path = tmp_path / "default.model"
  _train(path)
  with pytest.raises(errors.InputError, match=r"id 0 must be padding but is '<unk>'.*vocab train"):
    vocabularies.SentencePieceVocabulary(str(path)).tokenize(["a"])


def test_missing_and_broken_model_files_are_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"none\.model: cannot be read"):
    vocabularies.SentencePieceVocabulary(str(tmp_path / "none.model")).tokenize(["a"])
  for name, data in (("text.model", b"hello\t0\n"), ("empty.model", b"")):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(errors.InputError, match=f"{name}: not a SentencePiece model"):
      _ = vocabularies.SentencePieceVocabulary(str(tmp_path / name)).size
