"""SeqIO evaluation tasks: one text per row, embedded by the model and scored together.

The texts of several `vmsst.evaluation.suite.Task` are rows {inputs [T]} for the model, with `row`,
their number in the order of the tasks and sides. `VectorMetric` computes metrics from these numbers
and the embeddings of all rows, [N, D]. Metrics use NumPy only and are times 100.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax
import numpy as np
import seqio
from absl import logging

from vmsst import errors, storage
from vmsst.data import readers, seqio_tasks, tables, vocabularies
from vmsst.evaluation import benchmarks as benchmarks_lib
from vmsst.evaluation import suite as suite_lib
from vmsst.evaluation.benchmarks import bitext_retrieval
from vmsst.evaluation.benchmarks import questions as questions_lib
from vmsst.formats import encoder_json
from vmsst.io import input_files
from vmsst.languages import Language, language
from vmsst.tasks import bitext

IN_TRAINING = ("sts", "xlsts", "tatoeba", "mining", "mkqa_small", "questions")
"""Benchmarks that are small enough to be evaluated during training; `questions` with a sample."""
ROW = "row"
"""The feature with the number of a text."""


def tatoeba(
  root: str,
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: Sequence[str] | None = None,
  max_length: int | None = None,
) -> str:
  """Returns the name of the task of the Tatoeba test sets: each language to English and back.

  Metrics, in percent, for each language code XXX of the file names: `to_english/XXX`,
  `from_english/XXX`, `accuracy/XXX` (the mean of the two), and the means over all languages,
  `to_english/average`, `from_english/average`, `accuracy/average`. Its only split is `test`.

  Args:
    root: Folder of `tatoeba.XXX-eng.XXX` and `tatoeba.XXX-eng.eng`, plain or `.gz`, as in LASER,
      local or in an object store.
    vocabulary: Tokenizes the texts.
    languages: Codes, in any standard; None: every language in the folder.
    max_length: Longer texts are cut to this many tokens, EOS token included; None: no limit.

  Raises:
    InputError: the folder or a language does not exist.
  """
  folder = storage.path(storage.absolute(root))
  paths = bitext_retrieval.tatoeba_files(folder)
  codes = {language(code): code for code in sorted(paths)}
  wanted = [*codes] if languages is None else [*map(language, languages)]
  if missing := [x.name for x in wanted if x not in codes]:
    raise errors.InputError(
      f"{root}: no test set of {', '.join(missing)}; choose among {', '.join(codes.values())}"
    )
  chosen = [codes[x] for x in wanted]

  def load() -> list[suite_lib.Task]:
    return [bitext_retrieval.tatoeba_task(code, *paths[code]) for code in chosen]

  key = (str(folder), chosen, [storage.version(x) for code in chosen for x in paths[code]])
  return _register("tatoeba", key, "test", load, vocabulary, max_length)


def sample_retrieval(
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: Sequence[str] | None = None,
  num_meanings: int = 500,
  max_length: int | None = None,
) -> str:
  """Returns the name of the task of retrieval over held-out meanings of the sample corpus.

  The metrics are those of `tatoeba`, with the language codes of the corpus. Its only split is
  `validation`.

  Args:
    vocabulary: Tokenizes the texts.
    languages: Codes of the languages other than English; None: all of the corpus.
    num_meanings: Number of meanings to search, spread evenly over the held-out ones.
    max_length: Longer texts are cut to this many tokens, EOS token included; None: no limit.
  """
  from vmsst.data import sample

  chosen = sample.other_codes(languages)

  def load() -> list[suite_lib.Task]:
    total = sample.num_meanings("validation")
    count = min(num_meanings, total)
    meanings = [i * total // count for i in range(count)]

    def texts(code: str) -> list[str]:
      return [sample.sentence(x, code, "validation") for x in meanings]

    english = texts("en")
    return [
      bitext_retrieval.retrieval_task(code, (code, "en"), (texts(code), english)) for code in chosen
    ]

  key = (chosen, num_meanings)
  return _register("sample_retrieval", key, "validation", load, vocabulary, max_length)


def retrieval(
  patterns: str | Sequence[str],
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: tuple[str, str] | None = None,
  max_length: int | None = None,
) -> str:
  """Returns the name of the task of retrieval over your own bitext files.

  The arguments are those of `bitext.files`. The metrics are those of `tatoeba`, named by language
  pair, with the target side in place of English: `to_target/deu_eng`, `from_target/deu_eng`,
  `accuracy/deu_eng`, and `.../average`. Undetermined languages have the name of those in the file
  name, else `source_target`. Its only split is `test`.
  """
  files = readers.find_bitext(patterns, languages)

  def load() -> list[suite_lib.Task]:
    rows_by_pair: dict[tuple[str, tuple[Language, Language]], list[tuple[str, str]]] = {}
    for file in files:
      pair = readers.shown_pair(file), (file.source, file.target)
      rows_by_pair.setdefault(pair, []).extend(readers.read_pairs(file))
    return [_pair_task(*pair, rows) for pair, rows in rows_by_pair.items()]

  # By content: `finetune` writes equal files again to resume a run, whose metrics keep their names.
  key = (files, [input_files.sha256(path) for file in files for path in file.paths])
  return _register("retrieval", key, "test", load, vocabulary, max_length)


def opus_validation(
  config: str,
  vocabulary: vocabularies.Vocabulary,
  data_dir: str | None = None,
  *,
  languages: Sequence[str] | None = None,
  pivots: Sequence[str] | None = None,
  corpus: str = "Tatoeba",
  max_length: int | None = None,
) -> str:
  """Returns the name of the task of retrieval over the validation pairs of one OPUS corpus.

  The metrics are those of `retrieval`. Its only split is `validation`.

  Args:
    config: As of `bitext.opus`.
    vocabulary: Tokenizes the texts.
    data_dir: As of `bitext.opus`.
    languages: As of `bitext.opus`.
    pivots: As of `bitext.opus`.
    corpus: Name of the corpus in OPUS.
    max_length: Longer texts are cut to this many tokens, EOS token included; None: no limit.

  Raises:
    InputError: as `bitext.opus`, or, when the task is first read, no language pair has validation
      pairs of the corpus.
  """
  _, folder = bitext.find(config, data_dir)
  splits = bitext.language_pairs(folder, languages, pivots)

  def load() -> list[suite_lib.Task]:
    pairs = bitext.validation_pairs(folder, splits, corpus)
    return [_pair_task(readers.pair_name(*pair), pair, rows) for pair, rows in pairs.items()]

  key = (str(folder), storage.version(folder / "dataset_info.json"), languages, pivots, corpus)
  return _register("opus_validation", key, "validation", load, vocabulary, max_length)


def suite(
  root: str,
  vocabulary: vocabularies.Vocabulary,
  *,
  benchmarks: Sequence[str] | None = None,
  paq_distractors: int = 100_000,
  training_languages: Sequence[str] | None = None,
  max_length: int | None = None,
) -> str:
  """Returns the name of a mixture of benchmarks, one task each, for evaluation during training.

  The metrics of a task are the averages of its benchmark, as in `vmsst eval`; its name is
  `vmsst_eval_` and the name of the benchmark. The only split is `test`. The task of `questions`
  searches a sample of PAQ and is named `vmsst_eval_questions_sample`.

  Args:
    root: Folder with the folders of the benchmarks (`vmsst eval --list` shows them), local or in an
      object store.
    vocabulary: Tokenizes the texts.
    benchmarks: Names of benchmarks; None: those of `IN_TRAINING` that are present; the others are
      logged.
    paq_distractors: Random questions of PAQ to search, in addition to right ones; see
      `questions.knowledge_sample`.
    training_languages: Codes of the languages of the training data, which count as seen; None:
      unknown.
    max_length: Longer texts are cut to this many tokens, EOS token included; None: no limit.

  Raises:
    InputError: a benchmark is unknown, missing or damaged, or too large for memory.
  """
  folder = storage.path(storage.absolute(root))
  chosen = benchmarks_lib.get_benchmarks(IN_TRAINING if benchmarks is None else benchmarks)
  sampled = {questions_lib.QUESTIONS.name: questions_lib.sample_benchmark(paq_distractors)}
  chosen = [sampled.get(benchmark.name, benchmark) for benchmark in chosen]
  seen = None
  if training_languages is not None:
    seen = suite_lib.seen_test(map(language, training_languages))
  names = []
  for benchmark in chosen:
    if reason := benchmark.files.absence(folder):
      if benchmarks is not None:
        raise errors.InputError(f"benchmark {benchmark.name}: {reason}")
      logging.warning("benchmark %s is missing: %s", benchmark.name, reason)
      continue
    versions = [storage.version(path) for path in benchmark.files.find(folder)]
    names.append(
      _register(
        f"vmsst_eval_{benchmark.name}",
        (str(folder), training_languages, paq_distractors, versions),
        "test",
        functools.partial(_held_tasks, benchmark, folder),
        vocabulary,
        max_length,
        functools.partial(benchmark.summarize, seen=seen),
      )
    )
  if not names:
    raise errors.InputError(
      f"{folder} has none of the benchmarks {', '.join(IN_TRAINING)}; download one with "
      "`vmsst data download`"
    )
  name = seqio_tasks.unique_name("vmsst_eval", *names)
  if name not in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.add(name, names, default_rate=1.0)
  return name


def _held_tasks(benchmark: suite_lib.Benchmark, folder: storage.Path) -> list[suite_lib.Task]:
  tasks = benchmark.read(folder)
  if not tasks or any(task.large for task in tasks):
    raise errors.InputError(
      f"benchmark {benchmark.name} has no files, or is too large for SeqIO; run `vmsst eval "
      f"--suite {benchmark.name}` on a checkpoint"
    )
  return [*tasks]


@flax.struct.dataclass
class VectorMetric(seqio.metrics.Metric):
  """Computes the metrics of a task from the vectors of its texts, for `metric_objs` of seqio.

  Evaluators convert the arguments of `metric_fns` to Python lists, eight times as large.

  Attributes:
    measure: Maps the number of each row [N] and the vectors [N, D] to metrics by name.
    metrics: The metrics.
  """

  model_output_type: seqio.metrics.ModelOutputType = seqio.metrics.ModelOutputType.SCORE
  measure: Any = flax.struct.field(pytree_node=False, default=None)
  metrics: Any = flax.struct.field(pytree_node=False, default=None)

  def from_model_output(
    self, inputs: Iterable[Mapping[str, Any]], model_output: np.ndarray, *unused: Any
  ) -> "VectorMetric":
    """Returns the metrics of a dataset's rows and their vectors."""
    row_N = np.array([row[ROW] for row in inputs], np.int32)
    return self.replace(metrics=self.measure(row_N, model_output))

  def compute(self) -> dict[str, float]:
    """Returns the metrics by name."""
    return self.metrics


def collect_results(
  tasks: Sequence[suite_lib.Task], row_N: np.ndarray, vectors_ND: np.ndarray
) -> list[suite_lib.Result]:
  """Returns the results of tasks with the embeddings of their texts.

  Args:
    tasks: The tasks.
    row_N: The number of each text, in any order.
    vectors_ND: The embeddings.

  Raises:
    InputError: the embeddings are not finite.
  """
  vectors_ND = np.asarray(vectors_ND, np.float32)
  if not np.isfinite(vectors_ND).all():
    raise errors.InputError(
      "the model's vectors are not finite: training has diverged; evaluate an earlier checkpoint"
    )
  vectors_ND = vectors_ND[np.argsort(row_N)]
  ends = np.cumsum([len(side.texts) for task in tasks for side in task.sides])
  arrays = iter(np.split(vectors_ND, ends[:-1]))
  return [
    result for task in tasks for result in task.score(*itertools.islice(arrays, len(task.sides)))
  ]


def _pair_task(
  name: str, pair: tuple[Language, Language], rows: Iterable[tuple[str, str]]
) -> suite_lib.Task:
  """Returns the task of retrieving translations among the texts of a language pair."""
  source, target = map(readers.language_code, pair)
  texts = [*zip(*rows, strict=True)]
  return bitext_retrieval.retrieval_task(name, (source, target), texts, "target", several=True)


def _retrieval_metrics(results: Sequence[suite_lib.Result]) -> dict[str, float]:
  """Returns accuracies in both directions and their mean, by language and averaged."""
  by_name = {result.name: result.metrics for result in results}
  keys = list(results[0].metrics)
  by_name["average"] = {key: statistics.fmean(x[key] for x in by_name.values()) for key in keys}
  names = {key: key.replace(" ", "_").lower() for key in keys} | {"average": "accuracy"}
  return {f"{names[key]}/{code}": by_name[code][key] for key in keys for code in by_name}


def _register(
  kind: str,
  key: tuple[object, ...],
  split: str,
  load: Callable[[], Sequence[suite_lib.Task]],
  vocabulary: vocabularies.Vocabulary,
  max_length: int | None,
  metrics: Callable[[Sequence[suite_lib.Result]], dict[str, float]] = _retrieval_metrics,
) -> str:
  """Registers a task unless it is registered; returns its name.

  Args:
    kind: Beginning of the name.
    key: All that `load` and `metrics` depend on, files included; the same key gives the same name.
    split: Name of the only split.
    load: Loads the tasks of the evaluation suite, on first use.
    vocabulary: Tokenizes the texts.
    max_length: Longer texts are cut to this many tokens; None: no limit.
    metrics: Turns the results of the tasks into the metrics.
  """
  digest = encoder_json.vocabulary_digest(vocabulary)
  name = seqio_tasks.unique_name(kind, *key, vocabulary, digest, max_length)
  if name in seqio.TaskRegistry.names():
    return name
  load = functools.cache(load)

  def measure(row_N: np.ndarray, vectors_ND: np.ndarray) -> dict[str, float]:
    return metrics(collect_results(load(), row_N, vectors_ND))

  task = seqio_tasks.TextTask(
    name,
    seqio_tasks.TableSource({split: functools.partial(_text_table, load)}),
    {"inputs": seqio_tasks.text_feature(vocabulary)},
    vocabulary=vocabulary,
    max_length=max_length,
    keep_all=True,
    metric_objs=[VectorMetric(measure=measure)],
  )
  seqio.TaskRegistry.add_provider(name, task)
  return name


def _text_table(load: Callable[[], Sequence[suite_lib.Task]]) -> tables.Table:
  """Returns the texts of tasks, their languages and their numbers."""
  sides = [side for task in load() for side in task.sides]
  texts = [text for side in sides for text in side.texts]
  index_S = [language(side.language).index for side in sides]
  language_N = np.repeat(np.array(index_S, np.int32), [len(side.texts) for side in sides])
  columns = {ROW: np.arange(len(texts), dtype=np.int32), "input_language": language_N[:, None]}
  return tables.TextTable(([text] for text in texts), columns)
