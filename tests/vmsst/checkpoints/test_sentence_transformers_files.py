"""Variations of a released encoder's files: vectors of sentence-transformers, or a refusal."""

import json
import re

import numpy as np
import pytest
import released_folders

import vmsst
from vmsst import cli, errors
from vmsst.checkpoints import sentence_transformers_files
from vmsst.checkpoints.importers import bert
from vmsst.data.hugging_face_vocabulary import HuggingFaceVocabulary


def name_of(case):
  return re.sub(r"[^\w.]+", "-", f"{case[0]} {case[1]}")[:90]


def ids_of(folder, texts, prompt=None):
  """Returns the tokenizer's own ids of texts with the default prompt, or with another."""
  released = sentence_transformers_files.read(folder)
  prefix = released.prefix if prompt is None else released.prompts.get(prompt, "")
  path = folder / "made.json"
  released.tokenizer.save(str(path))
  vocabulary = HuggingFaceVocabulary(str(path), prefix)
  most = min(released.max_length or released_folders.POSITIONS, released_folders.POSITIONS)
  pad = vocabulary.padding_id
  return [bert.swap_padding(np.array(x), pad).tolist() for x in vocabulary.encode(texts, most)]


def test_a_default_token_outside_the_table_is_left_out(tmp_path):
  # transformers adds <mask> with the id 6, which no text may spell.
  pieces = [[x, -float(i)] for i, x in enumerate(("<s>", "<pad>", "</s>", "<unk>", "▁", "a"))]
  folder = released_folders.write(
    tmp_path / "m",
    "xlmr",
    {"config.json": {"vocab_size": 6}, "tokenizer.json": {"model": {"vocab": pieces}}},
  )
  record = json.loads((folder / "tokenizer.json").read_text())
  (folder / "tokenizer.json").write_text(json.dumps({**record, "added_tokens": []}))
  assert bert.import_bert(folder, tmp_path / "out").vocabulary is not None
  assert ids_of(folder, ["a a"]) == [[0, 4, 5, 4, 5, 2]]


_OWN = {"query": "q: ", "passage": "p: "}
_SAVED_AGAIN = {"query": "q: ", "document": "", "passage": "p: "}


@pytest.mark.parametrize(
  ("name", "file", "expected"),
  [
    ("m", None, ("", {})),
    ("m", {"prompts": _OWN}, ("", {**_OWN, "document": "p: "})),
    ("m", {"prompts": _SAVED_AGAIN}, ("", {**_OWN, "document": "p: "})),
    ("m", {"prompts": {"corpus": "c: "}}, ("", {"query": "", "document": "c: ", "corpus": "c: "})),
    (
      "m",
      {"prompts": {"x": "x: "}, "default_prompt_name": "x"},
      ("x: ", {"query": "", "document": "", "x": "x: "}),
    ),
    ("my-e5", None, ("query: ", {"query": "query: ", "passage": "passage: "})),
    ("my-e5", {"similarity_fn_name": "dot"}, ("query: ", {"query": "query: "})),
    ("models--a--my-e5-base/snapshots/0a1b", None, ("query: ", {"passage": "passage: "})),
    ("multilingual-e5-large-instruct", None, ("", {})),
    ("e5000/labse", None, ("", {})),
    ("my-e5", {"prompts": {}}, ("", {})),
    ("my-e5", {"prompts": _OWN, "default_prompt_name": None}, ("", {**_OWN, "document": "p: "})),
    ("my-e5", {"default_prompt_name": None}, ("", {})),
  ],
)
def test_prompts_are_those_of_the_files(tmp_path, name, file, expected):
  released_folders.write(tmp_path / name, "bert", {"config_sentence_transformers.json": None})
  if file is not None:
    (tmp_path / name / "config_sentence_transformers.json").write_text(json.dumps(file))
  released = sentence_transformers_files.read(tmp_path / name)
  assert (released.prefix, released.prompts | expected[1]) == (expected[0], released.prompts)
  assert bool(released.prompts) == bool(expected[1])


@pytest.mark.parametrize("case", released_folders.HONORED, ids=name_of)
@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_ids_equal_those_of_sentence_transformers(tmp_path, case):
  st = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers to compare with"
  )
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


@pytest.mark.parametrize("case", released_folders.POOLED, ids=name_of)
@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_vectors_equal_those_of_sentence_transformers(tmp_path, case, capsys):
  st = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers to compare with"
  )
  folder = released_folders.write(tmp_path / "m", *case)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  assert cli.main(["import", "bert", str(folder), str(tmp_path / "out")]) == 0
  assert f"vmsst.load('{tmp_path / 'out'}')" in capsys.readouterr().out
  ours = vmsst.load(tmp_path / "out")
  for name in ("encode", "encode_query", "encode_document"):
    expected = getattr(theirs, name)(released_folders.TEXTS, show_progress_bar=False)
    found = getattr(ours, name)(released_folders.TEXTS, progress=False, on_cut=None)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("case", released_folders.REFUSED, ids=name_of)
def test_what_cannot_be_expressed_is_refused(tmp_path, case):
  kind, changes, (file, key) = case
  folder = released_folders.write(tmp_path / "m", kind, changes)
  with pytest.raises(errors.InputError, match=rf"{re.escape(str(folder))}.*{key}") as caught:
    bert.import_bert(folder, tmp_path / "out")
  assert file in str(caught.value)
  assert not (tmp_path / "out").exists()
