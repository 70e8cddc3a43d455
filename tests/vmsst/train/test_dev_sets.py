"""Held-out sets during training: pairs, graded pairs and retrieval."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy import stats

from vmsst import errors
from vmsst.data import retrieval_sets, training_sets, vocabularies
from vmsst.networks import sentence_encoder
from vmsst.train import dev_sets, partitioning

BYTES = vocabularies.ByteVocabulary()
TABLE_VS = np.random.default_rng(0).normal(size=(BYTES.size, 8)).astype(np.float32)


class Sums(nn.Module):
  """Embeds a text as the sum of its tokens' vectors."""

  normalize: bool = True

  @nn.compact
  def __call__(self, tokens_BT, deterministic):
    table_VS = self.param("table", nn.initializers.zeros, TABLE_VS.shape)
    sum_BS = jnp.sum(jnp.where((tokens_BT != 0)[:, :, None], table_VS[tokens_BT], 0.0), axis=1)
    return jnp.zeros_like(sum_BS) if self.normalize else sum_BS


class Model:
  """A model without a loss."""

  max_length = 16

  def score_batch(self, params, batch):
    return sentence_encoder.embed(Sums(normalize=False), params, batch["inputs"])


class Margins(Model):
  """Trains with margins to hard negatives, with vectors before normalization."""

  sentence_encoder = Sums()

  def loss_of_vectors(self, params, vector_BRS, batch):
    score_BR = jnp.einsum("BS,BRS->BR", vector_BRS[:, 0], vector_BRS[:, 1:])
    is_text_BK = (batch["negatives"] != 0).any(axis=2)
    worst_B = jnp.max(jnp.where(is_text_BK, score_BR[:, 1:], -jnp.inf), axis=1)
    return jnp.mean(worst_B - score_BR[:, 0]) + params["table"][0, 0], {}


def embed(texts):
  return np.stack(
    [TABLE_VS[[*BYTES.tokenize([text])[0], BYTES.eos_id]].sum(axis=0) for text in texts]
  )


def cosines(first, second):
  first_ND, second_MD = (
    x / np.linalg.norm(x, axis=1, keepdims=True) for x in (embed(first), embed(second))
  )
  return first_ND @ second_MD.T


def open_pairs(data, **options):
  return training_sets.open_set("x", training_sets.TrainingSet(data, **options))


STATE = types.SimpleNamespace(params={"table": jnp.array(TABLE_VS)}, flax_mutables={}, step=3)
AXES = types.SimpleNamespace(params=jax.sharding.PartitionSpec(), flax_mutables={})


def test_metrics_of_three_kinds_of_sets(tmp_path):
  words = [f"{a}{b}" for a in "abcdefg" for b in "hijklmn"]
  pairs = list(zip(words[:20], words[3:23], strict=True))
  graded = [{"x": x, "y": y, "score": i % 7} for i, (x, y) in enumerate(pairs)]
  gold = {query: {words[i]: 2, words[-i - 1]: 1, words[9]: 0} for i, query in enumerate("pqrst")}
  questions = retrieval_sets.RetrievalSet(
    {query: f"{query}?" for query in [*gold, "u"]},
    {word: word for word in words},
    {**gold, "u": {words[0]: 0}},
  )
  partitioner = partitioning.PjitPartitioner(num_partitions=1)
  sets = {
    "pairs": open_pairs(pairs, prompts=("> ", "")),
    "graded": open_pairs(graded),
    "questions": questions.with_prompts("q ", ""),
  }
  arguments = (sets, Model(), BYTES, partitioner, tmp_path)
  evaluator = dev_sets.DevSets(*arguments)
  metrics = evaluator.evaluate(STATE, AXES)[dev_sets.TASK]

  score_NN = cosines([f"> {x}" for x, _ in pairs], [y for _, y in pairs])
  own_N = np.arange(len(pairs))
  assert metrics["to_target/pairs"] == pytest.approx(100 * np.mean(score_NN.argmax(1) == own_N))
  assert metrics["from_target/pairs"] == pytest.approx(100 * np.mean(score_NN.argmax(0) == own_N))
  cosine_N = np.diag(cosines(*zip(*pairs, strict=True)))
  expected = 100 * stats.spearmanr(cosine_N, [x["score"] for x in graded]).statistic
  assert metrics["spearman/graded"] == pytest.approx(expected, abs=1e-3)
  order = np.argsort(-cosines([f"q {query}?" for query in gold], words), axis=1)
  gains = [
    [gold[query].get(words[i], 0) for i in row[:10]] for query, row in zip(gold, order, strict=True)
  ]
  best = 2 + 1 / np.log2(3)
  discount = 1 / np.log2(np.arange(2, 12))
  assert metrics["ndcg@10/questions"] == pytest.approx(100 * np.mean(gains @ discount) / best)
  mean = (metrics["accuracy/pairs"] + metrics["spearman/graded"] + metrics["ndcg@10/questions"]) / 3
  assert metrics["score"] == pytest.approx(mean)
  (line,) = (tmp_path / "inference_eval" / "dev-metrics.jsonl").read_text().splitlines()
  assert json.loads(line) == {"step": 3, **metrics}
  by_one_set = dev_sets.DevSets(*arguments, "recall@100/questions").evaluate(STATE, AXES)
  assert by_one_set[dev_sets.TASK]["score"] == metrics["recall@100/questions"]
  with pytest.raises(errors.InputError, match=r"is 'accuracy'; known: accuracy/pairs"):
    dev_sets.DevSets(*arguments, "accuracy").evaluate(STATE, AXES)


@pytest.mark.parametrize("batch_size", [4, 64])
def test_the_loss_is_averaged_over_batches_with_hard_negatives(tmp_path, batch_size):
  negatives = [["on", "under", "below"][: 1 + i % 3] for i in range(12)]
  rows = [(f"{i}", f"number {i}", *texts) for i, texts in enumerate(negatives)]
  sets = {"mined": open_pairs(rows), "pairs": open_pairs([row[:2] for row in rows])}
  partitioner = partitioning.PjitPartitioner(num_partitions=1)
  evaluator = dev_sets.DevSets(
    sets, Margins(), BYTES, partitioner, tmp_path, with_loss=["mined"], batch_size=batch_size
  )
  metrics = evaluator.evaluate(STATE, AXES)[dev_sets.TASK]
  losses = []
  for source, target, *wrong in rows:
    vector_S, target_S, *wrong_KS = embed([source, target, *wrong])
    losses.append(max(vector_S @ x for x in wrong_KS) - vector_S @ target_S)
  assert metrics["loss/mined"] == pytest.approx(np.mean(losses) + TABLE_VS[0, 0], rel=1e-4)
  assert "loss/pairs" not in metrics
  assert metrics["score"] == (metrics["accuracy/mined"] + metrics["accuracy/pairs"]) / 2
