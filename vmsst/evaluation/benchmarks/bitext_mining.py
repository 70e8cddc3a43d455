"""Bitext mining: finds translation pairs in two corpora, as in the BUCC 2018 shared task.

The metrics are F1 scores at the threshold that maximizes F1 (VMSST paper, section 6.2):

* `cosine_f1`: each foreign sentence and its nearest English sentence by cosine form a candidate
  pair.
* `margin_f1`: candidate pairs are selected by the ratio margin with k = 4 neighbors. Each sentence
  is in at most one candidate pair.
* `average`: the mean of both F1 scores, which is part of the overall Score in the VMSST paper.

If a sentence occurs several times in a corpus, it is handled as in LASER: It is embedded once and
takes part in the search, but candidate pairs that contain it are dropped. Gold pairs that contain
it count as missed.

The shared task published gold pairs for its training data, but not for its test data. Therefore,
`BUCC` uses the training data, as papers do.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files
from vmsst.io import text_files
from vmsst.search import margins

PAIRS = ("de-en", "fr-en", "ru-en", "zh-en")
METRICS = ("cosine_f1", "margin_f1", "average")

_METHODS: dict[str, Callable[[np.ndarray, np.ndarray], margins.Pairs]] = {
  "cosine": functools.partial(
    margins.margin_pairs, neighbors=1, margin="absolute", retrieval="forward"
  ),
  "margin": margins.margin_pairs,
}


@dataclasses.dataclass(frozen=True)
class Corpus:
  """A corpus in one language.

  Attributes:
    texts: The distinct sentences.
    row_by_id: Position in `texts` of each sentence, by sentence id.
    once_N: Whether each sentence in `texts` occurs only once in the corpus, bool [N].
  """

  texts: list[str]
  row_by_id: dict[str, int]
  once_N: np.ndarray


def read_corpus(path: storage.Path) -> Corpus:
  """Reads lines `id TAB sentence`; raises InputError if a line has no TAB or repeats an id."""
  rows: dict[str, int] = {}
  row_by_id: dict[str, int] = {}
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    name, tab, sentence = line.partition("\t")
    if not tab or name in row_by_id:
      raise errors.InputError(f"{path}:{number}: expected id TAB sentence, with a unique id")
    row_by_id[name] = rows.setdefault(sentence.strip(), len(rows))
  once_N = np.bincount([*row_by_id.values()], minlength=len(rows)) == 1
  return Corpus(list(rows), row_by_id, once_N)


def _read_bucc(root: storage.Path) -> list[suite.Task]:
  """Returns one large task per BUCC language pair."""
  paths = {
    name: path
    for name in PAIRS
    for pattern in ("*/", "")
    for path in storage.find(root / "bucc2018", f"{pattern}{name}.training.gold")
  }
  return [dataclasses.replace(_read_pair(*pair), large=True) for pair in paths.items()]


def read_mining(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language pair."""
  paths = files.files_in(root / "mining", "??*-??*.gold")
  return [_read_pair(files.plain_name(path).removesuffix(".gold"), path) for path in paths]


def _read_pair(name: str, gold: storage.Path) -> suite.Task:
  """Reads the gold pairs and both corpora; the three file names differ only in the suffix."""
  codes = tuple(files.known_code(code, gold) for code in name.split("-"))
  start = files.plain_name(gold).removesuffix("gold")
  foreign, english = (
    read_corpus(files.plain_or_gzipped(gold.with_name(start + code))) for code in codes
  )
  rows = ((foreign.row_by_id[x], english.row_by_id[y]) for x, y in files.table(gold, 2))
  # Repeated sentences get unique negative numbers, so that no candidate pair can match them.
  gold_G2 = np.array(
    [
      (i if foreign.once_N[i] else -number, j if english.once_N[j] else -number)
      for number, (i, j) in enumerate(rows, 1)
    ],
    np.int64,
  )

  def score(foreign_ND: np.ndarray, english_MD: np.ndarray) -> suite.Numbers:
    metrics: suite.Numbers = {}
    for method, find in _METHODS.items():
      pairs = find(foreign_ND, english_MD)
      once_P = foreign.once_N[pairs.source_P] & english.once_N[pairs.target_P]
      # Without candidates, all metrics are 0.
      best = margins.best_f1(pairs[once_P], gold_G2)._asdict() if once_P.any() else {}
      for key in ("f1", "precision", "recall"):
        metrics[f"{method}_{key}"] = 100 * best.get(key, 0.0)
    metrics["average"] = (metrics["cosine_f1"] + metrics["margin_f1"]) / 2
    return metrics

  return suite.pair_task(name, codes, (foreign.texts, english.texts), score)


BUCC = suite.Benchmark(
  name="bucc",
  title="BUCC 2018 (training data)",
  files=suite.Files(
    ("bucc2018",),
    "xx-en.training.xx, xx-en.training.en and xx-en.training.gold, here or in subfolders",
  ),
  read=_read_bucc,
  averages=suite.metric_means(*METRICS),
  sets=PAIRS,
)
MINING = suite.Benchmark(
  name="mining",
  title="Bitext mining in your own corpora (BUCC format)",
  files=suite.Files(
    ("mining",), "xx-yy.xx and xx-yy.yy (id, sentence), xx-yy.gold (pairs of ids), plain or .gz"
  ),
  read=read_mining,
  averages=suite.metric_means(*METRICS),
)
