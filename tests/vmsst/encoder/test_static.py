"""Distillation of static encoders."""

import numpy as np
import pytest
import released_folders
import tiny_encoders

import vmsst
from vmsst import cli, errors

TEXTS = ["the museum is open", "the red apple", "ents ents, ents", "the cafe, red"]


@pytest.fixture(scope="module", params=["bert", "xlmr"])
def encoder(request, tmp_path_factory):
  folder = released_folders.write(tmp_path_factory.mktemp("m") / "m", request.param, {})
  return vmsst.load(folder, backend="jax")


def table(made):
  return np.asarray(made._backend.params["token_embedder"]["embedding"])


def check_distance(encoder, vectors, pieces):
  """Two vectors of a table have the distance of the encoder's vectors of their tokens."""
  *start, end = encoder.vocabulary.special_ids
  ids = [[*start, *piece, end] for piece in pieces]
  first, second = encoder.encode_ids(ids)
  distance, expected = (np.linalg.norm(x - y) for x, y in (vectors, (first, second)))
  np.testing.assert_allclose(distance, expected, rtol=1e-3)


def test_a_token_has_the_principal_components_of_its_vector(encoder):
  """All components keep distances. Without texts, the weights follow Zipf's law."""
  made = vmsst.distill_static(encoder, dimensions=16)
  share_V = 1 / np.arange(2, len(table(made)) + 2)
  weight_V = 1e-4 / (1e-4 + share_V / share_V.sum())
  check_distance(encoder, (table(made) / weight_V[:, None])[[7, 11]], [[7], [11]])
  variances = (table(made) / weight_V[:, None]).var(axis=0)
  assert (np.diff(variances) <= 1e-6).all()
  smaller = vmsst.distill_static(encoder, dimensions=5)
  np.testing.assert_allclose(np.abs(table(smaller)), np.abs(table(made)[:, :5]), atol=1e-5)
  np.testing.assert_allclose(np.linalg.norm(made.encode(TEXTS), axis=1), 1, rtol=1e-5)


def test_frequent_words_are_tokens_and_frequent_tokens_count_less(encoder):
  plain = vmsst.distill_static(encoder, TEXTS, dimensions=16)
  made = vmsst.distill_static(encoder, TEXTS, dimensions=16, words=2)
  pieces, word = (x.vocabulary.encode(["ents"], 9)[0] for x in (plain, made))
  assert (len(pieces) > 1, len(word)) == (True, 1)
  others = ["museum open cafe", "is open"]
  assert [len(x) for x in plain.vocabulary.encode(others, 99)] == [
    len(x) for x in made.vocabulary.encode(others, 99)
  ]
  ids = np.concatenate([np.asarray(x) for x in made.vocabulary.encode(TEXTS, 99)])
  share_V = np.bincount(ids, minlength=len(table(made))) / len(ids)
  other = made.vocabulary.encode(["red"], 9)[0][-1]
  unweighted_VD = table(made) * (1 + share_V / 1e-4)[:, None]
  original = plain.vocabulary.encode(["red"], 9)[0][-1]
  check_distance(encoder, unweighted_VD[[word[0], other]], [pieces, [original]])


def test_the_command_writes_a_folder_that_trains(tmp_path, encoder, capsys):
  encoder.save(tmp_path / "m")
  (tmp_path / "texts").write_text("\n".join(TEXTS))
  words = ["distill", "m", "out", "--texts", "texts", "--dimensions", "8", "--trim"]
  assert cli.main([str(tmp_path / x) if x in ("m", "out", "texts") else x for x in words]) == 0
  made = vmsst.load(tmp_path / "out")
  assert made.dimension == 8
  assert len(table(made)) < encoder.vocabulary.size
  before = made.encode(TEXTS)
  pairs = [(x, y) for x in TEXTS for y in TEXTS]
  options = {"steps": 2, "batch_size": 8, "learning_rate": 0.1, "matryoshka_dims": [4]}
  tuned = vmsst.finetune(made, pairs, tmp_path / "run", **options)
  assert not np.allclose(tuned.encode(TEXTS), before, atol=1e-5)


def test_options_without_texts_and_other_vocabularies_are_refused(encoder, tmp_path):
  with pytest.raises(errors.InputError, match="require texts"):
    vmsst.distill_static(encoder, dimensions=4, trim=True)
  network = tiny_encoders.encoder(tiny_encoders.bert_config(), 8, head=False)
  run = tiny_encoders.save_run(tmp_path / "run", tiny_encoders.model_of(network, max_length=9))
  with pytest.raises(errors.InputError, match=r"no tokenizer\.json"):
    vmsst.distill_static(vmsst.load(run, backend="jax"), dimensions=4)
