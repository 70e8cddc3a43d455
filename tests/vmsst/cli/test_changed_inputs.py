"""Tests that commands never resume with, or search by, an encoder or text that has changed."""

import dataclasses
import shutil

import pytest
import tiny_encoders

import vmsst
from vmsst import cli
from vmsst.inference import loading
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks

NETWORK = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)


def save(folder, seed, network=NETWORK, **options):
  shutil.rmtree(folder, ignore_errors=True)
  model = tiny_encoders.model_of(network, **options)
  return tiny_encoders.save_run(folder, model, tiny_encoders.random_params(network, seed))


@pytest.fixture
def run(tmp_path):
  return save(tmp_path / "run", 0)


@pytest.fixture
def text(tmp_path):
  path = tmp_path / "text.txt"
  path.write_text("one\ntwo\nthree\n")
  return path


def command(*words):
  return cli.main([*map(str, words)])


def test_the_digest_is_of_content(run, tmp_path):
  digest = vmsst.load(run).digest
  assert vmsst.load(shutil.copytree(run, tmp_path / "copy")).digest == digest
  config = dataclasses.replace(NETWORK.config, dropout_rate=0.5)
  others = [
    save(tmp_path / "weights", 1),
    save(tmp_path / "length", 0, max_length=21),
    save(tmp_path / "network", 0, dataclasses.replace(NETWORK, config=config)),
    save(
      tmp_path / "vocabulary",
      0,
      vocabulary=dataclasses.replace(tiny_encoders.BYTES, lowercase=True),
    ),
  ]
  digests = {vmsst.load(folder).digest for folder in others}
  assert len(digests - {digest}) == len(others)
  assert loading.load(run, dtype="bfloat16").digest not in {digest, *digests}


def test_the_digest_of_a_translator_depends_on_its_decoder(tmp_path):
  network = networks.BitranslationNetwork(NETWORK.config, latent_dim=6)
  params = tiny_encoders.random_params(network)
  kernel_DV = params["logits_hidden"]["kernel"] + 1
  other = {**params, "logits_hidden": {"kernel": kernel_DV}}
  model = tiny_encoders.model_of(NETWORK, network=network)
  digests = []
  for name, weights in (("run", params), ("copy", params), ("other", other)):
    (tmp_path / name).mkdir()
    tiny_encoders.save_run(tmp_path / name, model, weights)
    digests.append(vmsst.load_translator(tmp_path / name).digest)
  assert digests[0] == digests[1] != digests[2]


def test_vectors_of_replaced_weights_are_neither_kept_nor_searched(run, text, tmp_path, capsys):
  folder = tmp_path / "vectors"
  assert command("embed", run, text, folder) == 0
  files = {path: path.read_bytes() for path in folder.iterdir()}
  assert command("embed", run, text, folder) == 0  # nothing to do
  moved = run.rename(tmp_path / "moved")
  assert command("embed", moved, text, folder) == 0  # the same encoder
  save(run, 1)
  capsys.readouterr()
  for words, message in (
    (("embed", run, text, folder), "has other vectors: encoder is "),
    (("search", text, text, folder), "has changed since it computed"),
    (
      ("mine", text, text, tmp_path / "out", "--vectors", folder, folder, "--encoder", run),
      "encoder",
    ),
  ):
    assert command(*words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "{" not in error
  assert {path: path.read_bytes() for path in folder.iterdir()} == files
  assert not (tmp_path / "out").exists()
  other = tmp_path / "other"
  assert command("embed", run, text, other) == 0
  assert command("mine", text, text, tmp_path / "out", "--vectors", folder, other) == 1
  assert "different encoders" in capsys.readouterr().err
  assert command("search", text, text, folder, "--encoder", moved) == 0


def test_a_changed_text_is_not_mixed_with_the_old_one(run, text, tmp_path, capsys):
  assert command("embed", run, text, tmp_path / "vectors") == 0
  text.write_text("one\ntwo\nfour\n")
  assert command("embed", run, text, tmp_path / "vectors") == 1
  assert f"other vectors: text is {text} (" in capsys.readouterr().err
  assert command("search", text, text, tmp_path / "vectors") == 1
  assert "of another text" in capsys.readouterr().err
