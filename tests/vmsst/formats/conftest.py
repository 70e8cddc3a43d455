"""Fixtures for tests of formats: sentences, vocabularies, and packages to compare with."""

import gzip

import pytest
import tiny_tokenizers

from vmsst.data import sample, vocabularies


@pytest.fixture
def st():
  return pytest.importorskip("sentence_transformers", reason="needs it to compare with")


@pytest.fixture
def torch():
  return pytest.importorskip("torch", reason="needs torch to compare with")


@pytest.fixture
def theirs():
  return pytest.importorskip("transformers", reason="needs transformers to compare with")


LANGUAGES = ("deu", "fra", "rus", "cmn", "ara", "jpn", "hin", "tam", "ell", "kor")


@pytest.fixture(scope="session")
def sentences(data_root):
  """Returns 200 real sentences in ten languages."""
  found = []
  for code in LANGUAGES:
    path = data_root / "tatoeba" / f"tatoeba.{code}-eng.{code}.gz"
    found += gzip.decompress(path.read_bytes()).decode().split("\n")[:20]
  return found


@pytest.fixture(scope="session")
def vocabulary_of(tmp_path_factory):
  folder = tmp_path_factory.mktemp("vocabularies")
  text = ["the quick brown fox", "ein Satz, noch ein Satz", "οδός και σας", "भारत में", "日本語"]
  kinds = {
    "unigram": {"byte_fallback": True, "vocab_size": 400},
    # Like the vocabulary of EMS: no EOS token, and symbols for languages.
    "ems": {"unk_id": 1, "eos_id": -1, "model_type": "bpe", "control_symbols": ["<2en>"]},
  }

  def make(kind):
    if kind == "sample":
      return vocabularies.SentencePieceVocabulary(sample.vocabulary_path())
    if kind == "bytes":
      return vocabularies.ByteVocabulary(lowercase=True)
    path = folder / f"{kind}.model"
    path.write_bytes(tiny_tokenizers.sentencepiece_model(text, **{"vocab_size": 80, **kinds[kind]}))
    return vocabularies.SentencePieceVocabulary(str(path), lowercase=True)

  return make
