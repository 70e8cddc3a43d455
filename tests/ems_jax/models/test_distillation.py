"""Students of a teacher against the paper's equations; test_every_model.py has the rest."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scipy.special
import tiny_encoders
import tiny_models
from tiny_models import jit

from ems_jax.models import distillation, soft_contrastive
from vmsst import errors, languages
from vmsst.data import tables, vocabularies
from vmsst.networks import sentence_encoder

B, S, TAU = 8, 16, 0.1
BERT = tiny_encoders.bert_config(vocab_size=260, emb_dim=S, mlp_dim=24, initializer_std=0.3)
BYTES = vocabularies.ByteVocabulary()
CODES = ("en", "fr", "ko", "de", "tr")
# Labels, whether to use TCM, whether both directions have the paper's labels.
VARIANTS = [
  ("priority", True, False), ("priority", True, True), ("priority", False, True),
  ("average", False, False), ("average", True, True), ("hard", False, False),
]  # fmt: skip


def network(dropout_rate=0.0):
  config = dataclasses.replace(BERT, dropout_rate=dropout_rate)
  return sentence_encoder.SentenceEncoder(config, S, head=False)


def make_model(cls=soft_contrastive.SoftContrastiveModel, *, dropout_rate=0.0, **options):
  return cls(
    network=network(dropout_rate),
    vocabulary=options.pop("vocabulary", BYTES),
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
  tokens = (np.pad(batch[x], ((0, 0), (0, 9 - batch[x].shape[1]))) for x in ("inputs", "targets"))
  return [np.float64(embed(params, tokens_BT)) for tokens_BT in tokens]


@pytest.fixture(scope="module")
def params():
  return make_params(seed=0)


@pytest.fixture(scope="module")
def precomputed():
  """The batch with the teacher's vectors of both sides."""
  batch = make_batch()
  vectors = side_vectors(make_params(seed=1), batch)
  return batch | dict(zip(tables.TEACHER_SIDES, map(np.float32, vectors), strict=True))


@pytest.fixture(scope="module")
def student(params):
  """The student's vectors of both sides."""
  return side_vectors(params, make_batch())


def evaluate(models, params, batches, rng=None):
  """Loss and metrics of each model on its batch, from one program with the same student."""

  def run(params, batches):
    return {name: model.loss_fn(params, batches[name], rng) for name, model in models.items()}

  results = jit(run)(params, batches)
  return {name: (float(loss), tiny_models.values(x)) for name, (loss, x) in results.items()}


# --------------------------------------------------------------------------------------------
# The paper's equations, term by term


ORDER = ["en", "ru", "ja", "fr", "ko"]


def inputs_are_anchors(batch, order=ORDER):
  def rank(index):
    codes = [i for i, code in enumerate(order) if languages.language(code).index == index]
    return codes[0] if codes else len(order) + index

  language_pairs = zip(batch["input_language"], batch["target_language"], strict=True)
  return [rank(source[0]) <= rank(target[0]) for source, target in language_pairs]


def scores(x_BS, y_BS):
  x_BS, y_BS = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (x_BS, y_BS))
  return x_BS @ y_BS.T / TAU


def softmax(score_BB, axis):
  exponential_BB = np.exp(score_BB - score_BB.max(axis=axis, keepdims=True))
  return exponential_BB / exponential_BB.sum(axis=axis, keepdims=True)


def anchors_first(batch, vectors):
  """Vectors of the anchors and of the other sides: the paper's s and t."""
  is_input_B1 = np.array(inputs_are_anchors(batch))[:, None]
  assert 0 < is_input_B1.sum() < B
  return np.where(is_input_B1, *vectors), np.where(is_input_B1, *vectors[::-1])


def equations(batch, student, teacher, labels, monolingual, row_normalized):
  s, t = anchors_first(batch, student)
  gs, gt = anchors_first(batch, teacher)
  teacher_BB = scores(gs, gs) if labels == "priority" else (scores(gs, gs) + scores(gt, gt)) / 2
  # w(i, j) of the loss whose softmax runs over the columns of row i, and over the rows of column j.
  row_BB, column_BB = softmax(teacher_BB, 1), softmax(teacher_BB, 1 if row_normalized else 0)
  if labels == "hard":
    row_BB = column_BB = np.eye(B)
  cross = -np.sum(row_BB * np.log(softmax(scores(s, t), 1))) / B
  cross -= np.sum(column_BB * np.log(softmax(scores(s, t), 0))) / B
  mono = -sum(np.sum(column_BB * np.log(softmax(scores(x, x), 0))) for x in (s, t)) / B
  return {
    "loss/cross": cross,
    "loss/mono": mono,
    "loss": 0.1 * cross + mono if monolingual else cross,
    "label/entropy": scipy.special.entr(row_BB).sum() / B,
    "label/translation": np.mean(np.diag(row_BB)),
  }


@pytest.fixture(scope="module")
def results(params, precomputed):
  """Loss and metrics of each variant and of distillation, from the vectors of the batch."""
  models = {
    str(x): make_model(labels=x[0], monolingual=x[1], row_normalized=x[2]) for x in VARIANTS
  }
  models["en"] = make_model(distillation.DistillationModel)  # the first of the paper's order
  models["tr"] = make_model(distillation.DistillationModel, priority=("tr",))
  models["cut"] = make_model(distillation.DistillationModel, matryoshka_dims=(5,))
  return evaluate(models, params, dict.fromkeys(models, precomputed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_follows_the_equations(results, student, precomputed, variant):
  loss, metrics = results[str(variant)]
  teacher = [np.float64(precomputed[name]) for name in tables.TEACHER_SIDES]
  expected = equations(precomputed, student, teacher, *variant)
  if not variant[1]:
    assert "loss/mono" not in metrics
    del expected["loss/mono"]
  assert loss == pytest.approx(expected["loss"], rel=1e-4)
  assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
  score_BB = scores(*student)
  assert metrics["accuracy/forward"] == np.mean(score_BB.argmax(axis=1) == np.arange(B))
  assert metrics["accuracy/backward"] == np.mean(score_BB.argmax(axis=0) == np.arange(B))


@pytest.mark.parametrize("first", ["en", "tr"])
def test_distillation_is_the_squared_error_of_both_sides(results, student, precomputed, first):
  loss, metrics = results[first]
  are_inputs = inputs_are_anchors(precomputed, ORDER if first == "en" else ["tr"])
  assert 0 < sum(are_inputs) < B
  teacher_pairs = zip(precomputed["teacher_inputs"], precomputed["teacher_targets"], strict=True)
  anchors = [
    pair[0 if is_input else 1] for pair, is_input in zip(teacher_pairs, are_inputs, strict=True)
  ]
  total = 0
  for name, vectors in zip(("inputs", "targets"), student, strict=True):
    total += sum(np.mean((x - y) ** 2) for x, y in zip(vectors, anchors, strict=True)) / B
    cosine_B = TAU * np.diag(scores(vectors, np.float64(anchors)))
    assert metrics[f"cosine/{name}"] == pytest.approx(np.mean(cosine_B), rel=1e-4)
  assert loss == pytest.approx(total, rel=1e-4)
  assert metrics["loss"] == pytest.approx(total, rel=1e-4)


def test_matryoshka_distillation_also_counts_the_errors_of_the_first_dimensions(
  results, student, precomputed
):
  (full_loss, _), (loss, metrics) = results["en"], results["cut"]
  are_inputs = inputs_are_anchors(precomputed, ORDER)
  teacher_pairs = zip(precomputed["teacher_inputs"], precomputed["teacher_targets"], strict=True)
  anchors = [
    pair[0 if is_input else 1] for pair, is_input in zip(teacher_pairs, are_inputs, strict=True)
  ]
  first = sum(
    np.sum((x - y)[:5] ** 2) / len(x) / B
    for vectors in student
    for x, y in zip(vectors, anchors, strict=True)
  )
  assert metrics["first_5/loss"] == pytest.approx(first, rel=1e-4)
  assert loss == pytest.approx((full_loss + first) / 2, rel=1e-4)


def test_a_batch_without_vectors_of_the_teacher_is_refused(params):
  with pytest.raises(errors.InputError, match="no teacher_inputs and teacher_targets; set TEACH"):
    make_model().loss_fn(params, make_batch(), None)


def test_a_teacher_of_another_width_teaches_similarities_only(params, precomputed, student):
  wide = np.random.default_rng(2).normal(size=(2, B, 20)).astype(np.float32)
  batch = precomputed | dict(zip(tables.TEACHER_SIDES, wide, strict=True))
  loss, _ = jit(make_model().loss_fn)(params, batch, None)
  expected = equations(batch, student, np.float64(wide), "priority", True, False)
  assert float(loss) == pytest.approx(expected["loss"], rel=1e-4)
  model = make_model(distillation.DistillationModel)
  with pytest.raises(errors.InputError, match="20 dimensions, but the student's vectors have 16"):
    jax.eval_shape(model.loss_fn, params, batch, None)
