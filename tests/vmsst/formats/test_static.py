"""Compares static encoders with sentence-transformers and Model2Vec."""

import json

import numpy as np
import pytest
import released_folders
import tiny_encoders
from tokenizers import Tokenizer

import vmsst
from vmsst import errors
from vmsst.encoder import loading
from vmsst.formats import hub
from vmsst.networks import sentence_encoder, static

pytestmark = pytest.mark.filterwarnings("ignore")  # Other libraries warn.
NEEDS = "needs sentence-transformers and model2vec"
TEXTS = ["the museum is open", "Café café", "", "red apple red", "the  museum, ✈ open"]


@pytest.fixture(scope="module")
def st():
  return pytest.importorskip("sentence_transformers", reason=NEEDS)


@pytest.fixture(scope="module")
def model2vec():
  return pytest.importorskip("model2vec", reason=NEEDS)


def tokenizer(kind):
  made = Tokenizer.from_str(json.dumps(released_folders._files(kind)["tokenizer.json"]))
  made.no_padding()
  return made


def table(count, width=8):
  return np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
@pytest.mark.parametrize("layers", [(), ("Normalize",), ("Dense", "Normalize")])
def test_sentence_transformers_gives_the_same_vectors(tmp_path, st, kind, layers):
  from sentence_transformers.sentence_transformer import modules

  tokens = tokenizer(kind)
  made = {"Normalize": modules.Normalize, "Dense": lambda: modules.Dense(8, 4)}
  embedding = modules.StaticEmbedding(tokens, embedding_weights=table(tokens.get_vocab_size()))
  theirs = st.SentenceTransformer(
    modules=[embedding, *(made[name]() for name in layers)],
    device="cpu",
    prompts={"query": "the "},
  )
  theirs.save_pretrained(str(tmp_path / "theirs-e5"))  # The name must not turn it into an E5.
  encoder = vmsst.load(tmp_path / "theirs-e5")
  encoder.save(tmp_path / "ours")
  exported = st.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
  again = vmsst.load(tmp_path / "ours")
  for name in ("encode", "encode_query"):
    vectors, expected = (getattr(x, name)(TEXTS) for x in (encoder, theirs))
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_allclose(getattr(exported, name)(TEXTS), expected, atol=1e-6)
    np.testing.assert_array_equal(getattr(again, name)(TEXTS), vectors)
  assert encoder.backend == "jax"  # the default on CPUs
  assert "Static encoder: 0 layers" in hub.card(loading.read(tmp_path / "ours"), "owner/name")


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("is_factored", [False, True])
def test_model2vec_gives_the_same_vectors(tmp_path, model2vec, kind, normalize, is_factored):
  tokens = tokenizer(kind)
  count = tokens.get_vocab_size()
  parts = {"vectors": table(count)}
  if is_factored:
    rng = np.random.default_rng(1)
    parts = {"vectors": table(9), "token_mapping": rng.integers(0, 9, count)}
    parts["weights"] = rng.uniform(0.5, 1, count).astype(np.float32)
  # Model2Vec cuts characters before tokens. This has an effect if most tokens are short.
  parts["max_length"] = 9 if kind == "bert" else 99
  config = {"model_type": "model2vec"}
  theirs = model2vec.StaticModel(tokenizer=tokens, normalize=normalize, config=config, **parts)
  theirs.save_pretrained(tmp_path / "theirs")
  texts = [*TEXTS, "i i i i i i i i i i i"]
  expected = theirs.encode(texts)
  encoder = vmsst.load(tmp_path / "theirs")
  assert encoder.max_length == parts["max_length"]
  np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-6)
  encoder.save(tmp_path / "ours")
  exported = model2vec.StaticModel.from_pretrained(tmp_path / "ours")
  np.testing.assert_allclose(exported.encode(texts), expected, atol=1e-6)
  np.testing.assert_array_equal(vmsst.load(tmp_path / "ours").encode(texts), encoder.encode(texts))
  (tmp_path / "theirs" / "modules.json").unlink()  # Older versions did not write this file.
  np.testing.assert_array_equal(
    vmsst.load(tmp_path / "theirs").encode(texts), encoder.encode(texts)
  )


def test_special_tokens_around_texts_cannot_be_exported(tmp_path):
  network = sentence_encoder.SentenceEncoder(static.StaticConfig(259, 8), 8, head=False)
  run = tiny_encoders.save_run(tmp_path / "run", tiny_encoders.model_of(network))
  encoder = vmsst.load(run)
  assert encoder.encode(["a b"]).shape == (1, 8)
  with pytest.raises(errors.InputError, match="special tokens"):
    encoder.save(tmp_path / "out")


def test_a_table_that_lacks_tokens_is_refused(tmp_path, model2vec):
  tokens = tokenizer("bert")
  model2vec.StaticModel(table(tokens.get_vocab_size()), tokens, {}).save_pretrained(tmp_path)
  from safetensors.numpy import save_file

  save_file({"embeddings": table(3)}, tmp_path / "model.safetensors")
  with pytest.raises(errors.InputError, match="the table has 3 rows"):
    vmsst.load(tmp_path)
