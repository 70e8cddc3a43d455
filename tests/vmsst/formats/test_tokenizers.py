"""Compares tokenizers with sentence-transformers, transformers and SentencePiece."""

import json

import numpy as np
import pytest
import released_folders
import tiny_tokenizers
import tokenizers

from vmsst import arrays, errors
from vmsst.data import vocabularies
from vmsst.encoder import loading
from vmsst.formats import sentence_transformers
from vmsst.formats.tokenizers import HuggingFaceVocabulary, export


@pytest.mark.parametrize("kind", ["sample", "unigram", "ems", "bytes"])
def test_a_tokenizer_gives_the_ids_of_the_vocabulary(kind, vocabulary_of, sentences):
  vocabulary, texts = vocabulary_of(kind), sentences + released_folders.ODD
  exported = export(vocabulary)
  tokenizer = tokenizers.Tokenizer.from_str(exported.content.decode())
  tokenizer.encode_special_tokens = exported.splits_special_tokens
  found = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
  assert found == vocabulary.encode(texts, 10_000)
  assert tokenizer.token_to_id(exported.padding) == exported.padding_id == 0


def test_what_a_tokenizer_file_cannot_express_is_refused(tmp_path):
  path = tmp_path / "m.model"
  options = {"vocab_size": 40, "user_defined_symbols": ["abc"]}
  path.write_bytes(tiny_tokenizers.sentencepiece_model(["the brown fox abcd"], **options))
  with pytest.raises(errors.InputError, match="user-defined symbols"):
    export(vocabularies.SentencePieceVocabulary(str(path)))


def ids_of(folder, texts, prompt=None):
  """Returns the ids that the original tokenizer would return, with a prompt or the default one."""
  assets = sentence_transformers.read(folder).assets
  vocabulary, pad = assets.vocabulary, assets.vocabulary.padding_id
  if prompt is not None:
    vocabulary = vocabulary.with_prefix(vocabulary.prompts.get(prompt, ""))
  ids = vocabulary.encode(texts, assets.max_length)
  return [tiny_tokenizers.swap_padding(np.array(x), pad).tolist() for x in ids]


def test_a_default_token_outside_the_table_is_left_out(tmp_path):
  # transformers adds <mask> with the id 6. No text may spell it.
  pieces = [[x, -float(i)] for i, x in enumerate(("<s>", "<pad>", "</s>", "<unk>", "▁", "a"))]
  folder = released_folders.write(
    tmp_path / "m",
    "xlmr",
    {"config.json": {"vocab_size": 6}, "tokenizer.json": {"model": {"vocab": pieces}}},
  )
  record = json.loads((folder / "tokenizer.json").read_text())
  (folder / "tokenizer.json").write_text(json.dumps({**record, "added_tokens": []}))
  assert loading.convert(folder).assets is not None
  assert ids_of(folder, ["a a"]) == [[0, 4, 5, 4, 5, 2]]


@pytest.mark.parametrize("case", released_folders.HONORED, ids=released_folders.name_of)
@pytest.mark.filterwarnings("ignore")  # sentence-transformers warns.
def test_ids_equal_those_of_sentence_transformers(tmp_path, case, st):
  folder = released_folders.write(tmp_path / "m", *case)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  assert theirs[0].modalities == ["text"]
  default = theirs.prompts.get(theirs.default_prompt_name or "", "")
  for name, prompt in ((None, default), *theirs.prompts.items()):
    found = theirs.preprocess(released_folders.TEXTS, prompt=prompt)
    expected = [
      ids[mask == 1].tolist()
      for ids, mask in zip(found["input_ids"], found["attention_mask"], strict=True)
    ]
    assert ids_of(folder, released_folders.TEXTS, name) == expected, name


MARKS = {
  "bert": {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"},
  "xlmr": {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"},
}


TEXTS = [
  "Hello, world!", "  Привет,\tмир.  ", "世界 你好 ☃ Ωmega", "आज अच्छा है।", "Welt " * 50,
  "[SEP] and </s> within", "", "   ",
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "query: "])
@pytest.mark.parametrize("kind", ["bert", "xlmr"])
@pytest.mark.filterwarnings("ignore")  # transformers warns.
def test_ids_are_those_of_the_model_s_own_tokenizer(tokenizer_files, kind, prefix, theirs):
  vocabulary = HuggingFaceVocabulary(str(tokenizer_files[kind]), prefix)
  assert vocabulary.padding_id == (1 if kind == "xlmr" else 0)
  own = theirs.PreTrainedTokenizerFast(tokenizer_file=vocabulary.path, **MARKS[kind])
  own_ids = own([prefix + text for text in TEXTS], truncation=True, max_length=12)["input_ids"]
  expected = [
    tiny_tokenizers.swap_padding(np.array(ids), vocabulary.padding_id).tolist() for ids in own_ids
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


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
def test_special_ids_are_those_around_every_text(tokenizer_files, kind):
  path = str(tokenizer_files[kind])
  plain, query = HuggingFaceVocabulary(path), HuggingFaceVocabulary(path, "query: ")
  own = tokenizers.Tokenizer.from_file(path)
  around = np.array([own.token_to_id(MARKS[kind][name]) for name in ("cls_token", "sep_token")])
  expected = tuple(tiny_tokenizers.swap_padding(around, plain.padding_id))
  assert plain.special_ids == query.special_ids == expected == tuple(plain.encode([""], 9)[0])
  assert plain.leading_ids == expected[:1]
  assert [*query.leading_ids, *plain.tokenize(["x"])[0][1:]] == query.tokenize(["x"])[0]
  with pytest.raises(errors.InputError, match="prefix 'quer' depend on the text"):
    _ = HuggingFaceVocabulary(path, "quer").leading_ids


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
def test_ids_become_text_again_and_text_that_spells_padding_is_not_padding(tokenizer_files, kind):
  vocabulary = HuggingFaceVocabulary(str(tokenizer_files[kind]))
  (ids,) = vocabulary.encode(["Wie geht es dir heute"], 99)
  assert vocabulary.decode([*ids, 0, 0]) == "Wie geht es dir heute"
  assert vocabulary.decode([*ids, ids[1]]) == "Wie geht es dir heute"  # up to the EOS token
  with pytest.raises(ValueError, match="is outside the vocabulary"):
    vocabulary.decode([vocabulary.size])
  (ids,) = vocabulary.encode([f"Welt {MARKS[kind]['pad_token']} Welt"], 99)
  assert arrays.PAD_ID not in ids
  assert vocabulary.unk_id in ids


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model": {"type": "Other"}}, "not a Hugging Face tokenizer"),
    ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}}, "dropout"),
    (None, "truncated"),
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


def test_a_folder_whose_settings_change_is_read_again(tmp_path):
  changes = {"tokenizer_config.json": {"do_lower_case": False}}
  folder = released_folders.write(tmp_path, "bert", changes)
  cased = loading.read_assets(folder).vocabulary.tokenize(["Red"])
  released_folders.write(tmp_path, "bert", {})
  lowercased = loading.read_assets(folder).vocabulary.tokenize(["Red"])
  assert lowercased == loading.read_assets(folder).vocabulary.tokenize(["red"]) != cased


def test_the_size_counts_unused_ids(tokenizer_files, tmp_path):
  record = json.loads(tokenizer_files["bert"].read_text())
  tokens, path = record["model"]["vocab"], tmp_path / "tokenizer.json"
  tokens[max(tokens, key=tokens.get)] += 5
  path.write_text(json.dumps(record))
  assert HuggingFaceVocabulary(str(path)).size == 1 + max(tokens.values())
