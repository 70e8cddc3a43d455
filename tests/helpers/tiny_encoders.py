"""Sentence encoders small enough to build in a test, and the folders of their runs."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import safetensors.numpy
from etils import epath
from flax import traverse_util

from vmsst.data import vocabularies
from vmsst.formats import encoder_json, t5x
from vmsst.networks import sentence_encoder, t5, transformer

BYTES = vocabularies.ByteVocabulary()


def t5_config(**changes):
  """Returns the sizes of a stack with one layer of width 8 for bytes, with `changes`."""
  sizes = {"emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 8, "num_encoder_layers": 1}
  return t5.T5Config(**{"vocab_size": 259, **sizes, **changes})


def bert_config(**changes):
  """Returns the sizes of an encoder with one layer of width 8 for bytes, with `changes`."""
  sizes = {"emb_dim": 8, "num_heads": 2, "mlp_dim": 8, "num_layers": 1, "max_positions": 9}
  return transformer.TransformerConfig(**{"vocab_size": 259, **sizes, **changes})


def model_of(sentence_encoder, vocabulary=BYTES, max_length=20, network=None):
  """Returns the attributes of a model that `encoder.json` describes."""
  return types.SimpleNamespace(
    sentence_encoder=sentence_encoder,
    network=network or sentence_encoder,
    vocabulary=vocabulary,
    max_length=max_length,
  )


def random_params(network, seed=0):
  """Returns parameters of about their initial scale, without compiling the initializers.

  Norms and biases are random too: their initial values would hide swaps.
  """
  shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
  rng = np.random.default_rng(seed)

  def fill(path, leaf):
    name = path[-1].key
    scale = {"kernel": leaf.shape[0] ** -0.5, "embedding": 1.0}.get(name, 0.1)
    return rng.normal(float(name == "scale"), scale, leaf.shape).astype(np.float32)

  return jax.tree_util.tree_map_with_path(fill, shapes)


def flat(params):
  """Returns NumPy arrays by the path of the parameter, as checkpoints of other kinds do."""
  return {k: np.asarray(x) for k, x in traverse_util.flatten_dict(params, sep="/").items()}


def read_arrays(checkpoint):
  """Returns the arrays of a checkpoint by name."""
  stored = t5x.open_params(epath.Path(checkpoint))
  return {name: tensor.read() for name, tensor in stored.items()}


def save_run(folder, model, params=None, *, step=0, **assets):
  """Saves a run of `model`, by default with random parameters; returns `folder`."""
  encoder_json.save_encoder_assets(model, folder, **assets)
  params = random_params(model.network) if params is None else params
  t5x.write_params(epath.Path(folder / f"checkpoint_{step}"), flat(params))
  return folder


def save_export(folder, model, params=None):
  """Saves a model's encoder in the format of `vmsst export safetensors`."""
  encoder_json.save_encoder_assets(model, folder)
  params = random_params(model.network) if params is None else params
  safetensors.numpy.save_file(flat(params), folder / "model.safetensors")


def save_training_checkpoint(folder, step, params):
  """Saves a checkpoint as training does, with optimizer state in addition to the parameters."""
  optimizer = jax.tree.map(lambda x: {"v": jnp.zeros_like(x)}, params)
  tree = {"target": params, "state": {"step": jnp.int32(step), "param_states": optimizer}}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    checkpointer.save(folder / f"checkpoint_{step}" / "state", args=ocp.args.PyTreeSave(tree))


T5 = t5_config(
  vocab_size=3700, emb_dim=16, num_encoder_layers=2, relpos_buckets=8, relpos_max_distance=12
)
# Its kernels are larger than a page.
BERT = bert_config(
  vocab_size=400, emb_dim=16, mlp_dim=80, num_layers=2, max_positions=30, initializer_std=0.3
)


def encoder(config, width=16, **options):
  """Returns a network with vectors of `width` dimensions."""
  return sentence_encoder.SentenceEncoder(config, width, **options)


NETWORKS = {
  "t5": encoder(T5, 12),
  "t5 scanned": encoder(
    dataclasses.replace(T5, scan_layers=True, dtype="bfloat16"), 12, pooling="max", normalize=True
  ),
  "ems": encoder(BERT, head=False),
  "labse": encoder(
    dataclasses.replace(BERT, num_token_types=2, activation="gelu"),
    8,
    head=False,
    pooling="cls",
    pooler_dim=8,
    normalize=True,
  ),
  "e5": encoder(dataclasses.replace(BERT, position_offset=2, activation="relu"), head=False),
  "cls": encoder(dataclasses.replace(BERT, activation="relu", position_offset=1), 8, pooling="cls"),
  "last": encoder(dataclasses.replace(BERT, activation="gelu_tanh"), head=False, pooling="last"),
}
