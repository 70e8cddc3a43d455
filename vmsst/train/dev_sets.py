"""Evaluates an encoder on held-out sets during training."""

import json
import math
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vmsst import arrays, errors, languages
from vmsst.data import batches, retrieval_sets, tables, training_sets, vocabularies
from vmsst.encoder import encoder as encoder_lib
from vmsst.evaluation.benchmarks import sts
from vmsst.evaluation.metrics import retrieval
from vmsst.search import exact_search
from vmsst.train import inference, partitioning

TASK = "dev"  # name of the evaluation in metrics and files
_BATCH = 64


class _Texts(NamedTuple):
  """Two lists of texts to embed: sources and targets, or queries and documents.

  Attributes:
    texts: The two lists.
    languages: Language ids for each list, int32 [N, 1].
    score: Function that takes the vectors of both lists and returns metrics, the main metric first.
  """

  texts: Sequence[Sequence[str]]
  languages: Sequence[np.ndarray]
  score: Callable[..., dict[str, float]]


class DevSets:
  """Evaluates held-out sets during training; pass it to `train` as `evaluator`.

  The metrics depend on the set:

  * Pairs: the retrieval accuracies `to_target` and `from_target`, and their mean, `accuracy`.
  * Pairs with scores: `spearman` and `pearson`, the rank correlation and the linear correlation
    between scores and cosines.
  * Retrieval sets: `ndcg@10` and `recall@100`.

  All metrics are percentages named `METRIC/SET`. An additional metric, `score`, selects the best
  checkpoint. Metrics are also appended to `inference_eval/dev-metrics.jsonl` in the run's folder.

  Args:
    sets: Held-out sets by name, from `finetuning.open_dev_sets`. Their texts include the prompts.
    model: The model.
    vocabulary: Vocabulary to tokenize the texts with. It must not add another prompt.
    partitioner: Provides the device mesh.
    folder: The run's folder.
    metric: Name of the metric to use as the score, such as "ndcg@10/nq" (default: the first metric
      of each set, averaged over all sets).
  """

  def __init__(
    self,
    sets: Mapping[str, training_sets.OpenSet | retrieval_sets.RetrievalSet],
    model: Any,
    vocabulary: vocabularies.Vocabulary,
    partitioner: partitioning.PjitPartitioner,
    folder: str | os.PathLike[str],
    metric: str | None = None,
  ):
    self._model, self._partitioner, self._metric = model, partitioner, metric
    self._path = pathlib.Path(folder) / "inference_eval" / f"{TASK}-metrics.jsonl"
    self._embed: Any = None
    self._sets = {
      name: _pairs(dev.table) if isinstance(dev, training_sets.OpenSet) else _retrieval(dev)
      for name, dev in sets.items()
    }
    texts = [text for dev in self._sets.values() for column in dev.texts for text in column]
    language_N1 = np.concatenate([x for dev in self._sets.values() for x in dev.languages])
    tokenizer = batches.Tokenizer(vocabulary, max_length=None, keep_all=True)
    columns = {"inputs": texts, "input_language": language_N1}
    self._tokens = tokenizer(columns, {"inputs": model.max_length})

  def evaluate(self, train_state: Any, train_state_axes: Any) -> dict[str, dict[str, float]]:
    """Returns the metrics of the model, by task name.

    Raises:
      InputError: If the metric named by `metric` does not exist.
    """
    if self._embed is None:
      # Choose batches of nearly equal size. The last batch has the longest texts, so filling it
      # with copies of a row would take the most time.
      count, devices = len(self._tokens["inputs"]), self._partitioner.mesh.shape["data"]
      size = math.ceil(count / math.ceil(count / _BATCH) / devices) * devices
      self._embed = inference.get_array_fn(
        self._model.score_batch, size, train_state_axes, self._partitioner
      )
    metrics = self._metrics(self._embed(self._tokens, train_state))
    self._path.parent.mkdir(exist_ok=True)
    with self._path.open("a", encoding="utf-8") as stream:
      stream.write(json.dumps({"step": int(train_state.step), **metrics}) + "\n")
    return {TASK: metrics}

  def evaluate_encoder(self, encoder: encoder_lib.Encoder) -> dict[str, float]:
    """Returns the metrics of an encoder that uses the model's vocabulary."""
    ids = [row_T[row_T != arrays.PAD_ID].tolist() for row_T in self._tokens["inputs"]]
    return self._metrics(encoder.encode_ids(ids))

  def _metrics(self, vectors_ND: np.ndarray) -> dict[str, float]:
    metrics: dict[str, float] = {}
    main: list[float] = []
    for name, dev in self._sets.items():
      *vectors, vectors_ND = np.split(vectors_ND, np.cumsum([len(x) for x in dev.texts]))
      values = dev.score(*vectors)
      main.append(next(iter(values.values())))
      metrics |= {f"{key}/{name}": value for key, value in values.items()}
    if self._metric is not None:
      errors.check_choice("the metric that selects checkpoints", self._metric, metrics)
    return {**metrics, "score": metrics[self._metric] if self._metric else statistics.fmean(main)}


def _pairs(table: tables.TextTable) -> _Texts:
  """Prepares pairs for scoring by retrieval, or by correlation if they have a column `scores`."""
  columns = table.rows(np.arange(len(table)))
  texts = (columns["inputs"], columns["targets"])
  ids = [columns[name] for name in tables.SIDES.values()]

  def accuracy(source_ND: np.ndarray, target_ND: np.ndarray) -> dict[str, float]:
    shares = retrieval.translation_accuracy(source_ND, target_ND, texts=texts)
    names = {"accuracy": "average", "to_target": "forward", "from_target": "backward"}
    return {name: 100 * shares[key] for name, key in names.items()}

  def correlation(source_ND: np.ndarray, target_ND: np.ndarray) -> dict[str, float]:
    values = sts.correlations(sts.cosines(source_ND, target_ND), columns["scores"][:, 0])
    return {name: values[name] for name in ("spearman", "pearson")}

  return _Texts(texts, ids, correlation if "scores" in columns else accuracy)


def _retrieval(texts: retrieval_sets.RetrievalSet) -> _Texts:
  """Prepares queries and documents for scoring by the ranks of the relevant documents."""
  number = {document: row for row, document in enumerate(texts.documents)}
  # Drop queries without relevant documents, because the metrics are undefined for them.
  judged = {query: grades for query, grades in texts.relevance.items() if any(grades.values())}
  gold = [{number[name]: grade for name, grade in grades.items()} for grades in judged.values()]
  lists = [[texts.queries[query] for query in judged], [*texts.documents.values()]]
  unknown = [np.full([len(x), 1], languages.UNDETERMINED.index, np.int32) for x in lists]

  def score(query_QD: np.ndarray, document_ND: np.ndarray) -> dict[str, float]:
    nearest = exact_search.top_k(query_QD, document_ND, 100)
    values = retrieval.rank_metrics(nearest, gold, 10)
    recall = retrieval.rank_metrics(nearest, gold, 100)["R@100"]
    return {"ndcg@10": 100 * values["nDCG@10"], "recall@100": 100 * recall}

  return _Texts(lists, unknown, score)
