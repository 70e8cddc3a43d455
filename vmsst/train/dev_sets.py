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

TASK = "dev"
"""Name of the evaluation in metrics and files."""
_BATCH = 64


class _Texts(NamedTuple):
  """Two lists of texts to embed: sources and targets, or queries and documents.

  Attributes:
    texts: The two lists.
    languages: Language ids of each list, int32 [N, 1].
    score: Returns metrics of the vectors of the two lists, the most important one first.
  """

  texts: Sequence[Sequence[str]]
  languages: Sequence[np.ndarray]
  score: Callable[..., dict[str, float]]


class DevSets:
  """Evaluates held-out sets, as the `evaluator` of `train`.

  Pairs are scored by the accuracy of retrieval among them: `to_target`, `from_target` and their
  mean, `accuracy`. Pairs with scores: by `spearman`, the rank correlation of the scores and the
  cosines. Retrieval sets: by `ndcg@10` and `recall@100`. All are percentages, named
  `METRIC/NAME OF THE SET`; `score` selects checkpoints. They are also appended to
  `inference_eval/dev-metrics.jsonl` of the run.

  Args:
    sets: Training sets or retrieval sets by name, with their prompts.
    model: The model.
    vocabulary: Tokenizes the texts; it adds no prompt.
    partitioner: The mesh.
    folder: Folder of the run.
    metric: Name of the metric that is the score, such as "ndcg@10/nq" (default: the mean of the
      first metric of all sets).
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
      name: _pairs(each.table) if isinstance(each, training_sets.OpenSet) else _retrieval(each)
      for name, each in sets.items()
    }
    texts = [text for each in self._sets.values() for part in each.texts for text in part]
    language_N1 = np.concatenate([x for each in self._sets.values() for x in each.languages])
    tokenizer = batches.Tokenizer(vocabulary, max_length=None, keep_all=True)
    columns = {"inputs": texts, "input_language": language_N1}
    self._tokens = tokenizer(columns, {"inputs": model.max_length})

  def evaluate(self, train_state: Any, train_state_axes: Any) -> dict[str, dict[str, float]]:
    """Returns the metrics of the model, by the name of the task.

    Raises:
      InputError: there is no metric of the name in `metric`.
    """
    if self._embed is None:
      size = math.lcm(_BATCH, self._partitioner.mesh.shape["data"])
      self._embed = inference.get_array_fn(
        self._model.score_batch, size, train_state_axes, self._partitioner
      )
    metrics = self._metrics(self._embed(self._tokens, train_state))
    self._path.parent.mkdir(exist_ok=True)
    with self._path.open("a", encoding="utf-8") as stream:
      stream.write(json.dumps({"step": int(train_state.step), **metrics}) + "\n")
    return {TASK: metrics}

  def evaluate_encoder(self, encoder: encoder_lib.Encoder) -> dict[str, float]:
    """Returns the metrics of an encoder with the vocabulary of the model."""
    ids = [row_T[row_T != arrays.PAD_ID].tolist() for row_T in self._tokens["inputs"]]
    return self._metrics(encoder.encode_ids(ids))

  def _metrics(self, vectors_ND: np.ndarray) -> dict[str, float]:
    metrics: dict[str, float] = {}
    main: list[float] = []
    for name, each in self._sets.items():
      *vectors, vectors_ND = np.split(vectors_ND, np.cumsum([len(x) for x in each.texts]))
      values = each.score(*vectors)
      main.append(next(iter(values.values())))
      metrics |= {f"{key}/{name}": value for key, value in values.items()}
    if self._metric is not None:
      errors.check_choice("the metric that selects checkpoints", self._metric, metrics)
    return {**metrics, "score": metrics[self._metric] if self._metric else statistics.fmean(main)}


def _pairs(table: tables.TextTable) -> _Texts:
  """Returns pairs to score by retrieval among them, or by their `scores`."""
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
  """Returns queries and documents to score by the ranks of the relevant documents."""
  number = {document: row for row, document in enumerate(texts.documents)}
  # No metric is defined for a query without a relevant document.
  judged = {query: grades for query, grades in texts.relevance.items() if any(grades.values())}
  gold = [{number[name]: grade for name, grade in grades.items()} for grades in judged.values()]
  lists = [[texts.queries[query] for query in judged], [*texts.documents.values()]]
  unknown = [np.full([len(x), 1], languages.UNDETERMINED.index, np.int32) for x in lists]

  def score(query_QD: np.ndarray, document_ND: np.ndarray) -> dict[str, float]:
    near = exact_search.top_k(query_QD, document_ND, 100)
    values = retrieval.rank_metrics(near, gold, 10)
    recall = retrieval.rank_metrics(near, gold, 100)["R@100"]
    return {"ndcg@10": 100 * values["nDCG@10"], "recall@100": 100 * recall}

  return _Texts(lists, unknown, score)
