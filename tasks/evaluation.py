"""SeqIO tasks for evaluation during training.

Each SeqIO task holds the texts of one or more `vmsst.evaluation.suite.Task` objects, one text per
example. The model embeds each text. `VectorMetric` then computes the metrics, multiplied by 100,
from all vectors [N, D]. SeqIO evaluators do not preserve the order of the examples, so the feature
`row` of each example stores the position of its text among the task's texts.
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
"""Benchmarks small enough for evaluation during training (`questions` with a sample of PAQ)."""
ROW = "row"  # name of the feature that stores the position of a text


def tatoeba(
  root: str,
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: Sequence[str] | None = None,
  max_length: int | None = None,
) -> str:
  """Registers a task for the Tatoeba test sets; returns its name.

  The task retrieves translations into English and from English. For each language XXX, it reports
  the accuracies `to_english/XXX` and `from_english/XXX` and their mean `accuracy/XXX`, in percent.
  `to_english/average`, `from_english/average` and `accuracy/average` are means over all languages.
  The only split is `test`.

  Args:
    root: Folder with LASER's files `tatoeba.XXX-eng.XXX` and `tatoeba.XXX-eng.eng`, plain or
      gzipped, local or in an object store.
    vocabulary: Vocabulary that tokenizes the texts.
    languages: Language codes from any standard (default: all languages in the folder).
    max_length: Maximum tokens per text, including EOS; longer texts are truncated (default: no
      limit).

  Raises:
    InputError: If the folder does not exist, or contains no test set for one of the languages.
  """
  folder = storage.path(storage.absolute(root))
  paths = bitext_retrieval.tatoeba_files(folder)
  codes = {language(code): code for code in sorted(paths)}
  requested = [*codes] if languages is None else [*map(language, languages)]
  if missing := [x.name for x in requested if x not in codes]:
    raise errors.InputError(
      f"{root}: no test set for {', '.join(missing)}; choose from {', '.join(codes.values())}"
    )
  file_codes = [codes[x] for x in requested]

  def load() -> list[suite_lib.Task]:
    return [bitext_retrieval.tatoeba_task(code, *paths[code]) for code in file_codes]

  key = (str(folder), file_codes, [storage.version(x) for code in file_codes for x in paths[code]])
  return _register("tatoeba", key, "test", load, vocabulary, max_length)


def sample_retrieval(
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: Sequence[str] | None = None,
  num_meanings: int = 500,
  max_length: int | None = None,
) -> str:
  """Registers a retrieval task on held-out sentences from the sample corpus; returns its name.

  The metrics have the same names as in `tatoeba`, with the language codes from the sample corpus.
  The only split is `validation`.

  Args:
    vocabulary: Vocabulary that tokenizes the texts.
    languages: Language codes, without English (default: all languages in the corpus).
    num_meanings: Number of sentences per language, evenly spaced over the held-out meanings.
    max_length: Maximum tokens per text, including EOS; longer texts are truncated (default: no
      limit).
  """
  from vmsst.data import sample

  codes = sample.other_codes(languages)

  def load() -> list[suite_lib.Task]:
    total = sample.num_meanings("validation")
    count = min(num_meanings, total)
    meanings = [i * total // count for i in range(count)]

    def texts(code: str) -> list[str]:
      return [sample.sentence(x, code, "validation") for x in meanings]

    english = texts("en")
    return [
      bitext_retrieval.retrieval_task(code, (code, "en"), (texts(code), english)) for code in codes
    ]

  key = (codes, num_meanings)
  return _register("sample_retrieval", key, "validation", load, vocabulary, max_length)


def retrieval(
  patterns: str | Sequence[str],
  vocabulary: vocabularies.Vocabulary,
  *,
  languages: tuple[str, str] | None = None,
  max_length: int | None = None,
) -> str:
  """Registers a retrieval task on your own bitext files; returns its name.

  For a language pair such as `deu_eng`, the task reports the accuracies `to_target/deu_eng` and
  `from_target/deu_eng` and their mean `accuracy/deu_eng`, in percent. The means over language pairs
  are named `to_target/average`, `from_target/average` and `accuracy/average`. If the languages are
  undetermined ("und"), the pair is named after the languages in the file name, or `source_target`
  if the file name shows no languages. The only split is `test`.

  Args:
    patterns: See `bitext.files`.
    vocabulary: Vocabulary that tokenizes the texts.
    languages: See `bitext.files`.
    max_length: Maximum tokens per text, including EOS; longer texts are truncated (default: no
      limit).
  """
  files = readers.find_bitext(patterns, languages)

  def load() -> list[suite_lib.Task]:
    rows_by_pair: dict[tuple[str, tuple[Language, Language]], list[tuple[str, str]]] = {}
    for file in files:
      pair = readers.shown_pair(file), (file.source, file.target)
      rows_by_pair.setdefault(pair, []).extend(readers.read_pairs(file))
    return [_pair_task(*pair, rows) for pair, rows in rows_by_pair.items()]

  # Identify the files by their content instead of their modification times. When `finetune` resumes
  # a run, it rewrites its files, but the names of the task and its metrics must not change.
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
  """Registers a retrieval task on the validation pairs from one OPUS corpus; returns its name.

  The metrics are the same as in `retrieval`. The only split is `validation`.

  Args:
    config: See `bitext.opus`.
    vocabulary: Vocabulary that tokenizes the texts.
    data_dir: See `bitext.opus`.
    languages: See `bitext.opus`.
    pivots: See `bitext.opus`.
    corpus: Name of an OPUS corpus.
    max_length: Maximum tokens per text, including EOS; longer texts are truncated (default: no
      limit).

  Raises:
    InputError: See `bitext.opus`. If the corpus contains no validation pairs, the error is raised
      when the task is first read.
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
  """Registers a mixture of benchmarks for evaluation during training; returns its name.

  Each benchmark becomes a task named `vmsst_eval_BENCHMARK`. The metrics of a task are the averages
  that `vmsst eval` reports for the benchmark. The only split is `test`. The benchmark `questions`
  searches only a sample of PAQ, so its task is named `vmsst_eval_questions_sample`.

  Args:
    root: Data folder with one folder per benchmark (see `vmsst eval --list`), local or in an object
      store.
    vocabulary: Vocabulary that tokenizes the texts.
    benchmarks: Benchmark names (default: all benchmarks in `IN_TRAINING`; a missing benchmark is
      skipped with a warning).
    paq_distractors: Number of random questions in the PAQ sample; see `questions.knowledge_sample`.
    training_languages: Codes of the languages in the training data, for averages over seen and
      unseen languages (default: no such averages).
    max_length: Maximum tokens per text, including EOS; longer texts are truncated (default: no
      limit).

  Raises:
    InputError: If a benchmark is unknown, missing, damaged, or too large for memory.
  """
  folder = storage.path(storage.absolute(root))
  seen = None
  if training_languages is not None:
    seen = suite_lib.seen_test(map(language, training_languages))
  names = []
  for benchmark in benchmarks_lib.get_benchmarks(IN_TRAINING if benchmarks is None else benchmarks):
    if benchmark is questions_lib.QUESTIONS:
      benchmark = questions_lib.sample_benchmark(paq_distractors)
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
        functools.partial(_read_tasks, benchmark, folder),
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


def _read_tasks(benchmark: suite_lib.Benchmark, folder: storage.Path) -> list[suite_lib.Task]:
  tasks = benchmark.read(folder)
  if not tasks or any(task.large for task in tasks):
    raise errors.InputError(
      f"benchmark {benchmark.name} has no files, or is too large for SeqIO; run `vmsst eval "
      f"--suite {benchmark.name}` on a checkpoint"
    )
  return [*tasks]


@flax.struct.dataclass
class VectorMetric(seqio.metrics.Metric):
  """A SeqIO metric that scores a task, given the vectors of its texts.

  Pass this metric in `metric_objs`. For functions in `metric_fns`, SeqIO would convert the vectors
  to Python lists, which take eight times as much memory as arrays.

  Attributes:
    measure: Function that takes the positions of the texts [N] and their vectors [N, D], and
      returns the metrics by name.
    metrics: The metrics by name; set by `from_model_output`.
  """

  model_output_type: seqio.metrics.ModelOutputType = seqio.metrics.ModelOutputType.SCORE
  measure: Any = flax.struct.field(pytree_node=False, default=None)
  metrics: Any = flax.struct.field(pytree_node=False, default=None)

  def from_model_output(
    self, inputs: Iterable[Mapping[str, Any]], model_output: np.ndarray, *unused: Any
  ) -> "VectorMetric":
    """Computes the metrics from the examples in a dataset and their vectors."""
    row_N = np.array([row[ROW] for row in inputs], np.int32)
    return self.replace(metrics=self.measure(row_N, model_output))

  def compute(self) -> dict[str, float]:
    """Returns the metrics by name."""
    return self.metrics


def collect_results(
  tasks: Sequence[suite_lib.Task], row_N: np.ndarray, vectors_ND: np.ndarray
) -> list[suite_lib.Result]:
  """Scores several tasks, given the vectors of all their texts.

  Args:
    tasks: The tasks.
    row_N: Positions of the texts among the texts of all tasks, in any order.
    vectors_ND: Vectors of the texts, in the same order as `row_N`.

  Raises:
    InputError: If a vector is not finite.
  """
  vectors_ND = np.asarray(vectors_ND, np.float32)
  if not np.isfinite(vectors_ND).all():
    raise errors.InputError(
      "the model's vectors are not finite: training has diverged; evaluate an earlier checkpoint"
    )
  vectors_ND = vectors_ND[np.argsort(row_N)]
  ends = np.cumsum([len(text_set.texts) for task in tasks for text_set in task.text_sets])
  arrays = iter(np.split(vectors_ND, ends[:-1]))
  return [x for task in tasks for x in task.score(*itertools.islice(arrays, len(task.text_sets)))]


def _pair_task(
  name: str, pair: tuple[Language, Language], rows: Iterable[tuple[str, str]]
) -> suite_lib.Task:
  """Returns the retrieval task for a language pair."""
  source, target = map(readers.language_code, pair)
  texts = [*zip(*rows, strict=True)]
  return bitext_retrieval.retrieval_task(name, (source, target), texts, "target", several=True)


def _retrieval_metrics(results: Sequence[suite_lib.Result]) -> dict[str, float]:
  """Returns the metrics of `tatoeba` and `retrieval`: accuracies per language, and their means."""
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
  """Registers a SeqIO task and returns its name; an equal task is registered only once.

  Args:
    kind: Prefix of the name.
    key: Identifies the data and options that `load` and `metrics` use, such as file versions. The
      task's name depends on the key.
    split: Name of the only split.
    load: Function that reads the tasks from the evaluation suite; called on first use.
    vocabulary: Vocabulary that tokenizes the texts.
    max_length: Maximum tokens per text, or None for no limit.
    metrics: Function that computes the metrics from the results of the tasks.
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
  """Returns a table of all texts in the tasks, with the language and the position of each text."""
  text_sets = [text_set for task in load() for text_set in task.text_sets]
  texts = [text for text_set in text_sets for text in text_set.texts]
  index_S = np.array([language(x.language).index for x in text_sets], np.int32)
  language_N = np.repeat(index_S, [len(x.texts) for x in text_sets])
  columns = {ROW: np.arange(len(texts), dtype=np.int32), "input_language": language_N[:, None]}
  return tables.TextTable(([text] for text in texts), columns)
