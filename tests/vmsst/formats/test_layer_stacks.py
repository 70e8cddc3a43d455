"""Networks read checkpoints and exports with scanned or separate layers."""

import dataclasses
import re

import numpy as np
import pytest
import tiny_encoders
from etils import epath

from vmsst import errors
from vmsst.encoder import loading
from vmsst.formats import t5x, tensors
from vmsst.networks import sentence_encoder, transformer
from vmsst.networks import vmsst as vmsst_networks

T5 = tiny_encoders.t5_config(num_encoder_layers=3)
BERT = transformer.TransformerConfig(
  vocab_size=259, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=3, max_positions=30
)
NETWORKS = {
  "t5": sentence_encoder.SentenceEncoder(T5, latent_dim=6),
  "bert": sentence_encoder.SentenceEncoder(BERT, latent_dim=6),
  # Stacks in lists, of different depths.
  "vmsst": vmsst_networks.VmsstNetwork(
    T5,
    latent_dim=6,
    num_decoder_layers=2,
    num_languages=2,
    language_encoder_groups=(0, 1),
  ),
}


def scanned(network):
  return network.clone(config=dataclasses.replace(network.config, scan_layers=True))


def stacked(params):
  found = {}
  for name, array in params.items():
    found.setdefault(re.sub(r"/layers_\d+", "/layers", name), []).append((name, array))
  return {
    name: np.stack([array for _, array in sorted(rows)]) if "/layers/" in name else rows[0][1]
    for name, rows in found.items()
  }


def save(folder, params, kind):
  folder.mkdir()
  if kind == "export":
    tensors.write_file(folder / "model.safetensors", params)
    return epath.Path(folder / "model.safetensors")
  t5x.write_params(epath.Path(folder / "checkpoint_0"), params)
  return epath.Path(folder / "checkpoint_0")


@pytest.mark.parametrize(
  ("name", "kind"),
  [
    ("t5", "export"),
    pytest.param("bert", "export", marks=pytest.mark.slow),
    ("vmsst", "checkpoint"),
  ],
)
def test_either_layout_is_restored_into_either_network(tmp_path, name, kind):
  network = NETWORKS[name]
  separate = tiny_encoders.flat(tiny_encoders.random_params(network))
  layouts = {network: separate, scanned(network): stacked(separate)}
  assert layouts[network].keys() != layouts[scanned(network)].keys()
  for i, params in enumerate(layouts.values()):
    saved = save(tmp_path / str(i), params, kind)
    for wanted, expected in layouts.items():
      found = tiny_encoders.flat(loading.restore_params(saved, wanted))
      assert found.keys() == expected.keys()
      for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)


def test_missing_and_unequal_layers_are_errors(tmp_path):
  network = NETWORKS["t5"]
  narrow = network.clone(config=dataclasses.replace(network.config, mlp_dim=7))
  params = tiny_encoders.flat(tiny_encoders.random_params(network))
  fewer = {
    name: array for name, array in params.items() if name != "encoder/layers_2/mlp/wo/kernel"
  }
  short = {name: x[:2] if "/layers/" in name else x for name, x in stacked(params).items()}
  for number, (stored, wanted, message) in enumerate(
    (
      (fewer, scanned(network), "parameter encoder/layers/mlp/wo/kernel is missing"),
      (short, network, r"parameter encoder/layers_2/.* is missing"),
      (stacked(params), narrow, r"has shape \(8, 8\), but .* requires \(8, 7\)"),
    )
  ):
    saved = save(tmp_path / str(number), stored, "export")
    with pytest.raises(errors.InputError, match=message):
      loading.restore_params(saved, wanted)
