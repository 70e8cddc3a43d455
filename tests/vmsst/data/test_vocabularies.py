"""Vocabularies against TensorFlow and against the tokenizers of transformers."""

import io
import json

import numpy as np
import pytest
import tiny_tokenizers

from vmsst import arrays, errors
from vmsst.data import vocabularies
from vmsst.formats.tokenizers import HuggingFaceVocabulary

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


def test_seqio_has_the_same_ids(model_with_eos, data_root):
  from vmsst.data.features import SeqioVocabulary

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
  upper, lower = vocabulary.tokenize(["STRASSE", "strasse"])
  assert upper == lower


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
  from vmsst.data.features import SeqioVocabulary

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


def test_another_model_at_the_same_path_is_read(tmp_path):
  sizes = []
  for words in ("one two", "one two three four five"):
    (tmp_path / "v.model").write_bytes(tiny_tokenizers.sentencepiece_model([words]))
    sizes.append(vocabularies.SentencePieceVocabulary(str(tmp_path / "v.model")).size)
  assert sizes[0] < sizes[1]


def test_missing_and_broken_model_files_are_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"none\.model: cannot be read"):
    vocabularies.SentencePieceVocabulary(str(tmp_path / "none.model")).tokenize(["a"])
  for name, data in (("text.model", b"hello\t0\n"), ("empty.model", b"")):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(errors.InputError, match=f"{name}: not a SentencePiece model"):
      _ = vocabularies.SentencePieceVocabulary(str(tmp_path / name)).size


MARKS = {
  "bert": {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"},
  "xlmr": {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"},
}
TEXTS = [
  "Hello, world!", "  Привет,\tмир.  ", "世界 你好 ☃ Ωmega", "आज अच्छा है।", "Welt " * 50,
  "[SEP] and </s> within", "", "   ",
]  # fmt: skip


def theirs(transformers, kind, path, texts, length):
  """Returns the ids of the tokenizer of transformers."""
  tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **MARKS[kind])
  return tokenizer(texts, truncation=True, max_length=length)["input_ids"]


@pytest.mark.parametrize("prefix", ["", "query: "])
@pytest.mark.parametrize("kind", ["bert", "xlmr"])
@pytest.mark.filterwarnings("ignore")  # warnings of another library
def test_ids_are_those_of_the_model_s_own_tokenizer(tokenizer_files, kind, prefix):
  transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
  vocabulary = HuggingFaceVocabulary(str(tokenizer_files[kind]), prefix)
  assert vocabulary.padding_id == (1 if kind == "xlmr" else 0)
  expected = theirs(transformers, kind, tokenizer_files[kind], [prefix + t for t in TEXTS], 12)
  expected = [
    tiny_tokenizers.swap_padding(np.array(ids), vocabulary.padding_id).tolist() for ids in expected
  ]
  found = vocabulary.encode(TEXTS, 12, language="en")
  assert found == expected
  assert max(map(len, found)) == 12  # the long text is cut
  assert min(map(len, found)) == 2 or prefix  # the empty text has special tokens
  assert {ids[-1] for ids in found} == {vocabulary.eos_id}
  assert max(max(ids) for ids in found) < vocabulary.size
  assert vocabulary.unk_id in found[2]
  # For training: no EOS token, and no ids for an empty text.
  assert vocabulary.tokenize(TEXTS)[:4] == [ids[:-1] for ids in vocabulary.encode(TEXTS[:4], 99)]
  assert vocabulary.tokenize(TEXTS)[-2:] == [[], []]


@pytest.mark.parametrize(
  ("kind", "marks"), [("bert", ("[CLS]", "[SEP]")), ("xlmr", ("<s>", "</s>"))]
)
def test_special_ids_are_those_around_every_text(tokenizer_files, kind, marks):
  path = str(tokenizer_files[kind])
  vocabulary = HuggingFaceVocabulary(path)
  own = {
    x["content"]: x["id"] for x in json.loads(tokenizer_files[kind].read_text())["added_tokens"]
  }
  expected = tiny_tokenizers.swap_padding(
    np.array([own[mark] for mark in marks]), vocabulary.padding_id
  )
  assert vocabulary.special_ids == tuple(expected) == tuple(vocabulary.encode([""], 9)[0])
  assert vocabulary.leading_ids == vocabulary.special_ids[:1]
  (with_prefix,) = HuggingFaceVocabulary(path, "query: ").tokenize(["x"])
  leading = HuggingFaceVocabulary(path, "query: ").leading_ids
  assert (*leading, *vocabulary.tokenize(["x"])[0][1:]) == tuple(with_prefix)
  assert HuggingFaceVocabulary(path, "query: ").special_ids == vocabulary.special_ids
  with pytest.raises(errors.InputError, match="prefix 'quer' depend on the text"):
    _ = HuggingFaceVocabulary(path, "quer").leading_ids


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
def test_ids_become_text_again(tokenizer_files, kind):
  vocabulary = HuggingFaceVocabulary(str(tokenizer_files[kind]))
  (ids,) = vocabulary.encode(["Wie geht es dir heute"], 99)
  assert vocabulary.decode([*ids, 0, 0]) == "Wie geht es dir heute"
  assert vocabulary.decode([*ids, ids[1]]) == "Wie geht es dir heute"  # up to the EOS token
  with pytest.raises(ValueError, match="is not in a vocabulary"):
    vocabulary.decode([vocabulary.size])


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
def test_text_that_spells_padding_is_not_padding(tokenizer_files, kind):
  vocabulary = HuggingFaceVocabulary(str(tokenizer_files[kind]))
  (ids,) = vocabulary.encode([f"Welt {MARKS[kind]['pad_token']} Welt"], 99)
  assert arrays.PAD_ID not in ids
  assert vocabulary.unk_id in ids


@pytest.mark.parametrize(
  ("changes", "message"),
  [({"model": {"type": "Other"}}, "not a Hugging Face tokenizer"), (None, "truncated")],
)
def test_a_file_that_cannot_be_used_is_named(tokenizer_files, tmp_path, changes, message):
  path = tmp_path / "tokenizer.json"
  content = tokenizer_files["bert"].read_text()
  path.write_text(content[:-9] if changes is None else json.dumps(json.loads(content) | changes))
  with pytest.raises(errors.InputError, match=message) as caught:
    HuggingFaceVocabulary(str(path)).encode(["a"], 5)
  assert str(path) in str(caught.value)
  with pytest.raises(errors.InputError, match=r"absent\.json: cannot be read"):
    _ = HuggingFaceVocabulary(str(tmp_path / "absent.json")).size


def test_the_size_counts_unused_ids(tokenizer_files, tmp_path):
  record = json.loads(tokenizer_files["bert"].read_text())
  size, tokens = HuggingFaceVocabulary(str(tokenizer_files["bert"])).size, record["model"]["vocab"]
  assert size == 1 + max(tokens.values())
  last = max(tokens, key=tokens.get)
  tokens[last] += 5
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(record))
  assert HuggingFaceVocabulary(str(path)).size == size + 5


def test_random_ids_are_refused(tokenizer_files, tmp_path):
  path = tmp_path / "tokenizer.json"
  model = {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}
  path.write_text(json.dumps(json.loads(tokenizer_files["bert"].read_text()) | {"model": model}))
  with pytest.raises(errors.InputError, match="dropout"):
    HuggingFaceVocabulary(str(path)).encode(["a" * 9], 5)


def test_a_pattern_that_backtracks_without_end_is_refused(tokenizer_files, tmp_path):
  path = tmp_path / "tokenizer.json"
  split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
  record = json.loads(tokenizer_files["bert"].read_text()) | {"pre_tokenizer": split}
  path.write_text(json.dumps(record))
  with pytest.raises(errors.InputError, match="retry-limit"):
    HuggingFaceVocabulary(str(path)).encode(["a" * 40 + "b"], 9)
