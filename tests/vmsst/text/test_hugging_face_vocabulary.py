"""Vocabularies of Hugging Face models against the tokenizers of transformers."""

import dataclasses
import json

import numpy as np
import pytest
import released_folders

from vmsst import errors
from vmsst.arrays import padding
from vmsst.checkpoints.importers import bert
from vmsst.text.hugging_face_vocabulary import HuggingFaceVocabulary

MARKS = {
  "bert": {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"},
  "xlmr": {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"},
}
TEXTS = [
  "Hello, world!",
  "  Привет,\tмир.  ",
  "世界 你好 ☃ Ωmega",
  "आज अच्छा है।",
  "Welt " * 50,
  "[SEP] and </s> within",
  "",
  "   ",
]


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
  expected = [bert.swap_padding(np.array(ids), vocabulary.padding_id).tolist() for ids in expected]
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
  expected = bert.swap_padding(np.array([own[mark] for mark in marks]), vocabulary.padding_id)
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
  assert padding.PAD_ID not in ids
  assert vocabulary.unk_id in ids


def test_tensorflow_gives_the_same_ids(tokenizer_files):
  tf = pytest.importorskip("tensorflow")
  from vmsst.tasks.seqio_vocabulary import SeqioVocabulary

  vocabulary = HuggingFaceVocabulary(str(tokenizer_files["xlmr"]), "query: ")
  wrapped = SeqioVocabulary(vocabulary)
  assert (wrapped.eos_id, wrapped.unk_id, wrapped.pad_id) == (2, 3, 0)
  assert wrapped.vocab_size == vocabulary.size
  assert wrapped.encode_rows(tf.constant(TEXTS)).to_list() == vocabulary.tokenize(TEXTS)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"added_tokens": []}, "neither '<pad>' nor"),
    ({"model": {"type": "Other"}}, "not a Hugging Face tokenizer"),
    (None, "not JSON"),
  ],
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


def test_a_changed_file_is_read_again(tokenizer_files, tmp_path):
  path = tmp_path / "tokenizer.json"
  sizes = set()
  for kind in ("bert", "xlmr"):
    path.write_bytes(tokenizer_files[kind].read_bytes())
    sizes.add(dataclasses.replace(HuggingFaceVocabulary(str(path)), prefix="x").size)
  assert len(sizes) == 2


_CHARS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 250_000}
_LAM = {"type": "Replace", "pattern": {"String": "\u0644"}, "content": "\ufdfa"}  # NFKC: 18 letters
_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
_CHARSMAP = "AAAAAAAA" + "eHh4" * 999  # no tree, and one text
_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
_TWICE = {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
          "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2}  # fmt: skip
_MARK = {"[CLS]": {"id": "[CLS]", "ids": [2] * 3000, "tokens": ["[CLS]"] * 3000}}


def _chain(kind, steps):
  return {"type": "Sequence", kind: steps}


@pytest.mark.parametrize(
  ("changes", "key"),
  [
    ({"normalizer": _chain("normalizers", [_CHARS] * 4)}, "normalizer"),
    ({"normalizer": _chain("normalizers", [_chain("normalizers", [_CHARS])])}, "normalizer"),
    ({"normalizer": _chain("normalizers", [{**_SPACES, "content": "xxx"}] * 9)}, "normalizer"),
    ({"normalizer": _chain("normalizers", [{"type": "Prepend", "prepend": "xx"}] * 9)}, "normal"),
    ({"normalizer": _chain("normalizers", [{"type": "ByteLevel"}] * 9)}, "normalizer"),
    ({"normalizer": _chain("normalizers", [{"type": "Nmt"}] * 99)}, "100 steps"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": _CHARSMAP}}, "normalizer"),
    ({"pre_tokenizer": _chain("pretokenizers", [_BYTES] * 30)}, "pre_tokenizer"),
    ({"post_processor": _chain("processors", [_TWICE] * 15)}, "post_processor"),
    ({"post_processor": {**_TWICE, "special_tokens": _MARK, "single": [
      {"SpecialToken": {"id": "[CLS]", "type_id": 0}}]}}, "post_processor"),
    ({"normalizer": _chain("normalizers", [_LAM, {"type": "NFKC"}] * 9)}, "normalizer"),
    ({"decoder": _chain("decoders", [_CHARS])}, "decoder"),
    ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}}, "dropout"),
  ],
)  # fmt: skip
def test_a_file_that_could_exhaust_the_memory_is_refused(tokenizer_files, tmp_path, changes, key):
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(json.loads(tokenizer_files["bert"].read_text()) | changes))
  with pytest.raises(errors.InputError, match=key):
    HuggingFaceVocabulary(str(path)).encode(["a" * 9], 5)


_PREPEND = {"type": "Prepend", "prepend": "▁"}
_LITERAL = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_QUOTES = {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}


@pytest.mark.parametrize(
  "steps",
  [
    [_PREPEND, _LITERAL],  # Llama
    [{"type": "Nmt"}, {"type": "NFKC"}, _SPACES],  # mT5
    # ALBERT
    [
      _QUOTES,
      _QUOTES,
      {"type": "NFKD"},
      {"type": "StripAccents"},
      {"type": "Lowercase"},
      {"type": "Precompiled", "precompiled_charsmap": None},
      _SPACES,
    ],
  ],
)
def test_normalizers_of_released_tokenizers_are_accepted(tokenizer_files, tmp_path, steps):
  path = tmp_path / "tokenizer.json"
  for step in steps:
    if "precompiled_charsmap" in step:
      step |= released_folders.tokenizer("xlmr")["normalizer"]
  record = json.loads(tokenizer_files["xlmr"].read_text())
  path.write_text(json.dumps(record | {"normalizer": _chain("normalizers", steps)}))
  assert HuggingFaceVocabulary(str(path)).encode(["a"], 9)


def test_a_pattern_that_backtracks_without_end_is_refused(tokenizer_files, tmp_path):
  path = tmp_path / "tokenizer.json"
  split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
  record = json.loads(tokenizer_files["bert"].read_text()) | {"pre_tokenizer": split}
  path.write_text(json.dumps(record))
  with pytest.raises(errors.InputError, match="retry-limit"):
    HuggingFaceVocabulary(str(path)).encode(["a" * 40 + "b"], 9)
