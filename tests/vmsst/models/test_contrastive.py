"""CONTRASTIVE, with and without hard negatives; tests/runs/test_every_model.py has the rest."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoders
import tiny_models
from flax import traverse_util

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.models import contrastive, gradient_caching, matryoshka
from vmsst.networks import sentence_encoder

B, K, S = 8, 3, 16


@pytest.fixture(scope="module")
def params():
  """Parameters so small that the softmax is not saturated."""
  network = tiny_models.pair_model().network
  return jax.tree.map(lambda x: 0.6 * x, tiny_models.random_params(network))


def by_loops(
  vectors, batch, *, similarity="dot_product", scale=1.0, mask_duplicates=False,
  share_negatives=True, symmetric=True,
):  # fmt: skip
  """Loss and accuracies of vectors of sources, targets and hard negatives, pair by pair."""
  source, target, wrong = vectors

  def score(x, y):
    length = np.linalg.norm(x) * np.linalg.norm(y) if similarity == "cosine" else 1.0
    return scale * float(x @ y) / length

  def text(tokens_T):
    return tuple(tokens_T[tokens_T != 0].tolist())

  texts = [{text(batch[side][i]) for side in ("inputs", "targets")} for i in range(B)]

  def is_rival(i, j):
    return i != j and not (mask_duplicates and texts[i] & texts[j])

  def mined_of(i, j):
    """Scores of a source with the hard negatives of a pair."""
    answers = set().union(*(texts[x] for x in range(B) if not is_rival(i, x)))
    found = []
    for k in range(K):
      tokens = text(batch["negatives"][j, k])
      if tokens and not (mask_duplicates and tokens in answers):
        found.append(score(source[i], wrong[j, k]))
    return found

  losses, forward_right, backward_right, mined_right = [], [], [], []
  for i in range(B):
    right = score(source[i], target[i])
    others = [j for j in range(B) if is_rival(i, j)]
    forward = [score(source[i], target[j]) for j in others]
    backward = [score(source[j], target[i]) for j in others]
    mined = mined_of(i, i)
    owners = range(B) if share_negatives else [i]
    rivals = [x for owner in owners for x in mined_of(i, owner)]
    directions = (forward + rivals, backward) if symmetric else (forward + rivals,)
    sums = (sum(map(math.exp, [right, *x])) for x in directions)
    losses.append(sum(map(math.log, sums)) / len(directions) - right)
    forward_right.append(right > max(forward))
    backward_right.append(right > max(backward))
    mined_right += [x < right for x in mined]
  accuracies = {
    "accuracy/forward": np.mean(forward_right),
    "accuracy/backward": np.mean(backward_right),
  }
  if mined_right:
    accuracies["accuracy/negatives"] = np.mean(mined_right)
  return np.mean(losses), accuracies


MUSE = {"share_negatives": False}


@pytest.mark.parametrize(
  ("is_mined", "options"),
  [
    (False, {}),
    (False, {"similarity": "cosine", "scale": 5.0, "matryoshka_dims": (4, 9)}),
    (False, {"similarity": "cosine", "scale": 7.0, "mask_duplicates": True}),
    (False, {"mask_duplicates": True, "embedding_slices": 4, "symmetric": False}),
    (True, {"similarity": "cosine", "scale": 10.0, "matryoshka_dims": (3,)}),
    (True, {"scale": 0.5, "mask_duplicates": True, "symmetric": False}),
    (True, {"scale": 0.5, "mask_duplicates": True, "embedding_slices": 2}),
    (True, {"similarity": "cosine", "scale": 10.0, "matryoshka_dims": (3,), **MUSE}),
    (True, {"scale": 0.5, "mask_duplicates": True, "embedding_slices": 2, **MUSE}),
  ],
)
def test_loss_and_metrics_are_those_of_loops(params, is_mined, options):
  options = dict(options)
  model, batch = (
    tiny_models.pair_model(**options),
    tiny_models.random_batch(B, B, (6, 9), (2, 60)),
  )
  batch["inputs"][5] = batch["inputs"][6]
  batch["targets"][3] = batch["targets"][0]
  batch["negatives"] = np.random.default_rng(0).integers(2, 60, (B, K, 7), dtype=np.int32)
  batch["negatives"][1, :, 3:] = 0
  batch["negatives"][0, 1] = batch["negatives"][2] = 0  # do not exist
  # A target that is the source of another pair, and hard negatives that equal the target, the
  # source, and the target of a pair with the same source.
  batch["targets"][7], batch["targets"][6, 7:] = 0, 0
  batch["targets"][7, :6] = batch["inputs"][1]
  batch["targets"][1, :3], batch["targets"][1, 3:] = batch["targets"][4, :3], 0  # a prefix
  batch["negatives"][6, 0] = batch["negatives"][5, 2] = batch["targets"][6, :7]
  batch["negatives"][4, 1] = np.pad(batch["inputs"][4], (0, 1))
  if not is_mined:
    batch["negatives"][:] = 0
  read = batch if is_mined else {side: batch[side] for side in ("inputs", "targets")}
  loss, found = tiny_models.evaluate(model.eval_fn, params, read)
  score_batch = tiny_models.jit(tiny_models.pair_model().score_batch)
  sides = (batch["inputs"], batch["targets"], batch["negatives"].reshape(-1, 7))
  source_BS, target_BS, wrong_NS = (np.float64(score_batch(params, {"inputs": x})) for x in sides)
  dims = options.pop("matryoshka_dims", ())
  options.pop("embedding_slices", None)
  losses = []
  for dim in (S, *dims):
    cut = (source_BS[:, :dim], target_BS[:, :dim], wrong_NS.reshape(B, K, S)[..., :dim])
    mean, accuracies = by_loops(cut, batch, **options)
    losses.append(mean)
    prefix = "" if dim == S else f"first_{dim}/"
    assert {name: found[f"{prefix}{name}"] for name in accuracies} == pytest.approx(accuracies)
    if prefix:
      assert found[f"{prefix}loss"] == pytest.approx(mean, rel=1e-4)
  assert [loss, found["loss"]] == pytest.approx([np.mean(losses)] * 2, rel=1e-4)
  real = sum(np.count_nonzero(batch[side]) for side in ("inputs", "targets"))
  assert found["tokens_per_example"] == pytest.approx(real / B)
  norms = np.linalg.norm(np.concatenate([source_BS, target_BS]), axis=1)
  assert found["embedding_norm"] == pytest.approx(norms.mean(), rel=1e-4)
  if is_mined:
    masked = 3 if options.get("mask_duplicates") else 0
    assert found["negatives_per_example"] == (B * K - 1 - K - masked) / B


@pytest.mark.parametrize("scan_layers", [False, True])
def test_the_loss_of_first_layers_is_the_loss_of_smaller_encoders(scan_layers):
  config = tiny_encoders.t5_config(
    vocab_size=60, emb_dim=S, head_dim=8, mlp_dim=16, num_encoder_layers=3
  )
  separate = sentence_encoder.SentenceEncoder(config, S)
  params = tiny_models.random_params(separate)
  encoder = dict(params["encoder"])
  layers = [encoder.pop(f"layers_{i}") for i in range(3)]
  scanned = dataclasses.replace(config, scan_layers=scan_layers)
  network = dataclasses.replace(separate, config=scanned, parent=None)
  options = {"similarity": "cosine", "scale": 5.0}
  plain = {"network": network, "vocabulary": vocabularies.ByteVocabulary()}
  one = contrastive.ContrastiveModel(**plain, **options, matryoshka_dims=(4,), embedding_slices=2)
  model = matryoshka.LayersModel(model=one, layers=(2, 1), **plain)
  batch = tiny_models.random_batch(B, B, (6, 9), (2, 60))
  given = params
  if scan_layers:
    given = {
      **params,
      "encoder": {**encoder, "layers": jax.tree.map(lambda *x: np.stack(x), *layers)},
    }
  loss, found = tiny_models.evaluate(model.eval_fn, given, batch)
  losses = []
  for count, prefix in ((3, ""), (2, "layers_2/"), (1, "layers_1/")):
    small = dataclasses.replace(
      separate, config=dataclasses.replace(config, num_encoder_layers=count), parent=None
    )
    named = {f"layers_{i}": layers[i] for i in range(count)}
    first = {**params, "encoder": {**encoder, **named}}
    apply = tiny_models.jit(small.apply)
    source_BS, target_BS = (np.float64(apply({"params": first}, batch[x])) for x in batch)
    batch_and_negatives = {**batch, "negatives": np.zeros((B, K, 7), np.int32)}
    for dim, cut in ((S, ""), (4, "first_4/")):
      vectors = (source_BS[:, :dim], target_BS[:, :dim], np.zeros((B, K, dim)))
      mean, accuracies = by_loops(vectors, batch_and_negatives, **options)
      losses.append(mean)
      assert {x: found[f"{prefix}{cut}{x}"] for x in accuracies} == pytest.approx(accuracies)
    if prefix:
      assert found[f"{prefix}loss"] == pytest.approx(np.mean(losses[-2:]), rel=1e-4)
  assert [loss, found["loss"]] == pytest.approx([np.mean(losses)] * 2, rel=1e-4)
  for layers, message in (((1, 1), "matryoshka_layers is"), ((3,), "layers is 3; .* from 1 to 2")):
    with pytest.raises(errors.InputError, match=message):
      matryoshka.LayersModel(model=one, layers=layers, **plain).loss_fn(given, batch, None)


def test_vectors_are_auxiliary_to_the_tokens_of_inputs():
  model, batch = tiny_models.pair_model(), tiny_models.random_batch(8, 8, (6, 6), (2, 60))
  params = tiny_models.random_params(model.network)
  tokens_BT, aux = tiny_models.jit(model.predict_batch_with_aux)(params, batch)
  np.testing.assert_array_equal(tokens_BT, batch["inputs"])
  vector_BS = tiny_models.jit(model.network.apply)({"params": params}, batch["inputs"])
  np.testing.assert_allclose(aux["embedding"], vector_BS, atol=1e-6)
  _, metrics = jax.eval_shape(model.eval_fn, params, batch)
  for leaf in traverse_util.flatten_dict(dict(metrics)).values():
    assert {leaf.total.shape, leaf.count.shape} == {()}


def test_each_slice_has_its_own_dropout():
  def encode(x_BD, rng):
    return x_BD * jax.random.bernoulli(rng, 0.5, x_BD.shape)

  out_BD = gradient_caching.map_slices(encode, jnp.ones((4, 64)), slices=2, rng=jax.random.key(0))
  # Rows 0 and 2 are the first slice, rows 1 and 3 the second.
  assert not np.array_equal(out_BD[0::2], out_BD[1::2])


def test_slices_need_less_memory():
  batch = jax.tree.map(jnp.asarray, tiny_models.random_batch(0, 256, (32, 32), (2, 60)))

  def temporaries(count):
    model = tiny_models.pair_model(embedding_slices=count)
    step = jax.jit(jax.grad(model.loss_fn, has_aux=True))
    params = tiny_models.shapes_of(model.network)["params"]
    return step.lower(params, batch, None).compile().memory_analysis().temp_size_in_bytes

  assert temporaries(8) < temporaries(1) / 4
