"""Evaluates an encoder on held-out sets during training."""

import dataclasses
import json
import math
import os
import pathlib
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vmsst import arrays, errors, languages
from vmsst.data import batches, retrieval_sets, tables, training_sets, vocabularies
from vmsst.encoder import encoder as encoder_lib
from vmsst.evaluation.benchmarks import sts
from vmsst.evaluation.metrics import retrieval
from vmsst.networks import sentence_encoder
from vmsst.search import exact_search
from vmsst.train import inference, input_pipeline, partitioning

TASK = "dev"  # name of the evaluation in metrics and files
_BATCH = 64
# The loss is computed on at most this many pairs per set.
_LOSS_PAIRS = 1000


class _Texts(NamedTuple):
  """Lists of texts to embed: sources, targets and hard negatives, or queries and documents.

  Attributes:
    tokens: Token ids of each list, int32 [N, T].
    score: Function that takes the vectors of the first two lists and returns metrics, the main
      metric first.
    pairs: Features of the pairs to compute the loss for, if any.
  """

  tokens: Sequence[np.ndarray]
  score: Callable[..., dict[str, float]]
  pairs: input_pipeline.Batch


class DevSets:
  """Evaluates held-out sets during training; pass it to `train` as `evaluator`.

  The metrics depend on the set:

  * Pairs: the retrieval accuracies `to_target` and `from_target`, and their mean, `accuracy`.
  * Pairs with scores: `spearman` and `pearson`, the rank correlation and the linear correlation
    between scores and cosines.
  * Retrieval sets: `ndcg@10` and `recall@100`.

  These metrics are percentages named `METRIC/SET`. An additional metric, `score`, selects the best
  checkpoint. For each set in `with_loss`, `loss/SET` is the mean loss over batches of `batch_size`
  pairs, without an incomplete last batch. It uses at most 1,000 random pairs, which are the same in
  every evaluation. A set with fewer pairs than a batch forms one batch. All metrics are also
  appended to `inference_eval/dev-metrics.jsonl` in the run's folder.

  Args:
    sets: Held-out sets by name, from `finetuning.open_dev_sets`. Their texts include the prompts.
    model: The model. For a loss, it must be a model of this library that has `loss_of_vectors`.
    vocabulary: Vocabulary to tokenize the texts with. It must not add another prompt.
    partitioner: Provides the device mesh.
    folder: The run's folder.
    metric: Name of the metric to use as the score, such as "ndcg@10/nq" (default: the first metric
      of each set, averaged over all sets).
    with_loss: Names of the sets of pairs to compute the loss for.
    batch_size: Number of pairs per batch for the loss.
  """

  def __init__(
    self,
    sets: Mapping[str, training_sets.OpenSet | retrieval_sets.RetrievalSet],
    model: Any,
    vocabulary: vocabularies.Vocabulary,
    partitioner: partitioning.PjitPartitioner,
    folder: str | os.PathLike[str],
    metric: str | None = None,
    with_loss: Collection[str] = (),
    batch_size: int = 64,
  ):
    self._model, self._partitioner, self._metric = model, partitioner, metric
    self._path = pathlib.Path(folder) / "inference_eval" / f"{TASK}-metrics.jsonl"
    self._batch_size = batch_size
    self._embed: Any = None
    tokenizer = batches.Tokenizer(vocabulary, max_length=None, keep_all=True)

    def tokenize(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
      lengths: dict[str, Any] = dict.fromkeys(columns, model.max_length)
      if "negatives" in columns:
        lengths["negatives"] = (None, model.max_length)
      return tokenizer(columns, lengths)

    self._sets = {
      name: _pairs(dev.table, tokenize, name in with_loss)
      if isinstance(dev, training_sets.OpenSet)
      else _retrieval(dev, tokenize)
      for name, dev in sets.items()
    }
    self._tokens = np.concatenate([x for dev in self._sets.values() for x in dev.tokens])

  def evaluate(self, train_state: Any, train_state_axes: Any) -> dict[str, dict[str, float]]:
    """Returns the metrics of the model, by task name.

    Raises:
      InputError: If the metric named by `metric` does not exist.
    """
    if self._embed is None:
      # Choose batches of nearly equal size. The last batch has the longest texts, so filling it
      # with copies of a row would take the most time.
      count, devices = len(self._tokens), self._partitioner.mesh.shape["data"]
      size = math.ceil(count / math.ceil(count / _BATCH) / devices) * devices
      embed = self._model.score_batch
      if any(dev.pairs for dev in self._sets.values()):
        embed = self._unnormalized  # The metrics are the same for normalized vectors.
        self._loss = self._partitioner.partition(
          self._model.loss_of_vectors,
          in_axis_resources=(train_state_axes.params, None, None),
          out_axis_resources=None,
        )
      self._embed = inference.get_array_fn(embed, size, train_state_axes, self._partitioner)
    vectors = self._by_set(self._embed({"inputs": self._tokens}, train_state))
    metrics = self._metrics(vectors)
    for name, dev in self._sets.items():
      if dev.pairs:
        metrics[f"loss/{name}"] = self._mean_loss(train_state.params, dev.pairs, vectors[name])
    self._path.parent.mkdir(exist_ok=True)
    with self._path.open("a", encoding="utf-8") as stream:
      stream.write(json.dumps({"step": int(train_state.step), **metrics}) + "\n")
    return {TASK: metrics}

  def evaluate_encoder(self, encoder: encoder_lib.Encoder) -> dict[str, float]:
    """Returns the metrics of an encoder that uses the model's vocabulary."""
    ids = [row_T[row_T != arrays.PAD_ID].tolist() for row_T in self._tokens]
    return self._metrics(self._by_set(encoder.encode_ids(ids)))

  def _unnormalized(self, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the vectors of the texts in `inputs` before normalization."""
    encoder = dataclasses.replace(self._model.sentence_encoder, normalize=False, parent=None)
    return sentence_encoder.embed(encoder, params, batch["inputs"])

  def _by_set(self, vector_NS: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Returns the vectors of each list of texts in each set."""
    vectors: dict[str, list[np.ndarray]] = {}
    for name, dev in self._sets.items():
      *vectors[name], vector_NS = np.split(vector_NS, np.cumsum([len(x) for x in dev.tokens]))
    return vectors

  def _mean_loss(self, params: Any, pairs: input_pipeline.Batch, vectors: Any) -> float:
    count = len(pairs["inputs"])
    size = min(self._batch_size, count)
    vector_NRS = np.stack([x[:count] for x in vectors], axis=1)
    rows = [slice(start, start + size) for start in range(0, count - size + 1, size)]
    losses = (
      self._loss(params, vector_NRS[x], input_pipeline.take_rows(pairs, x))[0] for x in rows
    )
    return statistics.fmean(map(float, losses))

  def _metrics(self, vectors: Mapping[str, Sequence[np.ndarray]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    main: list[float] = []
    for name, dev in self._sets.items():
      values = dev.score(*vectors[name][:2])
      main.append(next(iter(values.values())))
      metrics |= {f"{key}/{name}": value for key, value in values.items()}
    if self._metric is not None:
      errors.check_choice("the metric that selects checkpoints", self._metric, metrics)
    return {**metrics, "score": metrics[self._metric] if self._metric else statistics.fmean(main)}


def _pairs(table: tables.TextTable, tokenize: Callable[..., Any], has_loss: bool) -> _Texts:
  """Prepares pairs for scoring by retrieval, or by correlation if they have a column `scores`."""
  # Shuffle the rows, because the loss compares neighbors.
  order_N = np.random.default_rng(0).permutation(len(table))
  columns = {name: x for name, x in table.rows(order_N).items() if name != "negatives"}
  texts = (columns["inputs"], columns["targets"])
  features = tokenize(columns)
  tokens = [features[name] for name in tables.SIDES]
  pairs = tokenize(table.rows(order_N[:_LOSS_PAIRS])) if has_loss else {}
  tokens += [*pairs["negatives"].swapaxes(0, 1)] if "negatives" in pairs else []

  def accuracy(source_ND: np.ndarray, target_ND: np.ndarray) -> dict[str, float]:
    shares = retrieval.translation_accuracy(source_ND, target_ND, texts=texts)
    names = {"accuracy": "average", "to_target": "forward", "from_target": "backward"}
    return {name: 100 * shares[key] for name, key in names.items()}

  def correlation(source_ND: np.ndarray, target_ND: np.ndarray) -> dict[str, float]:
    values = sts.correlations(sts.cosines(source_ND, target_ND), columns["scores"][:, 0])
    return {name: values[name] for name in ("spearman", "pearson")}

  score = correlation if "scores" in columns else accuracy
  return _Texts(tokens, score, pairs)


def _retrieval(texts: retrieval_sets.RetrievalSet, tokenize: Callable[..., Any]) -> _Texts:
  """Prepares queries and documents for scoring by the ranks of the relevant documents."""
  number = {document: row for row, document in enumerate(texts.documents)}
  # Drop queries without relevant documents, because the metrics are undefined for them.
  judged = {query: grades for query, grades in texts.relevance.items() if any(grades.values())}
  gold = [{number[name]: grade for name, grade in grades.items()} for grades in judged.values()]
  lists = [[texts.queries[query] for query in judged], [*texts.documents.values()]]
  unknown = languages.UNDETERMINED.index
  tokens = [
    tokenize({"inputs": x, "input_language": np.full([len(x), 1], unknown)})["inputs"]
    for x in lists
  ]

  def score(query_QD: np.ndarray, document_ND: np.ndarray) -> dict[str, float]:
    nearest = exact_search.top_k(query_QD, document_ND, 100)
    values = retrieval.rank_metrics(nearest, gold, 10)
    recall = retrieval.rank_metrics(nearest, gold, 100)["R@100"]
    return {"ndcg@10": 100 * values["nDCG@10"], "recall@100": 100 * recall}

  return _Texts(tokens, score, {})
