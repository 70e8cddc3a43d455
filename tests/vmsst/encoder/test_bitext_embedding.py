import line_files
import numpy as np
import pytest
import tiny_encoders

import vmsst
from vmsst.data import readers
from vmsst.encoder import bitext_embedding
from vmsst.networks import sentence_encoder

PAIRS = [("eins", "one"), ("", "nothing"), ("zwei und drei", "two and three")]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=5)
  folder = tmp_path_factory.mktemp("run")
  return vmsst.load(tiny_encoders.save_run(folder, tiny_encoders.model_of(network), step=3))


def test_every_line_has_the_vectors_that_the_encoder_returns(encoder, tmp_path, monkeypatch):
  monkeypatch.setattr(bitext_embedding, "_WINDOW", 4)
  path = line_files.write_tsv(tmp_path / "x.de-en.tsv", PAIRS)
  (bitext,) = readers.find_bitext(str(path))
  facts = bitext_embedding.write_vectors(encoder, bitext, tmp_path / "x.npy")
  assert facts == {"lines": 3, "dimension": 5}
  vectors_N2D = np.load(tmp_path / "x.npy")
  for side in (0, 1):
    expected_ND = encoder.encode([pair[side] for pair in PAIRS])
    np.testing.assert_allclose(vectors_N2D[:, side], expected_ND, atol=2e-6)
