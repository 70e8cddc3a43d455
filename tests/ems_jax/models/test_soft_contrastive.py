"""Students of a teacher against the paper's equations; test_every_model.py has the rest."""

import dataclasses
import functools

import eight_devices
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from etils import epath
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning
from tiny_models import jit

from ems_jax import teachers
from ems_jax.models import distillation, soft_contrastive
from vmsst import errors, languages
from vmsst.checkpoints import encoder_json, t5x
from vmsst.models import contrastive
from vmsst.networks import bert, sentence_encoder
from vmsst.text import vocabularies

B, S, TAU = 8, 16, 0.1
BERT = bert.BertConfig(
  vocab_size=260, emb_dim=S, num_heads=2, mlp_dim=24, num_layers=1, max_positions=9,
  initializer_std=0.3,
)  # fmt: skip
BYTES = vocabularies.ByteVocabulary()
CODES = ("en", "fr", "ko", "de", "tr")
# Labels, whether to use TCM, whether both directions have the paper's labels.
VARIANTS = [
  ("priority", True, False),
  ("priority", True, True),
  ("priority", False, True),
  ("average", False, False),
  ("average", True, True),
  ("hard", False, False),
]


def network(dropout_rate=0.0):
  config = dataclasses.replace(BERT, dropout_rate=dropout_rate)
  return sentence_encoder.SentenceEncoder(config, S, head=False)


def make_model(cls=soft_contrastive.SoftContrastiveModel, *, dropout_rate=0.0, **options):
  return cls(
    network=network(dropout_rate),
    input_vocabulary=options.pop("vocabulary", BYTES),
    max_length=9,
    **options,
  )


def make_batch():
  used = [languages.language(code).index for code in CODES]
  return tiny_models.random_batch(2, B, (7, 9), (3, 260), eos=1, languages=used)


def make_params(seed):
  return tiny_models.random_params(network(), seed)


embed = jit(functools.partial(sentence_encoder.embed, network()))


def side_vectors(params, batch):
  """Vectors of `inputs` and `targets`, from one encoder call each."""
  sides = (np.pad(batch[x], ((0, 0), (0, 9 - batch[x].shape[1]))) for x in ("inputs", "targets"))
  return [np.float64(embed(params, tokens_BT)) for tokens_BT in sides]


def write_run(folder, *, vocabulary=BYTES):
  """Writes a teacher's run, trained with dropout, which must have no effect."""
  flat = traverse_util.flatten_dict(make_params(seed=1), sep="/")
  t5x.write_params(epath.Path(folder) / "checkpoint_0", flat)
  model = contrastive.ContrastiveModel(network=network(0.5), input_vocabulary=vocabulary)
  encoder_json.save_encoder_assets(model, folder)
  return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return write_run(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def params():
  return make_params(seed=0)


@pytest.fixture(scope="module")
def precomputed():
  """The batch with the teacher's vectors of both sides."""
  batch = make_batch()
  found = side_vectors(make_params(seed=1), batch)
  return batch | dict(zip(teachers.FEATURES, map(np.float32, found), strict=True))


@pytest.fixture(scope="module")
def student(params):
  """The student's vectors of both sides."""
  return side_vectors(params, make_batch())


def evaluate(models, params, batches, rng=None):
  """Loss and metrics of each model on its batch, from one program with the same student."""

  def run(params, batches):
    return {name: model.loss_fn(params, batches[name], rng) for name, model in models.items()}

  found = jit(run)(params, batches)
  return {name: (float(loss), tiny_models.values(x)) for name, (loss, x) in found.items()}


# --------------------------------------------------------------------------------------------
# The paper's equations, term by term


ORDER = ["en", "ru", "ja", "fr", "ko"]


def inputs_are_anchors(batch, order=ORDER):
  def rank(index):
    codes = [i for i, code in enumerate(order) if languages.language(code).index == index]
    return codes[0] if codes else len(order) + index

  sides = zip(batch["input_language"], batch["target_language"], strict=True)
  return [rank(source[0]) <= rank(target[0]) for source, target in sides]


def score(x, y):
  return x @ y / np.sqrt((x @ x) * (y @ y)) / TAU


def softmax(values):
  values = np.exp(np.array(values) - max(values))
  return values / values.sum()


def anchors_first(batch, sides):
  """Vectors of the anchors and of the other sides: the paper's s and t."""
  pairs = zip(*sides, inputs_are_anchors(batch), strict=True)
  return zip(*((x, y) if is_input else (y, x) for x, y, is_input in pairs), strict=True)


def equations(batch, student, teacher, labels, monolingual, row_normalized):
  s, t = anchors_first(batch, student)
  gs, gt = anchors_first(batch, teacher)
  assert 0 < sum(inputs_are_anchors(batch)) < B

  def similarity(i, j):
    if labels == "priority":
      return score(gs[i], gs[j])
    return (score(gs[i], gs[j]) + score(gt[i], gt[j])) / 2

  def weight(i, j, query):
    """w(i, j), if the softmax of the loss runs over the candidates of `query`."""
    if labels == "hard":
      return float(i == j)
    if query == "row" or row_normalized:
      return softmax([similarity(i, n) for n in range(B)])[j]
    return softmax([similarity(n, j) for n in range(B)])[i]

  cross = mono = 0
  for i in range(B):
    for j in range(B):
      p_row = softmax([score(s[i], t[n]) for n in range(B)])[j]
      p_column = softmax([score(s[n], t[j]) for n in range(B)])[i]
      cross -= weight(i, j, "row") * np.log(p_row) / B
      cross -= weight(i, j, "column") * np.log(p_column) / B
      for x in (s, t):
        p = softmax([score(x[n], x[j]) for n in range(B)])[i]
        mono -= weight(i, j, "column") * np.log(p) / B
  rows = [[weight(i, j, "row") for j in range(B)] for i in range(B)]
  return {
    "loss/cross": cross,
    "loss/mono": mono,
    "loss": 0.1 * cross + mono if monolingual else cross,
    "label/entropy": np.mean([-sum(w * np.log(w) for w in row if w) for row in rows]),
    "label/translation": np.mean(np.diag(rows)),
  }


@pytest.fixture(scope="module")
def given(params, precomputed):
  """Loss and metrics of each variant and of distillation, from the vectors of the batch."""
  models = {
    str(x): make_model(labels=x[0], monolingual=x[1], row_normalized=x[2]) for x in VARIANTS
  }
  models["cut"] = make_model(matryoshka_dims=(3,))
  models["en"] = make_model(distillation.DistillationModel)  # the first of the paper's order
  models["tr"] = make_model(distillation.DistillationModel, priority=("tr",))
  return evaluate(models, params, dict.fromkeys(models, precomputed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_is_that_of_the_equations(given, student, precomputed, variant):
  loss, metrics = given[str(variant)]
  teacher = [np.float64(precomputed[name]) for name in teachers.FEATURES]
  expected = equations(precomputed, student, teacher, *variant)
  if not variant[1]:
    assert "loss/mono" not in metrics
    del expected["loss/mono"]
  assert loss == pytest.approx(expected["loss"], rel=1e-4)
  assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
  score_BB = np.array([[score(x, y) for y in student[1]] for x in student[0]])
  assert metrics["accuracy/forward"] == np.mean(score_BB.argmax(axis=1) == np.arange(B))
  assert metrics["accuracy/backward"] == np.mean(score_BB.argmax(axis=0) == np.arange(B))


def test_a_matryoshka_loss_is_the_mean_over_cut_vectors(given, student, precomputed):
  loss, metrics = given["cut"]
  teacher = [np.float64(precomputed[name]) for name in teachers.FEATURES]
  cut = [vectors_BS[:, :3] for vectors_BS in student]
  whole, first = (
    equations(precomputed, vectors, teacher, "priority", True, False) for vectors in (student, cut)
  )
  assert loss == pytest.approx((whole["loss"] + first["loss"]) / 2, rel=1e-4)
  for name in ("loss", "loss/cross", "loss/mono"):
    assert metrics[f"first_3/{name}"] == pytest.approx(first[name], rel=1e-4)
  assert metrics["loss/cross"] == pytest.approx(whole["loss/cross"], rel=1e-4)


@pytest.mark.parametrize("first", ["en", "tr"])
def test_distillation_is_the_squared_error_of_both_sides(given, student, precomputed, first):
  loss, metrics = given[first]
  are_inputs = inputs_are_anchors(precomputed, ORDER if first == "en" else ["tr"])
  assert 0 < sum(are_inputs) < B
  sides = zip(precomputed["teacher_inputs"], precomputed["teacher_targets"], strict=True)
  anchors = [pair[0 if is_input else 1] for pair, is_input in zip(sides, are_inputs, strict=True)]
  total = 0
  for side, found in zip(("inputs", "targets"), student, strict=True):
    total += sum(np.mean((x - y) ** 2) for x, y in zip(found, anchors, strict=True)) / B
    cosines = [TAU * score(x, np.float64(y)) for x, y in zip(found, anchors, strict=True)]
    assert metrics[f"cosine/{side}"] == pytest.approx(np.mean(cosines), rel=1e-4)
  assert loss == pytest.approx(total, rel=1e-4)
  assert metrics["loss"] == pytest.approx(total, rel=1e-4)


# --------------------------------------------------------------------------------------------
# Teachers

MODELS = {
  "priority": (soft_contrastive.SoftContrastiveModel, {"labels": "priority"}),
  "average": (soft_contrastive.SoftContrastiveModel, {"labels": "average"}),
  "mse": (distillation.DistillationModel, {}),
}


@pytest.fixture(scope="module")
def teacher(run):
  return teachers.from_run(run)


@pytest.mark.parametrize("dropout_rate", [0.0, 0.2])
def test_a_teacher_in_the_step_gives_what_its_vectors_give(
  teacher, params, precomputed, dropout_rate
):
  models, batches = {}, {}
  for name, (cls, options) in MODELS.items() if not dropout_rate else [("mse", MODELS["mse"])]:
    for way, how, batch in (("step", {"teacher": teacher}, make_batch()), ("", {}, precomputed)):
      models[name + way] = make_model(cls, dropout_rate=dropout_rate, **options, **how)
      batches[name + way] = batch
  found = evaluate(models, params, batches, jax.random.key(0) if dropout_rate else None)
  for name in models:
    expected = found[name.removesuffix("step")]
    assert found[name][0] == pytest.approx(expected[0], rel=1e-4)
    assert found[name][1] == pytest.approx(expected[1], rel=1e-4)


def test_given_vectors_have_no_gradient(precomputed):
  def total(given):
    batch = {**precomputed, **given}
    anchors_BS = teachers.anchor_vectors(None, batch, BYTES, np.arange(B) % 2 == 0)
    return jnp.sum(teachers.pair_vectors(None, batch, BYTES)) + jnp.sum(anchors_BS)

  gradient = jax.grad(total)({feature: precomputed[feature] for feature in teachers.FEATURES})
  assert not any(np.any(x) for x in gradient.values())


def test_a_program_does_not_hold_the_teacher_s_parameters(teacher, params):
  program = jax.jit(make_model(teacher=teacher).loss_fn)
  text = program.lower(params, make_batch(), None).as_text()
  table = f"tensor<{BERT.vocab_size}x{S}xf32>"
  (arguments,) = [line for line in text.splitlines() if "func public @main" in line]
  assert arguments.split("->")[0].count(table) == 2  # the student's and the teacher's
  assert not any(table in line for line in text.splitlines() if 'dense<"' in line)


def test_a_teacher_that_cannot_be_used_is_named(teacher, tmp_path):
  run = write_run(tmp_path, vocabulary=vocabularies.ByteVocabulary(lowercase=True))
  with pytest.raises(errors.InputError, match=r"another vocabulary .* teacher_inputs and"):
    make_model(teacher=teachers.from_run(run))
  with pytest.raises(errors.InputError, match="no folder"):
    teachers.from_run(tmp_path / "missing")
  with pytest.raises(errors.InputError, match="does not use a teacher"):
    make_model(labels="hard", teacher=teacher)


@pytest.mark.parametrize("name", MODELS)
def test_there_is_one_teacher(teacher, params, precomputed, name):
  cls, options = MODELS[name]
  with pytest.raises(errors.InputError, match="no teacher, and the batch has no teacher_inputs"):
    make_model(cls, **options).loss_fn(params, make_batch(), None)
  message = "the batch has teacher_inputs and teacher_targets as"
  with pytest.raises(errors.InputError, match=message):
    make_model(cls, teacher=teacher, **options).loss_fn(params, precomputed, None)


def test_a_teacher_of_another_width_teaches_similarities_only(params, precomputed, student):
  wide = np.random.default_rng(2).normal(size=(2, B, 20)).astype(np.float32)
  batch = precomputed | dict(zip(teachers.FEATURES, wide, strict=True))
  loss, _ = jit(make_model().loss_fn)(params, batch, None)
  expected = equations(batch, student, np.float64(wide), "priority", True, False)
  assert float(loss) == pytest.approx(expected["loss"], rel=1e-4)
  model = make_model(distillation.DistillationModel)
  with pytest.raises(errors.InputError, match="20 numbers and the student's 16"):
    jax.eval_shape(model.loss_fn, params, batch, None)


# --------------------------------------------------------------------------------------------
# Eight devices


def step_of(teacher, **options):
  """Maps parameters and a batch to loss and gradients of the average labels."""
  model = make_model(labels="average", teacher=teacher, **options)
  return jax.value_and_grad(lambda params, batch: model.loss_fn(params, batch, None)[0])


def run_on_eight_devices(folder):
  """Saves loss and gradients with a teacher in the step."""
  from vmsst.launch.runtime import partitioning

  partitioner = partitioning.PjitPartitioner(num_partitions=2)
  assert dict(partitioner.mesh.shape) == {"data": 4, "model": 2}
  teacher = teachers.from_run(folder, partitioner=partitioner)
  with partitioner.context():
    axes = flax_partitioning.get_axis_names(tiny_models.shapes_of(network())["params_axes"])
    specs = jax.tree.map(
      flax_partitioning.logical_to_mesh_axes,
      axes.unfreeze(),
      is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec),
    )
    shardings = partitioner.shardings(specs)
    step = jit(
      step_of(teacher, embedding_slices=2), in_shardings=(shardings, partitioner.data_sharding)
    )
    params = jax.device_put(make_params(seed=0), shardings)
    for _ in range(2):  # the teacher's parameters survive the first step
      results = step(params, partitioner.to_devices(make_batch()))
  table_VD = teacher._parameters()["token_embedder"]["embedding"][...]
  assert table_VD.sharding.shard_shape(table_VD.shape) == (BERT.vocab_size // 2, S)
  tiny_models.save(folder / "results.npz", jax.tree.leaves(results))


@pytest.mark.slow
def test_eight_devices_and_a_teacher_in_the_step_have_the_results_of_one_and_given_vectors(
  run, params, precomputed
):
  eight_devices.run(__file__, run)
  expected = jax.tree.leaves(jit(step_of(None))(params, precomputed))
  tiny_models.assert_saved_equal(run / "results.npz", expected, rtol=1e-4, atol=1e-5)
