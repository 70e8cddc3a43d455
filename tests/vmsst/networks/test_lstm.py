import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from vmsst.networks import lstm

# With LASER's range, 0.1, small networks are almost linear.
CONFIG = lstm.LstmConfig(
  vocab_size=50, emb_dim=6, hidden_dim=5, num_layers=2, decoder_dim=7, decoder_output_dim=4,
  language_dim=3, initializer_range=0.5,
)  # fmt: skip
LENGTHS = (6, 3, 1, 4)
MASK_BT = np.arange(6) < np.array(LENGTHS)[:, None]
EMBEDDED_BTE = np.random.default_rng(0).normal(size=(4, 6, 6)).astype(np.float32)
SENTENCE_BZ = np.random.default_rng(1).normal(size=(4, 10)).astype(np.float32)
LANGUAGES_B = np.array([0, 2, 1, 2])


def encoder(**changes):
  return lstm.LstmEncoder(dataclasses.replace(CONFIG, **changes))


def decoder(**changes):
  return lstm.LstmDecoder(dataclasses.replace(CONFIG, **changes), num_languages=3)


@pytest.fixture(scope="module")
def params():
  return jax.jit(encoder().init)(jax.random.key(0), EMBEDDED_BTE, MASK_BT)["params"]


@pytest.fixture(scope="module")
def decoder_params():
  init = jax.jit(decoder().init)
  return init(jax.random.key(1), EMBEDDED_BTE, LANGUAGES_B, SENTENCE_BZ)["params"]


def lstm_encode(params, embedded_BTE=EMBEDDED_BTE, mask_BT=MASK_BT, **changes):
  return jax.jit(encoder(**changes).apply)({"params": params}, embedded_BTE, mask_BT)


def decode(params, embedded_BTE=EMBEDDED_BTE, languages_B=LANGUAGES_B, **changes):
  apply = jax.jit(decoder(**changes).apply)
  return apply({"params": params}, embedded_BTE, languages_B, SENTENCE_BZ)


@pytest.mark.filterwarnings("ignore")  # those of another library
def test_states_equal_those_of_torch(params):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  reference = torch.nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)

  weights = {name: torch.zeros_like(weight) for name, weight in reference.named_parameters()}
  for i in range(2):  # its two biases are one here
    layer = {name: torch.tensor(np.array(array)) for name, array in params[f"layers_{i}"].items()}
    for direction, suffix in enumerate(("", "_reverse")):
      part = slice(20 * direction, 20 * (direction + 1))
      weights[f"weight_ih_l{i}{suffix}"] = layer["input_kernel"][:, part].T
      weights[f"weight_hh_l{i}{suffix}"] = layer["recurrent_kernel"][direction].T
      weights[f"bias_ih_l{i}{suffix}"] = layer["bias"][part]
  reference.load_state_dict(weights)
  inputs_BTE = torch.tensor(EMBEDDED_BTE)
  packed = torch.nn.utils.rnn.pack_padded_sequence(
    inputs_BTE, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
  )
  expected_BTD, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
  np.testing.assert_allclose(lstm_encode(params), expected_BTD.detach().numpy(), atol=2e-6)


def test_gradients_equal_those_of_a_plain_loop():
  """With initial states, two directions, and skipped steps in the middle."""
  rng = np.random.default_rng(0)
  shapes = ((4, 2, 3, 12), (2, 3, 12), (2, 3, 3), (2, 3, 3))
  arrays = tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
  weight_TRBC = rng.normal(size=(4, 2, 3, 3)).astype(np.float32)
  mask_TRB = np.ones((4, 2, 3), bool)
  mask_TRB[1, 0, 0] = mask_TRB[2, 1, :2] = mask_TRB[0, 1, 2] = mask_TRB[3, 0, 1] = False

  def plain(gates_TRBQ, kernel_RCQ, mask_TRB, hidden_RBC, cell_RBC):
    states = []
    for gates_RBQ, mask_RB in zip(gates_TRBQ, mask_TRB, strict=True):
      gates_RBQ = gates_RBQ + jnp.einsum("rbc,rcq->rbq", hidden_RBC, kernel_RCQ)
      i, f, g, o = (gates_RBQ[..., 3 * n : 3 * n + 3] for n in range(4))
      new_RBC = jax.nn.sigmoid(f) * cell_RBC + jax.nn.sigmoid(i) * jnp.tanh(g)
      cell_RBC = jnp.where(mask_RB[..., None], new_RBC, cell_RBC)
      new_RBC = jax.nn.sigmoid(o) * jnp.tanh(new_RBC)
      hidden_RBC = jnp.where(mask_RB[..., None], new_RBC, hidden_RBC)
      states.append(hidden_RBC)
    return jnp.stack(states)

  def value_and_gradients(function):
    def value(gates_TRBQ, kernel_RCQ, hidden_RBC, cell_RBC):
      return jnp.sum(function(gates_TRBQ, kernel_RCQ, mask_TRB, hidden_RBC, cell_RBC) * weight_TRBC)

    return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3)))(*arrays)

  jax.tree.map(
    lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5),
    value_and_gradients(lstm.lstm),
    value_and_gradients(plain),
  )


def test_a_language_outside_the_table_gives_nan(decoder_params):
  assert np.isnan(decode(decoder_params, languages_B=np.array([0, 0, 0, 3]))[3]).all()


def test_every_parameter_starts_uniform():
  for net, inputs in (
    (encoder(initializer_range=0.1), (EMBEDDED_BTE, MASK_BT)),
    (decoder(initializer_range=0.1), (EMBEDDED_BTE, LANGUAGES_B, SENTENCE_BZ)),
  ):
    variables = jax.jit(net.init)(jax.random.key(0), *inputs)
    for name, array in traverse_util.flatten_dict(variables["params"]).items():
      assert np.abs(array).max() <= 0.1, name
      if array.size > 100:
        assert np.std(array) == pytest.approx(0.1 / np.sqrt(3), rel=0.15), name
