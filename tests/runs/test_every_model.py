"""Properties of all models in both packages. Each model has a test module for its equations."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re

import commands
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
import toy_runs
from flax import traverse_util
from tiny_models import jit

from ems_jax.models import distillation, ems, laser, soft_contrastive
from ems_jax.networks import ems as ems_networks
from ems_jax.networks import laser as laser_networks
from vmsst import errors, languages
from vmsst.data import tables, vocabularies
from vmsst.formats import encoder_json
from vmsst.losses import gaussian
from vmsst.models import (
  base,
  bitranslation,
  contrastive,
  matryoshka,
  objectives,
  scores,
  vector_losses,
  vmsst,
)
from vmsst.networks import lstm, sentence_encoder, t5, transformer
from vmsst.networks import vmsst as vmsst_networks

V, S, B = 260, 8, 16
SIZES = {"vocab_size": V, "emb_dim": S, "num_heads": 2, "mlp_dim": 8}
T5 = t5.T5Config(**SIZES, head_dim=4, num_encoder_layers=1)
BERT = transformer.TransformerConfig(**SIZES, num_layers=1, max_positions=9, initializer_std=0.3)
# The width of [token; language; sentence].
DECODER = dataclasses.replace(BERT, emb_dim=16, activation="relu")
LSTM = lstm.LstmConfig(vocab_size=V, emb_dim=6, hidden_dim=4, num_layers=2, initializer_range=0.5)
LANGUAGES = [languages.language(code).index for code in ("en", "es", "fr", "de")]

encoder_of = functools.partial(sentence_encoder.SentenceEncoder, latent_dim=S)
ems_of = functools.partial(ems_networks.EmsNetwork, language_dim=4, projection_dim=6)
vmsst_of = functools.partial(vmsst_networks.VmsstNetwork, latent_dim=6)
laser_of = functools.partial(
  laser_networks.LaserNetwork, target_emb_dim=4, decoder_dim=8, decoder_output_dim=6,
  language_dim=4, initializer_range=0.5,
)  # fmt: skip

# Model, its network as a function of the encoder's configuration, the configuration, options.
MODELS = {
  "contrastive": (contrastive.ContrastiveModel, encoder_of, T5, {}),
  "bitranslation": (
    bitranslation.BitranslationModel,
    functools.partial(vmsst_networks.BitranslationNetwork, latent_dim=6), T5, {},
  ),
  "vmsst": (vmsst.VmsstModel, vmsst_of, T5, {"kl_anneal_steps": 0}),
  "vmsst_contrastive": (
    vmsst.VmsstContrastiveModel, vmsst_of, T5,
    {"kl_anneal_steps": 0, "vmsst_weight": 1.0, "mask_duplicates": True},
  ),
  "hard_negatives": (
    contrastive.ContrastiveModel, encoder_of, T5, {"mask_duplicates": True, "symmetric": False},
  ),
  "ems": (ems.EmsModel, ems_of, BERT, {}),
  "ems_t5": (ems.EmsModel, ems_of, T5, {}),
  "ems_lstm": (ems.EmsModel, ems_of, LSTM, {}),
  "laser": (laser.LaserModel, laser_of, LSTM, {}),
  "laser_transformer": (
    laser.LaserModel, functools.partial(laser_of, transformer_decoder=DECODER), BERT, {},
  ),
  "soft": (soft_contrastive.SoftContrastiveModel, encoder_of, T5, {"labels": "average"}),
  "similarity": (scores.SimilarityModel, encoder_of, BERT, {}),
  "score_distillation": (
    scores.ScoreDistillationModel, encoder_of, BERT, {"similarity": "cosine", "scale": 5.0},
  ),
  "distillation": (distillation.DistillationModel, encoder_of, T5, {}),
}  # fmt: skip
TRAINED = [name for name in MODELS if name not in ("ems_t5", "ems_lstm")]
# Only slow tests check these models, because other models have the same losses and networks.
RELATED = ("contrastive", "bitranslation", "vmsst_contrastive", "laser")
TRAINED_CASES = [
  pytest.param(name, marks=pytest.mark.slow) if name in RELATED else name for name in TRAINED
]
COMPARING = ("contrastive", "vmsst_contrastive", "hard_negatives", "ems", "soft", "similarity")
SLICED = (*COMPARING, "score_distillation", "distillation")
FINETUNED = ("contrastive", "similarity", "score_distillation", "distillation", "soft", "ems")
# Models that read a feature of the batch that some data lacks.
READERS = {
  "negatives": ("hard_negatives", "score_distillation"),
  "scores": ("similarity", "score_distillation"),
  **dict.fromkeys(tables.TEACHER_SIDES, ("soft", "distillation")),
}  # fmt: skip


def make_model(name, *, dropout_rate=0.0, network=(), **options):
  cls, select_network, config, own = MODELS[name]
  network = select_network(dataclasses.replace(config, dropout_rate=dropout_rate), **dict(network))
  options = {"max_length": 9, **own, **options}
  return cls(network=network, vocabulary=vocabularies.ByteVocabulary(), **options)


def make_batch():
  rng = np.random.default_rng(1)
  batch = tiny_models.random_batch(0, B, (7, 9), (3, V), eos=1, languages=LANGUAGES)
  batch["negatives"] = rng.integers(3, V, (B, 2, 9)).astype(np.int32)
  # For models that mask duplicates: a source equals a target, a hard negative the translation.
  batch["targets"][4] = np.pad(batch["inputs"][11], (0, 2))
  batch["negatives"][6, 0] = batch["targets"][6]
  for name in tables.TEACHER_SIDES:
    batch[name] = rng.normal(size=(B, S)).astype(np.float32)
  batch["negatives"][3, 1] = batch["negatives"][5] = 0  # do not exist
  batch["scores"] = rng.integers(0, 4, (B, 3)).astype(np.float32) / 4
  return batch


def batch_of(name):
  return {x: rows for x, rows in make_batch().items() if name in READERS.get(x, (name,))}


@pytest.mark.parametrize("name", TRAINED_CASES)
def test_padding_changes_nothing_and_a_key_determines_dropout(name):
  calm, noisy, batch = make_model(name), make_model(name, dropout_rate=0.3), batch_of(name)
  params = tiny_models.random_params(calm.network)
  wide = {**batch, "inputs": np.pad(batch["inputs"], ((0, 0), (0, 2)))}

  @jit
  def losses(params, batch, wide, seeds):
    def by_seed(seed):
      return noisy.loss_fn(params, batch, jax.random.key(seed))[0]

    calm_loss, noisy_loss = calm.loss_fn(params, wide, None)[0], noisy.eval_fn(params, batch)[0]
    if name.startswith("vmsst"):  # evaluation samples latents
      noisy_loss = noisy.loss_fn(params, batch, None)[0]
    return calm_loss, noisy_loss, jax.lax.map(by_seed, seeds)

  plain, without_key, by_seed = losses(params, batch, wide, np.array([1, 1, 2]))
  assert float(without_key) == pytest.approx(float(plain), rel=1e-5)
  assert by_seed[0] == by_seed[1] != by_seed[2]


@pytest.mark.parametrize("name", [*FINETUNED])
def test_every_objective_of_fine_tuning_trains_first_layers_and_first_dimensions(name):
  model = make_model(name, matryoshka_dims=(3,))
  config = model.network.config
  field = "num_encoder_layers" if isinstance(config, t5.T5Config) else "num_layers"
  network = dataclasses.replace(
    model.network, config=dataclasses.replace(config, **{field: 2}, scan_layers=True), parent=None
  )
  model = dataclasses.replace(model, network=network)
  both = matryoshka.LayersModel(
    model=model, layers=(1,), network=network, vocabulary=model.vocabulary
  )
  params = tiny_models.shapes_of(network)["params"]
  loss, metrics = jax.eval_shape(both.eval_fn, params, batch_of(name))
  assert loss.shape == ()
  assert {"loss", "first_3/loss", "layers_1/loss", "layers_1/first_3/loss"} <= metrics.keys()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", ["hard_negatives", *FINETUNED])
def test_the_loss_of_vectors_is_the_loss_of_the_texts(name, normalize):
  options = {"normalize": normalize}
  model = make_model(name, **(options if name == "ems" else {"network": options}))
  batch, encoder = batch_of(name), dataclasses.replace(model.sentence_encoder, normalize=False)
  params = tiny_models.random_params(model.network)
  negatives = np.swapaxes(batch.get("negatives", np.zeros((B, 0, 9), np.int32)), 0, 1)
  vectors = [
    jit(encoder.apply)({"params": params}, x)
    for x in (batch["inputs"], batch["targets"], *negatives)
  ]
  options = {"network": model.network, "vocabulary": model.vocabulary}
  layers = matryoshka.LayersModel(model=model, layers=(1,), **options)
  several = objectives.ObjectivesModel(models={"other": model, "this": layers}, **options)
  batch_of_this = {**batch, "objective/this": np.zeros((B, 0))}
  loss, _ = jit(several.loss_of_vectors)(params, np.stack(vectors, axis=1), batch_of_this)
  assert float(loss) == pytest.approx(float(jit(model.eval_fn)(params, batch)[0]), rel=1e-5)


def above_the_mean(mean, log_variance, rng):
  """Returns a sample that does not depend on the key, because slices split the key."""
  return mean + 0.7 * jnp.exp(log_variance / 2)


def value_and_gradient(model, params, batch):
  run = jit(jax.value_and_grad(model.loss_fn, has_aux=True))
  (loss, metrics), gradient = run(params, batch, None)
  return {"loss": loss, "metrics": tiny_models.values(metrics), "gradient": gradient}


@pytest.mark.parametrize("name", TRAINED_CASES)
def test_gradients_reach_every_parameter_and_do_not_depend_on_slices(name, monkeypatch):
  monkeypatch.setattr(gaussian, "sample", above_the_mean)
  model, batch = make_model(name), batch_of(name)
  params = tiny_models.random_params(model.network)
  whole = value_and_gradient(model, params, batch)
  for path, x in traverse_util.flatten_dict(whole["gradient"], sep="/").items():
    if not path.endswith("key/bias"):  # a softmax ignores it
      assert np.abs(x).max() > 0, path
  if name in SLICED:
    sliced = value_and_gradient(make_model(name, embedding_slices=4), params, batch)
    tiny_models.assert_trees_close(sliced, whole, rtol=2e-4, atol=2e-5)
    with pytest.raises(
      errors.InputError,
      match=f"batch of {B} rows does not divide into 3 equal slices; use a divisor of {B}",
    ):
      make_model(name, embedding_slices=3).loss_fn(params, batch, None)


@pytest.mark.parametrize("name", MODELS)
def test_the_encoder_of_a_run_is_the_encoder_that_the_model_scores_with(name, tmp_path):
  model, tokens_BT = make_model(name), make_batch()["targets"]
  params = tiny_models.random_params(model.network)
  tiny_models.assert_standard_axes(tiny_models.shapes_of(model.network))
  made = jax.eval_shape(
    lambda rng: model.get_initial_variables(rng=rng, input_shapes={"inputs": (B, 6)}),
    jax.random.key(0),
  )
  assert jax.tree.structure(made["params"]) == jax.tree.structure(params)
  encoder_json.save_encoder_assets(model, tmp_path)
  loaded = encoder_json.load_encoder_assets(tmp_path).network
  assert loaded == model.sentence_encoder
  wanted = tiny_models.shapes_of(loaded)["params"]
  own = {part: params[part] for part in wanted}  # without heads and decoders
  assert jax.tree.map(lambda x: x.shape, own) == jax.tree.map(lambda x: x.shape, wanted)
  found_BS = jit(loaded.apply)({"params": own}, tokens_BT)
  expected_BS = jit(model.score_batch)(params, {"inputs": tokens_BT})
  assert expected_BS.dtype == np.float32
  np.testing.assert_allclose(found_BS, expected_BS, rtol=0, atol=1e-6)
  with pytest.raises(NotImplementedError, match="score_batch"):
    model.predict_batch(params, {"inputs": tokens_BT})


# Mesh axes "data" and "model", the context of a mesh (the mesh itself as in T5X), slices.
LAYOUTS = (((8, 1), jax.set_mesh, 2), ((4, 2), lambda mesh: mesh, 1))
MOVED = re.compile(r"\w+\[\d+,\d+,[\d,]+\]\S* (?:all-gather|all-to-all|collective-permute)\(")


def make_sharded(name, slices=1):
  model = make_model(name, **({"embedding_slices": slices} if name in SLICED else {}))

  def loss_fn(params, batch):
    return model.loss_fn(params, batch, jax.random.key(1))

  return model.network, loss_fn, tiny_models.random_params(model.network), batch_of(name)


def run_on_eight_devices(folder):
  """Saves loss, metrics and gradients of each model; prints the arrays that devices exchange."""
  gaussian.sample = above_the_mean
  for name in TRAINED:
    for shape, enter, slices in LAYOUTS:
      arrays, program = tiny_models.leaves_on_mesh(shape, *make_sharded(name, slices), enter=enter)
      tiny_models.save(folder / f"{name}_{shape[0]}.npz", arrays)
      # Vectors [B, S] of other devices are needed, tokens [..., 2, T] are not.
      if name in ("contrastive", "laser") and shape[1] == 1:
        print(f"moved by {name}: {MOVED.findall(program)}")


@pytest.mark.slow
def test_eight_devices_have_the_results_of_one(tmp_path, monkeypatch):
  printed = commands.on_eight_devices(__file__, tmp_path)
  assert re.findall("moved by (.*)", printed) == ["contrastive: []", "laser: []"]
  monkeypatch.setattr(gaussian, "sample", above_the_mean)
  for name in TRAINED:
    expected = tiny_models.leaves(*make_sharded(name)[1:])
    for (data, _), _, _ in LAYOUTS:
      path = tmp_path / f"{name}_{data}.npz"
      tiny_models.assert_saved_equal(path, expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("contrastive", {"matryoshka_dims": (4, 4)}, "matryoshka_dims is"),
    ("vmsst", {"elbo_weight": -1}, "elbo_weight is -1"),
    (
      "ems",
      {"network": {"xtr": False}, "masking": "ugt", "mask_id": 2},
      "only an XTR head predicts masked tokens",
    ),
    ("laser", {"target_languages": ("en", "klingon")}, "klingon"),
    ("laser_transformer", {"network": {"language_dim": 5}}, "emb_dim is 16; set it to 17"),
  ],
)
def test_options_that_cannot_be_used_are_named(name, options, message):
  with pytest.raises(errors.InputError, match=message):
    make_model(name, **options)


def test_every_model_is_listed_here():
  found = set()
  for package in map(importlib.import_module, ("vmsst.models", "ems_jax.models")):
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
      values = vars(importlib.import_module(info.name)).values()
      found |= {x for x in values if inspect.isclass(x) and issubclass(x, base.BitextModel)}
  trainable = {x for x in found if "loss_fn" not in x.__abstractmethods__}
  of_models = {objectives.ObjectivesModel, matryoshka.LayersModel}  # They call other models.
  without_loss = {
    vector_losses.VectorLossModel, contrastive.InBatchNegativesModel, distillation.StudentModel,
  }  # fmt: skip
  assert trainable == {cls for cls, *_ in MODELS.values()} | of_models | without_loss


@pytest.mark.parametrize("name", TRAINED)
def test_microbatches_need_permission_if_pairs_are_compared(name):
  model = make_model(name)
  model.check_microbatches(1)
  if name not in COMPARING:
    model.check_microbatches(4)
    return
  unused = dict.fromkeys(("train_state", "partitioner", "rng", "summary_dir", "train_state_axes"))
  with pytest.raises(errors.InputError) as refusal:  # the trainer asks the model
    toy_runs.make_trainer(num_microbatches=2)(model=model, eval_names=[], **unused)
  assert "NUM_MICROBATCHES=2 leaves only 1/2 of the negatives" in str(refusal.value)
  make_model(name, allow_fewer_negatives=True).check_microbatches(4)
