"""Microbatches and models whose loss compares the pairs of a batch: all models of the library."""

import importlib
import inspect
import pkgutil

import pytest
import toy_runs

import ems_jax.models
import vmsst.models
from ems_jax.networks import ems, laser
from vmsst import errors
from vmsst.data import vocabularies
from vmsst.models import base
from vmsst.networks import lstm, sentence_encoder, t5, transformer
from vmsst.networks import vmsst as networks

PAIRS, LENGTH, WIDTH = 4, 3, 4
T5 = t5.T5Config(
  vocab_size=12, emb_dim=WIDTH, num_heads=1, head_dim=4, mlp_dim=4, num_encoder_layers=1
)
BERT = transformer.TransformerConfig(
  vocab_size=12, emb_dim=WIDTH, num_heads=1, num_layers=1, mlp_dim=4, max_positions=LENGTH
)
ENCODER = sentence_encoder.SentenceEncoder(T5, latent_dim=WIDTH)
VMSST = networks.VmsstNetwork(T5, latent_dim=WIDTH)
# The network of each model, and whether its loss compares pairs.
MODELS = {
  "ContrastiveModel": (ENCODER, True),
  "HardNegativesModel": (ENCODER, True),
  "SoftContrastiveModel": (ENCODER, True),
  "DistillationModel": (ENCODER, False),
  "BitranslationModel": (networks.BitranslationNetwork(T5, latent_dim=WIDTH), False),
  "VmsstModel": (VMSST, False),
  "VmsstContrastiveModel": (VMSST, True),
  "EmsModel": (ems.EmsNetwork(BERT, language_dim=2, projection_dim=WIDTH), True),
  "LaserModel": (
    laser.LaserNetwork(
      lstm.LstmConfig(vocab_size=12, emb_dim=WIDTH, num_layers=1, hidden_dim=2),
      target_emb_dim=2, decoder_dim=4, decoder_output_dim=4,
    ),
    False,
  ),
}  # fmt: skip


def model_classes():
  """Returns all models of the library, by name."""
  found = {}
  for package in (vmsst.models, ems_jax.models):
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
      for name, value in vars(importlib.import_module(info.name)).items():
        if inspect.isclass(value) and issubclass(value, base.BitextModel):
          found[name] = value
  return {
    name: value for name, value in found.items() if "loss_fn" not in value.__abstractmethods__
  }


def make_model(name, **options):
  network, _ = MODELS[name]
  vocabulary = vocabularies.ByteVocabulary()
  return model_classes()[name](network=network, vocabulary=vocabulary, **options)


def test_every_model_is_listed_here():
  assert set(MODELS) == set(model_classes())


@pytest.mark.parametrize("name", MODELS)
def test_microbatches_need_permission_if_pairs_are_compared(name):
  for count in (1, 4) if not MODELS[name][1] else (1,):
    make_model(name).check_microbatches(count)
  if not MODELS[name][1]:
    return
  with pytest.raises(errors.InputError) as refusal:
    # The trainer asks the model.
    toy_runs.make_trainer(num_microbatches=2)(
      model=make_model(name), **dict.fromkeys(("train_state", "partitioner", "rng")),
      **dict.fromkeys(("summary_dir", "train_state_axes")), eval_names=[],
    )  # fmt: skip
  message = str(refusal.value)
  assert f"NUM_MICROBATCHES=2 leaves a pair of {name} only 1/2 of its negatives" in message
  assert "EMBEDDING_SLICES=2" in message
  assert "ALLOW_FEWER_NEGATIVES=True" in message
  make_model(name, allow_fewer_negatives=True).check_microbatches(4)
  make_model(name, embedding_slices=2)  # the way out exists
  if name == "EmsModel":  # without negatives
    network = ems.EmsNetwork(BERT, language_dim=2, contrastive=False)
    vocabulary = vocabularies.ByteVocabulary()
    model_classes()[name](network=network, vocabulary=vocabulary).check_microbatches(4)
