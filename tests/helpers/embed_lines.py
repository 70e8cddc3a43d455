"""Lines for `vmsst embed`, and a small encoder of them: a random T5 over bytes."""

import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from safetensors.numpy import save_file

from vmsst.checkpoints import encoder_json
from vmsst.data import vocabularies
from vmsst.networks import sentence_encoder, t5

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
WIDTH = 64


def make_lines(count: int) -> Iterator[str]:
  """Yields numbers spelled in words, distinct except for every 97th line, which is empty."""
  for number in range(count):
    digits = str(number * 7919)
    yield "" if number % 97 == 96 else " ".join(WORDS[int(digit)] for digit in digits)


def make_encoder(folder: pathlib.Path) -> None:
  """Writes a small encoder with random weights in the format of `vmsst export safetensors`."""
  config = t5.T5Config(
    vocab_size=259,
    emb_dim=WIDTH,
    num_heads=2,
    head_dim=32,
    mlp_dim=WIDTH,
    num_encoder_layers=1,
  )
  network = sentence_encoder.SentenceEncoder(config, WIDTH, head=False)

  class Model:
    sentence_encoder = network
    vocabulary = vocabularies.ByteVocabulary()
    max_length = 64

  Model.network = network
  encoder_json.save_encoder_assets(Model, folder)
  params = jax.jit(network.init)(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
  flat = traverse_util.flatten_dict(params, sep="/")
  save_file({name: np.asarray(value) for name, value in flat.items()}, folder / "model.safetensors")
