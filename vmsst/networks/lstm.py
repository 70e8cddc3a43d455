"""LASER's networks: a bidirectional LSTM encoder and a one-layer LSTM decoder.

Each layer multiplies its inputs by the gate kernels of both directions in one matmul for all steps.
The loop over time contains only the recurrent matmul, for both directions at once. In the backward
pass, the loop collects the gradients of the gates, and a single matmul after the loop computes the
gradient of the recurrent kernel.

Axes: `E` width of token embeddings, `R` reading directions, `C` width of an LSTM state, `Q` = 4 C
for the four gates of a layer (input, forget, cell, output). Inside the networks, time is the first
axis.

References: Artetxe and Schwenk 2019 (LASER), with details from LASER's released training code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from vmsst import errors
from vmsst.arrays import layouts
from vmsst.networks import dropout, t5


@dataclasses.dataclass(frozen=True)
class LstmConfig:
  """Configuration of LASER's networks; all fields are plain values that gin can bind and save.

  Attributes:
    vocab_size: Number of rows in a token table (V); at least the vocabulary size.
    emb_dim: Width of token embeddings (E).
    hidden_dim: Width of the encoder's states in one direction; its hidden states are twice as wide.
    num_layers: Number of encoder layers.
    decoder_dim: Width of the decoder state.
    decoder_output_dim: Width of the decoder's output, which is the input of the vocabulary
      projection.
    language_dim: Width of the decoder's language embedding.
    initializer_range: Parameters are initialized uniformly between -`initializer_range` and
      `initializer_range`.
    dropout_rate: Dropout probability for the output of each encoder layer.
    dtype: Compute dtype, "float32" or "bfloat16". Parameters, gate activations and cells are always
      float32.
  """

  vocab_size: int
  emb_dim: int = 320
  hidden_dim: int = 512
  num_layers: int = 5
  decoder_dim: int = 2048
  decoder_output_dim: int = 512
  language_dim: int = 32
  initializer_range: float = 0.1
  dropout_rate: float = 0.0
  dtype: str = "float32"

  def __post_init__(self):
    errors.check_sizes(self)
    errors.check_choice("LstmConfig.dtype", self.dtype, t5.DTYPES)
    errors.check_number("LstmConfig.initializer_range", self.initializer_range, "(0, inf)")
    errors.check_number("LstmConfig.dropout_rate", self.dropout_rate, "[0, 1)")

  @property
  def width(self) -> int:
    """Width of the encoder's hidden states, with both directions concatenated."""
    return 2 * self.hidden_dim

  def token_embedder(self) -> t5.TokenEmbedder:
    """Returns the encoder's token table."""
    return t5.TokenEmbedder(self.vocab_size, self.emb_dim, self.dtype)

  def encoder(self) -> "LstmEncoder":
    """Returns the encoder."""
    return LstmEncoder(self)


@jax.custom_vjp
def lstm(
  gates_TRBQ: Float[Array, "T R B Q"],
  kernel_RCQ: Float[Array, "R C Q"],
  mask_TRB: Bool[Array, "T R B"],
  hidden_RBC: Float[Array, "R B C"],
  cell_RBC: Float[Array, "R B C"],
) -> Float[Array, "T R B C"]:
  """Returns the LSTM's hidden states after each step; skipped steps leave the states unchanged.

  With the gates i, f, g, o = gates_t + h_{t-1} kernel:

    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
    h_t = sigmoid(o) tanh(c_t)

  Args:
    gates_TRBQ: Contribution of the inputs to the gates before activation, including biases.
    kernel_RCQ: Kernel of the recurrent matmul, with the dtype of `gates_TRBQ`.
    mask_TRB: False at steps to skip.
    hidden_RBC: Initial hidden states, with the dtype of `gates_TRBQ`.
    cell_RBC: Initial cells, float32.
  """
  return _lstm_forward(gates_TRBQ, kernel_RCQ, mask_TRB, hidden_RBC, cell_RBC)[0]


def _recurrent(hidden_RBC: jax.Array, kernel_RCQ: jax.Array) -> jax.Array:
  return jnp.einsum("rbc,rcq->rbq", hidden_RBC, kernel_RCQ, preferred_element_type=jnp.float32)


def _activate(gates_RBQ: jax.Array) -> tuple[jax.Array, ...]:
  """Returns the activated gates i, f, g, o."""
  input_RBC, forget_RBC, new_RBC, output_RBC = jnp.split(gates_RBQ, 4, axis=-1)
  sigmoid = jax.nn.sigmoid
  return sigmoid(input_RBC), sigmoid(forget_RBC), jnp.tanh(new_RBC), sigmoid(output_RBC)


def _lstm_forward(
  gates_TRBQ: jax.Array,
  kernel_RCQ: jax.Array,
  mask_TRB: jax.Array,
  hidden_RBC: jax.Array,
  cell_RBC: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """Returns the hidden states, and the residuals for the backward pass."""

  def step(carry, inputs):
    before_RBC, memory_RBC = carry
    gates_RBQ, mask_RB = inputs
    gates_RBQ = gates_RBQ.astype(jnp.float32) + _recurrent(before_RBC, kernel_RCQ)
    input_RBC, forget_RBC, new_RBC, output_RBC = _activate(gates_RBQ)
    cell_RBC = forget_RBC * memory_RBC + input_RBC * new_RBC
    hidden_RBC = (output_RBC * jnp.tanh(cell_RBC)).astype(before_RBC.dtype)
    cell_RBC = jnp.where(mask_RB[..., None], cell_RBC, memory_RBC)
    hidden_RBC = jnp.where(mask_RB[..., None], hidden_RBC, before_RBC)
    return (hidden_RBC, cell_RBC), (hidden_RBC, cell_RBC, gates_RBQ)

  _, (hidden_TRBC, cell_TRBC, gates_TRBQ) = jax.lax.scan(
    step, (hidden_RBC, cell_RBC), (gates_TRBQ, mask_TRB)
  )
  # Shift the states by one step to get the states before each step.
  before_TRBC = jnp.concatenate([hidden_RBC[None], hidden_TRBC[:-1]])
  memory_TRBC = jnp.concatenate([cell_RBC[None], cell_TRBC[:-1]])
  return hidden_TRBC, (gates_TRBQ, kernel_RCQ, mask_TRB, before_TRBC, memory_TRBC)


def _lstm_backward(saved: tuple[jax.Array, ...], grad_TRBC: jax.Array) -> tuple[Any, ...]:
  """Returns the gradients with respect to the arguments of `lstm`; None for the mask."""
  gates_TRBQ, kernel_RCQ, mask_TRB, before_TRBC, memory_TRBC = saved

  def step(carry, inputs):
    later_RBC, cell_grad_RBC = carry
    grad_RBC, gates_RBQ, mask_RB, memory_RBC = inputs
    grad_RBC = grad_RBC.astype(jnp.float32) + later_RBC
    input_RBC, forget_RBC, new_RBC, output_RBC = _activate(gates_RBQ)
    tanh_RBC = jnp.tanh(forget_RBC * memory_RBC + input_RBC * new_RBC)
    total_RBC = cell_grad_RBC + grad_RBC * output_RBC * (1 - tanh_RBC**2)
    gates_grad_RBQ = jnp.concatenate(
      [
        total_RBC * new_RBC * input_RBC * (1 - input_RBC),
        total_RBC * memory_RBC * forget_RBC * (1 - forget_RBC),
        total_RBC * input_RBC * (1 - new_RBC**2),
        grad_RBC * tanh_RBC * output_RBC * (1 - output_RBC),
      ],
      axis=-1,
    )
    mask_RB1 = mask_RB[..., None]
    gates_grad_RBQ = jnp.where(mask_RB1, gates_grad_RBQ, 0.0).astype(kernel_RCQ.dtype)
    earlier_RBC = _recurrent(gates_grad_RBQ, kernel_RCQ.swapaxes(1, 2))
    earlier_RBC = jnp.where(mask_RB1, earlier_RBC, grad_RBC)
    cell_grad_RBC = jnp.where(mask_RB1, total_RBC * forget_RBC, cell_grad_RBC)
    return (earlier_RBC, cell_grad_RBC), gates_grad_RBQ

  zeros_RBC = jnp.zeros_like(memory_TRBC[0])
  (hidden_grad_RBC, cell_grad_RBC), gates_grad_TRBQ = jax.lax.scan(
    step, (zeros_RBC, zeros_RBC), (grad_TRBC, gates_TRBQ, mask_TRB, memory_TRBC), reverse=True
  )
  # Compute the kernel's gradient in one matmul over all steps. Inside the loop, every step would
  # have to read and write the whole gradient.
  kernel_grad_RCQ = jnp.einsum(
    "trbc,trbq->rcq", before_TRBC, gates_grad_TRBQ, preferred_element_type=jnp.float32
  )
  return (
    gates_grad_TRBQ,
    kernel_grad_RCQ.astype(kernel_RCQ.dtype),
    None,
    hidden_grad_RBC.astype(before_TRBC.dtype),
    cell_grad_RBC,
  )


lstm.defvjp(_lstm_forward, _lstm_backward)


def uniform(limit: float) -> Callable[..., jax.Array]:
  """Returns an initializer that is uniform between -`limit` and `limit`."""

  def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init


def _parameter(
  config: LstmConfig, name: str, shape: tuple[int, ...], axes: tuple[str, ...]
) -> jax.Array:
  """Creates a parameter in the calling module and returns it in the compute dtype."""
  init = uniform(config.initializer_range)
  return partitioning.param_with_axes(name, init, shape, jnp.float32, axes=axes).astype(
    config.dtype
  )


def _product(x_TBD: jax.Array, kernel_DQ: jax.Array) -> jax.Array:
  """Returns `x @ kernel`, [T, B, Q], computed as a 2-D matmul (faster on XLA's CPU backend).

  If the batch is sharded, the matmul is 3-D, because merging T and B would move all rows between
  devices.
  """
  length, batch, width = x_TBD.shape
  if layouts.local_size(batch=batch) < batch:
    return layouts.constrain(x_TBD @ kernel_DQ, ("length", "batch", None))
  return layouts.linear(x_TBD.reshape(-1, width), kernel_DQ).reshape(length, batch, -1)


class BiLstmLayer(nn.Module):
  """A bidirectional layer that concatenates the states of its two directions.

  Attributes:
    config: Configuration of the encoder.
  """

  config: LstmConfig

  @nn.compact
  def __call__(
    self, x_TBD: Float[Array, "T B D"], mask_TB: Bool[Array, "T B"]
  ) -> Float[Array, "T B M"]:
    """Returns [forward; backward] states of width M = 2 C; states at padding are zeros."""
    width = self.config.hidden_dim
    # Call the axis of the gates "kv", because T5X's rules replicate "kv". If the gates were sharded
    # over devices, the loop would have to gather them at every step.
    input_kernel = _parameter(
      self.config, "input_kernel", (x_TBD.shape[-1], 8 * width), ("embed", "kv")
    )
    recurrent_kernel_RCQ = _parameter(
      self.config, "recurrent_kernel", (2, width, 4 * width), ("stack", "embed", "kv")
    )
    bias = _parameter(self.config, "bias", (8 * width,), ("kv",))

    gates_TBRQ = (_product(x_TBD, input_kernel) + bias).reshape(*x_TBD.shape[:2], 2, -1)
    # The backward direction starts at the last position, which is often padding. Because steps at
    # padding are skipped, the state is still the initial state when this direction reaches the last
    # real token.
    states_TRBC = lstm(
      jnp.stack([gates_TBRQ[:, :, 0], gates_TBRQ[::-1, :, 1]], axis=1),
      recurrent_kernel_RCQ,
      jnp.stack([mask_TB, mask_TB[::-1]], axis=1),
      jnp.zeros((2, x_TBD.shape[1], width), x_TBD.dtype),
      jnp.zeros((2, x_TBD.shape[1], width), jnp.float32),
    )
    joined_TBM = jnp.concatenate([states_TRBC[:, 0], states_TRBC[::-1, 1]], axis=-1)
    return jnp.where(mask_TB[..., None], joined_TBM, 0)


class LstmEncoder(nn.Module):
  """A stack of bidirectional LSTM layers over embedded tokens.

  Attributes:
    config: Configuration of the encoder; decoder sizes in it are ignored.
  """

  config: LstmConfig

  @nn.compact
  def __call__(
    self,
    embedded_BTE: Float[Array, "B T E"],
    mask_BT: Bool[Array, "B T"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B T D"]:
    """Returns hidden states of width D = 2 `hidden_dim`, in the compute dtype; zeros at padding.

    Args:
      embedded_BTE: Token vectors, including any vectors that the caller added to them.
      mask_BT: True at real tokens.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.
    """
    cfg = self.config
    x_TBD = embedded_BTE.astype(cfg.dtype).swapaxes(0, 1)
    for i in range(cfg.num_layers):
      x_TBD = BiLstmLayer(cfg, name=f"layers_{i}")(x_TBD, mask_BT.T)
      x_TBD = dropout.Dropout(cfg.dropout_rate)(x_TBD, deterministic=deterministic)
      x_TBD = layouts.constrain(x_TBD, ("length", "batch", "embed"))
    return x_TBD.swapaxes(0, 1)


class LstmDecoder(nn.Module):
  """Computes the states that predict the next token of a sentence, given the sentence vector.

  The input at every step is [token; sentence; language]. The initial state is a linear function of
  the sentence vector. The sentence and language vectors are the same at all steps, so the matmuls
  that use these vectors are computed once.

  Attributes:
    config: Configuration of the decoder; `emb_dim` is the only encoder size that the decoder uses.
    num_languages: Number of rows in the table of language vectors.
  """

  config: LstmConfig
  num_languages: int

  @nn.compact
  def __call__(
    self,
    embedded_BTE: Float[Array, "B T E"],
    languages_B: Int[Array, "B"],
    sentence_BZ: Float[Array, "B Z"],
  ) -> Float[Array, "B T O"]:
    """Returns states, [B, T, decoder_output_dim]; state t predicts token t from earlier tokens.

    Padding must be at the end; states at padding are undefined.

    Args:
      embedded_BTE: Vectors of the tokens to predict. The decoder shifts these vectors right by one
        position and inserts a learned start vector (in LASER, the vector of the EOS token).
      languages_B: Target language of each row; an index outside the table gives NaN.
      sentence_BZ: Sentence vectors.
    """
    cfg = self.config
    batch, length, width = *embedded_BTE.shape[:2], cfg.decoder_dim
    sentence_BZ = sentence_BZ.astype(cfg.dtype)

    def kernel(name: str, inputs: int, outputs: int) -> jax.Array:
      return _parameter(cfg, f"{name}_kernel", (inputs, outputs), ("embed", "kv"))

    def bias(name: str, outputs: int) -> jax.Array:
      return _parameter(cfg, f"{name}_bias", (outputs,), ("kv",))

    table = _parameter(
      cfg, "language_embedding", (self.num_languages, cfg.language_dim), ("relpos_buckets", "embed")
    )
    language_BG = jnp.take(table, languages_B, axis=0)
    start_E = _parameter(cfg, "start_embedding", (cfg.emb_dim,), ("embed",))
    start_1BE = jnp.broadcast_to(start_E, (1, batch, cfg.emb_dim))
    tokens_TBE = jnp.concatenate([start_1BE, embedded_BTE[:, :-1].astype(cfg.dtype).swapaxes(0, 1)])

    # The contribution of the sentence and the language to the gates is the same at every step.
    once_BQ = sentence_BZ @ kernel("sentence", sentence_BZ.shape[-1], 4 * width)
    once_BQ += language_BG @ kernel("language", cfg.language_dim, 4 * width)
    once_BQ += bias("gates", 4 * width)
    gates_TBQ = _product(tokens_TBE, kernel("token", cfg.emb_dim, 4 * width)) + once_BQ

    state_BM = sentence_BZ @ kernel("initial_state", sentence_BZ.shape[-1], 2 * width)
    state_BM += bias("initial_state", 2 * width)
    recurrent_kernel_RCQ = _parameter(
      cfg, "recurrent_kernel", (1, width, 4 * width), ("stack", "embed", "kv")
    )
    states_TRBC = lstm(
      gates_TBQ[:, None],
      recurrent_kernel_RCQ,
      jnp.ones((length, 1, batch), bool),
      state_BM[None, :, :width],
      state_BM[None, :, width:].astype(jnp.float32),
    )
    output_TBO = _product(states_TRBC[:, 0], kernel("output", width, cfg.decoder_output_dim))
    output_TBO += bias("output", cfg.decoder_output_dim)
    return layouts.constrain(output_TBO.swapaxes(0, 1), ("batch", "length", "embed"))
