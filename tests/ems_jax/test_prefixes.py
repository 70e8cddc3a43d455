"""Other prefixes in token ids, against tokenizing the texts again."""

import numpy as np
import pytest
import tiny_encoders

import vmsst
from ems_jax import prefixes, teachers
from vmsst import errors
from vmsst.networks import bert, sentence_encoder
from vmsst.text import hugging_face_vocabulary, vocabularies

TEXTS = ["Hello, world!", "Wie geht es dir heute, Welt? " * 3, "世界 你好", "(Привет)", "x"]
LENGTH = 16  # of which the second text needs more


def padded(rows, width):
  return np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int32)


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
@pytest.mark.parametrize(("old", "new"), [("", "query: "), ("query: ", ""), ("a: ", "the text - ")])
def test_ids_are_those_of_texts_with_the_other_prefix(tokenizer_files, kind, old, new):
  path = str(tokenizer_files[kind])
  first, second = (hugging_face_vocabulary.HuggingFaceVocabulary(path, x) for x in (old, new))
  whole = padded(first.encode([*TEXTS, ""], 99), 99)
  whole[-1] = 0  # a row of padding
  for length in (LENGTH, 99):
    found = prefixes.replace(
      whole, first.leading_ids, second.leading_ids, eos_id=first.eos_id, max_length=length
    )
    expected = padded([*second.encode(TEXTS, length), []], length)
    width = min(found.shape[1], length)
    np.testing.assert_array_equal(found[:, :width], expected[:, :width])
    assert not np.any(expected[:, width:])


def test_ids_without_eos_token_are_cut():
  tokens_NT = np.array([[7, 5, 6, 8], [7, 5, 0, 0]], np.int32)
  found = prefixes.replace(tokens_NT, (7,), (1, 2), eos_id=None, max_length=4)
  np.testing.assert_array_equal(found, [[1, 2, 5, 6], [1, 2, 5, 0]])


def test_a_teacher_reads_its_own_prefix(tokenizer_files, tmp_path):
  prompts = {"query": "query: ", "passage": "passage: "}
  student, own = (
    hugging_face_vocabulary.HuggingFaceVocabulary(str(tokenizer_files["xlmr"]), prefix, prompts=own)
    for prefix, own in (("", {}), ("query: ", prompts))
  )
  config = bert.BertConfig(
    vocab_size=150, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=1, max_positions=LENGTH
  )
  network = sentence_encoder.SentenceEncoder(config, 8, head=False, normalize=True)
  model = tiny_encoders.model_of(network, own, max_length=LENGTH)
  run = tiny_encoders.save_run(tmp_path / "run", model)
  expected = vmsst.load(run).encode(TEXTS, progress=False)
  teacher = teachers.from_run(run)
  teacher.check_vocabulary(student)
  for vocabulary in (student, own):
    tokens = padded(vocabulary.encode(TEXTS, 99), 99)
    found = teacher.embed(tokens, vocabulary)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
  other = hugging_face_vocabulary.HuggingFaceVocabulary(str(tokenizer_files["bert"]), "query: ")
  for vocabulary in (other, vocabularies.ByteVocabulary()):
    with pytest.raises(errors.InputError, match="another vocabulary"):
      teacher.check_vocabulary(vocabulary)
