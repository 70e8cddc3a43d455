"""Compares likelihood and cosine at separating translations from near misses.

  python benchmarks/likelihood_scoring.py --data=DATA --run=RUN

DATA contains the folder `tatoeba/` of LASER. RUN is a run with a decoder, trained on English and
some of Tatoeba's languages, such as DIR/vmsst/seed_0 of

  python benchmarks/compare.py objectives --data_root DATA --output_dir DIR --rows vmsst --seeds 0

For each of these languages, the benchmark reads --pairs translations into English. The near miss of
a pair replaces the English sentence by another one of any language's pairs: that with the largest
word overlap (Jaccard index), which no model has chosen. Some near misses are correct paraphrases,
for all scores alike.

Prints one JSON line per score:

* area: the probability that a translation scores higher than a near miss of any pair (area under
  the ROC curve), as for filtering by a threshold;
* accuracy: the share of pairs whose translation scores higher than its own near miss.

Scores are the cosine, and the log-likelihoods of both directions, added up or per token: forward is
log p(English | other), backward the reverse, mean their mean. In the last line, `ratio` is
(1 - area) of the cosine over (1 - area) of the mean per token, above 1 if likelihood is better.
`ratio_of_errors` compares 1 - accuracy of the cosine and of backward, which scores the same text
for both English sentences and so does not favor easy ones.
"""

import argparse
import gzip
import itertools
import json
import pathlib
import time
from collections.abc import Iterable

import measure
import numpy as np
from scipy import stats

import vmsst
from vmsst import languages

_ENGLISH = "eng"


def read_pairs(
  data: pathlib.Path, trained: Iterable[str], count: int
) -> dict[str, list[tuple[str, str]]]:
  """Returns the first pairs of each language of training with English, by Tatoeba's code."""
  rows = {languages.language(code).index for code in trained}
  pairs = {}
  for path in sorted((data / "tatoeba").glob("tatoeba.*-eng.eng.gz")):
    code = path.name.split(".")[1].removesuffix("-eng")
    if languages.language(code).index in rows:
      other = path.with_name(path.name.replace(".eng.gz", f".{code}.gz"))
      pairs[code] = list(zip(*(first_lines(x, count) for x in (other, path)), strict=True))
  return pairs


def first_lines(path: pathlib.Path, count: int) -> list[str]:
  with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
    return [line.rstrip("\n") for line in itertools.islice(stream, count)]


def words(text: str) -> frozenset[str]:
  """Returns the words of a text in small letters, without punctuation."""
  return frozenset("".join(x if x.isalnum() else " " for x in text.lower()).split())


def near_misses(texts: list[str]) -> list[str]:
  """Returns for each text the one with the largest word overlap among those with other words."""
  bags = [words(text) for text in texts]
  columns = {word: place for place, word in enumerate(sorted(frozenset().union(*bags)))}
  has_NW = np.zeros((len(texts), len(columns)), np.float32)
  for row_W, bag in zip(has_NW, bags, strict=True):
    row_W[[columns[word] for word in bag]] = 1
  shared_NN = has_NW @ has_NW.T
  size_N = has_NW.sum(axis=1)
  union_NN = size_N[:, None] + size_N - shared_NN
  overlap_NN = np.where(union_NN == shared_NN, -1, shared_NN / np.maximum(union_NN, 1))
  return [texts[place] for place in overlap_NN.argmax(axis=1)]


def quality(right_N: np.ndarray, wrong_N: np.ndarray) -> dict[str, float]:
  """Returns area and accuracy of the scores of translations and of their near misses."""
  statistic = stats.mannwhitneyu(right_N, wrong_N).statistic
  area = statistic / (len(right_N) * len(wrong_N))
  return {"area": float(area), "accuracy": float(np.mean(right_N > wrong_N))}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with tatoeba/")
  parser.add_argument("--run", required=True, help="run with a decoder")
  parser.add_argument("--pairs", type=int, default=250, help="pairs per language")
  options = parser.parse_args()
  translator = vmsst.load_translator(options.run)
  trained = translator.encoder.languages or ()
  if _ENGLISH not in trained:
    parser.error(f"{options.run} was not trained on English; choose another --run")
  pairs = read_pairs(options.data, trained, options.pairs)
  codes = [code for code, own in pairs.items() for _ in own]
  flat = [pair for own in pairs.values() for pair in own]
  if not flat:
    parser.error(f"{options.data}/tatoeba has no language of {options.run}")
  sources, targets = map(list, zip(*flat, strict=True))
  wrong = near_misses(targets)
  scores: dict[str, list[np.ndarray]] = {}
  seconds = {}
  start = time.perf_counter()
  scores["cosine"] = [translator.encoder.score_pairs(sources, x) for x in (targets, wrong)]
  seconds["cosine"] = time.perf_counter() - start
  for per_token in (False, True):
    suffix = " per token" if per_token else ""
    start = time.perf_counter()
    both = [
      translator.pair_log_likelihoods(
        sources, x, languages=(codes, "en"), per_token=per_token, batch_size=128
      )
      for x in (targets, wrong)
    ]
    for name, weights_2 in {"forward": (1, 0), "backward": (0, 1), "mean": (0.5, 0.5)}.items():
      scores[name + suffix] = [both_N2 @ np.array(weights_2) for both_N2 in both]
      seconds[name + suffix] = time.perf_counter() - start
  found = {name: quality(*sides) for name, sides in scores.items()}
  common = {
    "benchmark": "likelihood_scoring",
    "device": measure.jax_device(),
    **measure.machine("jax"),
    "languages": list(pairs),
    "pairs": len(flat),
  }
  for name, values in found.items():
    rounded = {key: round(value, 4) for key, value in values.items()}
    print(json.dumps({**common, "score": name, **rounded, "seconds": round(seconds[name], 2)}))
  cosine, per_token, backward = (found[x] for x in ("cosine", "mean per token", "backward"))
  ratios = {
    "ratio": (1 - cosine["area"]) / (1 - per_token["area"]),
    "ratio_of_errors": (1 - cosine["accuracy"]) / (1 - backward["accuracy"]),
  }
  rounded = {name: round(value, 3) for name, value in ratios.items()}
  print(json.dumps({"benchmark": "likelihood_scoring", **rounded}))


if __name__ == "__main__":
  main()
