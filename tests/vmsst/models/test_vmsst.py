import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import traverse_util
from flax.linen import partitioning

import vmsst as library
from vmsst import errors
from vmsst.checkpoints import encoder_json
from vmsst.losses import contrastive, gaussian
from vmsst.models import bitranslation, generation, vmsst
from vmsst.networks import t5
from vmsst.networks import vmsst as networks
from vmsst.text import vocabularies

CONFIG = t5.T5Config(
  vocab_size=30, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12, num_encoder_layers=1
)
NETWORK = networks.VmsstNetwork(CONFIG, latent_dim=6, num_languages=5)
PAIRS = 3


def make_model(model_cls=vmsst.VmsstModel, network=NETWORK, **options):
  vocabulary = vocabularies.ByteVocabulary()
  return model_cls(network=network, input_vocabulary=vocabulary, **options)


def make_batch(inputs_length=6, targets_length=8, pairs=PAIRS):
  rng = np.random.default_rng(0)
  batch = {}
  for name, length in {"inputs": inputs_length, "targets": targets_length}.items():
    tokens_BT = rng.integers(2, 30, size=(pairs, length), dtype=np.int32)
    tokens_BT[np.arange(length) >= rng.integers(2, length + 1, size=(pairs, 1))] = 0
    batch[name] = tokens_BT
  for name in ("input_language", "target_language"):
    batch[name] = rng.integers(1, 5, size=(pairs, 1), dtype=np.int32)
  return batch


def fresh_params(model):
  init = jax.jit(lambda rng: model.get_initial_variables(rng, {"inputs": (PAIRS, 6)})["params"])
  return init(jax.random.key(0))


@pytest.fixture(scope="module")
def params():
  # Larger heads: latents that matter, and log-variances of some size.
  scale = {"mean": 2, "log_variance": 3, "language_mean": 2, "language_log_variance": 3}
  fresh = fresh_params(make_model())
  return fresh | {name: {"kernel": by * fresh[name]["kernel"]} for name, by in scale.items()}


def loss_and_metrics(model, params, batch, rng=None, step=None):
  loss, metrics = jax.jit(model.loss_fn)(params, batch, rng, step)
  return float(loss), {name: float(m.compute()) for name, m in metrics.items()}


@jax.jit
def posteriors_of(params, tokens_1T, language_1):
  def posteriors(net):
    return net.posteriors(net.embed(tokens_1T), tokens_1T != 0, language_1)

  return [x_1K[0] for x_1K in NETWORK.apply({"params": params}, method=posteriors)]


@jax.jit
def decode(params, tokens_1T, language_1, sentence_1Z):
  def hidden(net):
    return net.decode(net.embed(tokens_1T), language_1, sentence_1Z)

  return NETWORK.apply({"params": params}, method=hidden)[0]


def nll(params, tokens_T, language_1, language_latent_G, semantic_S):
  """Negative log-likelihood of a sentence, by one product over [z_lang; z_sem; h] in float64."""
  sentence_Z = np.concatenate([language_latent_G, semantic_S])
  hidden_TD = decode(params, tokens_T[None], language_1, np.float32(sentence_Z)[None])
  both = np.concatenate([np.tile(sentence_Z, (len(tokens_T), 1)), hidden_TD], axis=1)
  kernel = np.concatenate([params[f"logits_{x}"]["kernel"] for x in ("latent", "hidden")])
  logits_TV = np.float64(both) @ np.float64(kernel)
  log_p_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=1, keepdims=True))
  real = np.flatnonzero(tokens_T)
  return -log_p_TV[real, tokens_T[real]].sum()


def in_numpy(params, batch, *, noise, step, elbo_weight, kl_weight):
  """Loss, sums of terms and KLs, pair by pair; samples lie `noise` deviations above the mean."""
  sums = dict.fromkeys(("translation", "reconstruction", *vmsst.LATENTS), 0.0)
  for row in range(PAIRS):
    tokens = [batch["inputs"][row], batch["targets"][row]]
    codes = [batch["input_language"][row], batch["target_language"][row]]
    posteriors = [
      list(map(np.float64, posteriors_of(params, x[None], code)))
      for x, code in zip(tokens, codes, strict=True)
    ]
    sem, sem_variance = posteriors[(row + step) % 2][:2]
    chosen = {"semantic": (sem, sem_variance)}
    chosen |= {name: posteriors[i][2:] for i, name in enumerate(vmsst.LATENTS[1:])}
    z = {name: mean + noise * np.exp(v / 2) for name, (mean, v) in chosen.items()}
    for side, name in enumerate(vmsst.LATENTS[1:]):
      sums["reconstruction"] += nll(params, tokens[side], codes[side], z[name], z["semantic"])
      other_mean = posteriors[1 - side][0]
      sums["translation"] += nll(params, tokens[side], codes[side], np.zeros(6), other_mean)
    for name, (mean, v) in chosen.items():
      sums[name] += 0.5 * np.sum(mean**2 + np.exp(v) - 1 - v)
  kl = sum(sums[name] for name in vmsst.LATENTS)
  elbo = -sums["reconstruction"] - kl_weight * kl
  return (sums["translation"] - elbo_weight * elbo) / PAIRS, sums


@pytest.mark.parametrize("step", [0, 3, 1000])
def test_elbo_and_translation_pair_by_pair(params, monkeypatch, step):
  monkeypatch.setattr(gaussian, "sample", lambda mean, v, rng: mean + 0.7 * jnp.exp(v / 2))
  batch = make_batch()
  model = make_model(elbo_weight=0.3, kl_anneal_steps=10)
  loss, metrics = loss_and_metrics(model, params, batch, jax.random.key(0), step)
  kl_weight = min(1, step / 10)
  expected, sums = in_numpy(
    params, batch, noise=0.7, step=step, elbo_weight=0.3, kl_weight=kl_weight
  )
  assert loss == pytest.approx(expected, rel=1e-5)
  assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
  assert metrics["kl_weight"] == pytest.approx(kl_weight)
  tokens = sum(np.count_nonzero(batch[name]) for name in ("inputs", "targets"))
  for name in ("translation", "reconstruction"):
    assert metrics[f"nll/{name}"] == pytest.approx(sums[name] / tokens, rel=1e-5)
  for name in vmsst.LATENTS:
    assert metrics[f"kl/{name}"] == pytest.approx(sums[name] / PAIRS, rel=1e-5)
    assert metrics[f"kl_per_dim/{name}"] == pytest.approx(sums[name] / PAIRS / 6, rel=1e-5)
  assert metrics["tokens_per_example"] == pytest.approx(tokens / PAIRS)


def test_evaluation_takes_means_and_the_full_kl_weight(params):
  batch = make_batch()
  loss, metrics = jax.jit(make_model().eval_fn)(params, batch)
  expected, _ = in_numpy(params, batch, noise=0, step=0, elbo_weight=0.1, kl_weight=1)
  assert loss == pytest.approx(expected, rel=1e-5)
  assert metrics["kl_weight"].compute() == 1


def test_the_side_of_the_semantic_latent_alternates_by_row_and_step():
  np.testing.assert_array_equal(vmsst.alternating_sides(5, None), [0, 1, 0, 1, 0])
  np.testing.assert_array_equal(vmsst.alternating_sides(5, 7), [1, 0, 1, 0, 1])


def test_active_units_are_counted_for_each_latent(params):
  batch = make_batch()
  constant = {**params, "language_mean": jax.tree.map(jnp.zeros_like, params["language_mean"])}
  _, metrics = loss_and_metrics(make_model(), constant, batch)
  assert metrics["active_units/semantic"] > 0
  assert metrics["active_units/input_language"] == metrics["active_units/target_language"] == 0


def test_a_key_decides_the_step_and_every_latent_has_its_own(params, monkeypatch):
  model, batch, sample = make_model(), make_batch(), gaussian.sample

  @jax.jit
  def loss_and_keys(rng):
    used = []

    def spy(mean, log_variance, key):
      used.append(jax.random.key_data(key))
      return sample(mean, log_variance, key)

    with monkeypatch.context() as patch:
      patch.setattr(gaussian, "sample", spy)
      return model.loss_fn(params, batch, rng)[0], used

  first, keys = loss_and_keys(jax.random.key(1))
  assert len({tuple(np.asarray(key)) for key in keys}) == 3
  assert loss_and_keys(jax.random.key(1))[0] == first
  assert loss_and_keys(jax.random.key(2))[0] != first


def test_one_encoder_call_each_and_one_decoder_call_a_step(params, monkeypatch):
  shapes = []
  for name in ("T5Encoder", "LatentDecoder"):
    module = getattr(t5, name, None) or getattr(networks.decoder, name)
    plain = module.__call__

    def counted(self, x_BTD, *args, plain=plain, **kwargs):
      shapes.append((type(self).__name__, x_BTD.shape[0]))
      return plain(self, x_BTD, *args, **kwargs)

    monkeypatch.setattr(module, "__call__", counted)
  jax.eval_shape(make_model().eval_fn, params, make_batch())
  expected = [("LatentDecoder", 4 * PAIRS), *[("T5Encoder", 2 * PAIRS)] * 2]
  assert sorted(shapes) == expected


def without_language(params):
  """The parameters that BITRANSLATION has, out of VMSST's."""
  kept = {name: params[name] for name in ("token_embedder", "encoder", "mean", "logits_hidden")}
  kept["logits_latent"] = {"kernel": params["logits_latent"]["kernel"][6:]}
  decoder = traverse_util.flatten_dict(params["decoder"])
  kept["decoder"] = traverse_util.unflatten_dict(
    {path: x[6:] if path[-2:] == ("sentence", "kernel") else x for path, x in decoder.items()}
  )
  return kept


def test_without_the_elbo_it_is_bitranslation(params):
  batch = make_batch()
  network = networks.BitranslationNetwork(CONFIG, latent_dim=6, num_languages=5)
  plain = make_model(bitranslation.BitranslationModel, network)
  expected, plain_metrics = loss_and_metrics_without_step(plain, without_language(params), batch)
  loss, metrics = loss_and_metrics(make_model(elbo_weight=0), params, batch, jax.random.key(0), 5)
  assert loss == pytest.approx(expected, rel=1e-6)
  for name in ("nll/translation", "token_accuracy/translation"):
    assert metrics[name] == pytest.approx(plain_metrics[name], rel=1e-6)


def loss_and_metrics_without_step(model, params, batch):
  loss, metrics = jax.jit(model.loss_fn)(params, batch, None)
  return float(loss), {name: float(m.compute()) for name, m in metrics.items()}


def test_padding_changes_nothing(params):
  batch = make_batch()
  wider = {**batch, "inputs": np.pad(batch["inputs"], ((0, 0), (0, 5)))}
  expected, expected_metrics = loss_and_metrics(make_model(), params, batch)
  loss, metrics = loss_and_metrics(make_model(), params, wider)
  assert loss == pytest.approx(expected, rel=1e-5)
  assert metrics == pytest.approx(expected_metrics, rel=1e-5)


def token_nll(params, batch, monkeypatch):
  """Negative log-likelihood of each token of the four rows of each pair: [B, 4, T]."""
  score = generation.score

  @jax.jit
  def run(batch):
    kept = []
    with monkeypatch.context() as patch:
      patch.setattr(generation, "score", lambda *a, **k: kept.append(score(*a, **k)) or kept[0])
      make_model().loss_fn(params, batch, None)
    return kept[0].nll_BRT

  return np.asarray(run(batch))


def test_a_translation_sees_nothing_of_its_target_s_own_latents(params, monkeypatch):
  batch = make_batch(6, 6)
  batch["inputs"][:] = np.arange(2, 8)
  changed = {**batch, "inputs": batch["inputs"].copy()}
  changed["inputs"][:, 4] = 20
  before, after = (token_nll(params, x, monkeypatch) for x in (batch, changed))
  moved_4T = np.abs(after - before).max(axis=0) > 1e-5
  own_reconstruction, other_reconstruction, own_translation, other_translation = moved_4T
  assert own_reconstruction.all()  # through its own language latent
  assert other_reconstruction.any()  # through z_sem, where it is from this side
  np.testing.assert_array_equal(own_translation, np.arange(6) >= 4)
  assert other_translation.any()


def test_the_language_encoder_alone_knows_the_language(params):
  tokens_1T, other = np.arange(2, 8)[None], np.array([3])
  before, after = (posteriors_of(params, tokens_1T, x) for x in (np.array([1]), other))
  for index, changes in enumerate((False, False, True, True)):
    assert np.array_equal(before[index], after[index]) != changes


def test_gradients_equal_finite_differences_in_float64(params, monkeypatch):
  # The library computes in float32; here that name means float64.
  monkeypatch.setattr(jnp, "float32", jnp.float64)
  config = t5.T5Config(
    vocab_size=11, emb_dim=4, num_heads=1, head_dim=3, mlp_dim=5, num_encoder_layers=1
  )
  object.__setattr__(config, "dtype", "float64")
  head = functools.partial(t5.Dense, 3, ("embed", "kv"), dtype="float64")
  monkeypatch.setattr(networks.BitranslationNetwork, "_head", lambda self: head())
  network = networks.VmsstNetwork(config, latent_dim=3, num_languages=3)
  model = make_model(
    vmsst.VmsstContrastiveModel, network, vmsst_weight=0.7, elbo_weight=0.5, kl_anneal_steps=10
  )
  rng = np.random.default_rng(0)
  batch = {name: rng.integers(1, 11, (3, 4)) for name in ("inputs", "targets")}
  batch["inputs"][0, 2:] = 0
  batch |= {name: rng.integers(0, 3, (3, 1)) for name in ("input_language", "target_language")}
  with jax.enable_x64(True):
    fresh = jax.jit(
      lambda key: model.get_initial_variables(key, {"inputs": (3, 4)})["params"]
    )(jax.random.key(0))  # fmt: skip
    point = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), fresh)

    def loss(p):
      return model.loss_fn(p, batch, jax.random.key(5), 4)[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(point)
    assert value.dtype == jnp.float64
    evaluate = jax.jit(loss)
    flat, slopes = traverse_util.flatten_dict(point), traverse_util.flatten_dict(gradient)
    for path, x in flat.items():
      direction = rng.standard_normal(x.shape)

      def along(by, path=path, x=x, direction=direction):
        moved = {**flat, path: x + by * direction}
        return evaluate(traverse_util.unflatten_dict(moved))

      expected = (along(1e-5) - along(-1e-5)) / 2e-5
      found = float(np.sum(slopes[path] * direction))
      assert found == pytest.approx(float(expected), rel=1e-5, abs=1e-8), path
      assert found != 0, path


def test_contrastive_is_added_with_its_weight(params):
  batch = make_batch()
  model = make_model(vmsst.VmsstContrastiveModel, vmsst_weight=0.01, similarity="cosine", scale=5.0)
  loss, metrics = loss_and_metrics(model, params, batch, jax.random.key(0), 7)
  plain, plain_metrics = loss_and_metrics(make_model(), params, batch, jax.random.key(0), 7)
  score = jax.jit(model.score_batch)
  vectors = [score(params, {"inputs": batch[name]}) for name in ("inputs", "targets")]
  score_BB = contrastive.similarity(*vectors, cosine=True, scale=5.0)
  expected = float(jnp.mean(contrastive.contrastive_loss(score_BB)))
  assert metrics["loss/contrastive"] == pytest.approx(expected, rel=1e-5)
  assert metrics["loss/vmsst"] == pytest.approx(plain, rel=1e-6)
  assert loss == metrics["loss"] == pytest.approx(expected + 0.01 * plain, rel=1e-5)
  assert set(metrics) == {
    *plain_metrics, "loss/contrastive", "loss/vmsst", "accuracy/forward", "accuracy/backward"
  }  # fmt: skip


def test_bfloat16_stays_close(params):
  config = dataclasses.replace(CONFIG, dtype="bfloat16")
  half = make_model(network=NETWORK.clone(config=config))
  expected, _ = loss_and_metrics(make_model(), params, make_batch())
  found, _ = loss_and_metrics(half, params, make_batch())
  assert 0 < abs(found - expected) < 0.02 * expected


@pytest.mark.slow
def test_scanned_layers_and_dropout_train():
  options = {"scan_layers": True, "remat": "full", "dropout_rate": 0.2}
  config = dataclasses.replace(CONFIG, **options)
  model = make_model(network=NETWORK.clone(config=config, num_decoder_layers=2))
  scanned = fresh_params(model)
  step = jax.jit(jax.grad(lambda p: model.loss_fn(p, make_batch(), jax.random.key(0), 1)[0]))
  assert all(np.isfinite(x).all() and x.any() for x in jax.tree.leaves(step(scanned)))


DEVICES = textwrap.dedent("""
  import json, sys
  import jax, numpy as np
  from flax.linen import partitioning
  from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
  sys.path.insert(0, sys.argv[1])
  import test_vmsst as t

  # T5X's standard rules, as far as this model goes.
  rules = [("batch", "data"), ("vocab", "model"), ("embed", None), ("mlp", "model"),
           ("heads", "model"), ("kv", None), ("joined_kv", "model"), ("relpos_buckets", None),
           ("length", None), ("layers", None)]
  model = t.make_model(t.vmsst.VmsstContrastiveModel, vmsst_weight=1.0)
  batch = t.make_batch(pairs=8)
  made = jax.jit(lambda key: model.get_initial_variables(key, {"inputs": (8, 6)})["params"])
  fresh = jax.device_get(made(jax.random.key(0)))
  axes = partitioning.get_axis_names(jax.eval_shape(
    lambda: model.get_initial_variables(jax.random.key(0), {"inputs": (8, 6)}))["params_axes"])
  out = {}
  for data, parts in ((1, 1), (8, 1), (4, 2)):
    mesh = Mesh(np.array(jax.devices()[:data * parts]).reshape(data, parts), ("data", "model"))
    with mesh, partitioning.axis_rules(rules):
      is_spec = lambda x: isinstance(x, P)
      place = jax.tree.map(lambda x: NamedSharding(mesh, partitioning.logical_to_mesh_axes(x)),
                           axes.unfreeze(), is_leaf=is_spec)
      rows = NamedSharding(mesh, P("data"))
      step = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True),
                     in_shardings=(place, rows, None), static_argnums=3)
      (loss, metrics), grad = step(jax.device_put(fresh, place), jax.device_put(batch, rows),
                                   jax.random.key(1), 500_000)
    out[f"{data}x{parts}"] = {
      "loss": float(loss),
      "metrics": {name: float(x.compute()) for name, x in metrics.items()},
      "grad": [float(np.sum(np.abs(x))) for x in jax.tree.leaves(grad)],
    }
  print(json.dumps(out))
""")


@pytest.mark.slow
def test_eight_devices_equal_one():
  env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
  env["JAX_PLATFORMS"] = "cpu"
  here = os.path.dirname(__file__)
  done = subprocess.run(
    [sys.executable, "-c", DEVICES, here], env=env, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  expected = found.pop("1x1")
  for layout in ("8x1", "4x2"):
    result = found[layout]
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5), layout
    assert result["metrics"] == pytest.approx(expected["metrics"], rel=1e-4), layout
    np.testing.assert_allclose(result["grad"], expected["grad"], rtol=1e-3, err_msg=layout)


def test_names_and_axes_of_parameters():
  model = make_model()
  made = jax.eval_shape(
    lambda rng: model.get_initial_variables(rng=rng, input_shapes={"inputs": (PAIRS, 6)}),
    jax.random.key(0),
  )
  assert set(made["params"]) == {
    "token_embedder", "encoder", "mean", "log_variance", "language_encoder",
    "encoder_language_embedder", "language_mean", "language_log_variance", "decoder",
    "logits_hidden", "logits_latent",
  }  # fmt: skip
  axes = traverse_util.flatten_dict(partitioning.get_axis_names(made["params_axes"]).unfreeze())
  assert set(axes) == set(traverse_util.flatten_dict(made["params"]))
  known = {"vocab", "embed", "mlp", "heads", "kv", "joined_kv", "relpos_buckets"}
  assert set(itertools.chain(*axes.values())) <= known
  for name, rows in {"logits_hidden": 8, "logits_latent": 12}.items():
    assert made["params"][name]["kernel"].shape == (rows, 30)
    assert tuple(axes[name, "kernel"]) == ("embed", "vocab")


def test_the_loaded_encoder_gives_the_semantic_mean(tmp_path):
  config = dataclasses.replace(CONFIG, vocab_size=259)
  model = make_model(network=networks.VmsstNetwork(config, latent_dim=6))
  params = fresh_params(model)
  encoder_json.save_encoder_assets(model, tmp_path)
  tree = {"target": params, "state": {"step": jnp.int32(3)}}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    checkpointer.save(tmp_path / "checkpoint_3" / "state", args=ocp.args.PyTreeSave(tree))
  vectors_BS = library.load(tmp_path).encode(["one", "another"])
  (ids,) = model.vocabulary.encode(["another"], 32)

  def mean(net):
    tokens_1T = jnp.array([ids])
    return net.posteriors(net.embed(tokens_1T), tokens_1T != 0, jnp.array([0])).semantic_mean_BS

  expected_1S = model.network.apply({"params": params}, method=mean)
  np.testing.assert_allclose(vectors_BS[1:], expected_1S, atol=1e-5)


@pytest.mark.parametrize(
  "options",
  [
    {"elbo_weight": -1},
    {"kl_anneal_steps": -1},
    {"kl_weight": -1},
    {"vmsst_weight": -1},
    {"similarity": "l2"},
  ],
)
def test_a_bad_option_is_named(options):
  with pytest.raises(errors.InputError, match=next(iter(options))):
    make_model(vmsst.VmsstContrastiveModel, **options)
