import json

import jax
import numpy as np
import pytest
from etils import epath
from flax import traverse_util

import vmsst
from vmsst import cli
from vmsst.bitext import readers
from vmsst.checkpoints import encoder_json, t5x
from vmsst.networks import sentence_encoder, t5
from vmsst.text import vocabularies
from vmsst.vectors import bitext_vectors

PAIRS = [("eins", "one"), ("", "nothing"), ("zwei und drei", "two and three")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A checkpoint of an untrained encoder."""

  class Model:
    network = sentence_encoder = sentence_encoder.SentenceEncoder(
      t5.T5Config(
        vocab_size=259, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1
      ),
      latent_dim=5,
    )
    vocabulary = vocabularies.ByteVocabulary()
    max_length = 20

  folder = tmp_path_factory.mktemp("run")
  shapes = jax.eval_shape(Model.network.init, jax.random.key(0), np.ones((1, 4), np.int32))
  rng = np.random.default_rng(0)
  params = {
    name: rng.normal(size=x.shape).astype(np.float32)
    for name, x in traverse_util.flatten_dict(shapes["params"], sep="/").items()
  }
  t5x.write_params(epath.Path(folder / "checkpoint_3"), params)
  encoder_json.save_encoder_assets(Model, folder)
  return folder


def test_every_line_has_the_vectors_that_the_encoder_gives(run, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(bitext_vectors, "_WINDOW", 4)
  (tmp_path / "data").mkdir()
  path = tmp_path / "data" / "x.de-en.tsv"
  path.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
  out = str(tmp_path / "out")
  assert cli.main(["data", "embed", str(run), out, str(path)]) == 0
  assert "x.de-en.tsv.npy: 3 pairs of vectors of dimension 5" in capsys.readouterr().out
  (file,) = readers.find_bitext(str(path))
  found = bitext_vectors.open_vectors(out, file)
  assert isinstance(found, np.memmap)
  encoder = vmsst.load(run)
  for side in (0, 1):
    expected = encoder.encode([pair[side] for pair in PAIRS])
    np.testing.assert_allclose(found[:, side], expected, atol=2e-6)
  description = json.loads((tmp_path / "out" / "description.json").read_text())
  assert description["encoder"] == str(run / "checkpoint_3")
  assert description["files"]["data/x.de-en.tsv.npy"]["lines"] == 3
