"""Compares the input of one host that reads its share of the rows with one that reads all rows.

  python benchmarks/sharded_input.py
  python benchmarks/sharded_input.py --vocabulary=spm.model --lowercase --patterns /data/*.tsv.gz

Both inputs deliver random training batches of the same pairs, which are tokenized while they are
read: `all` by `datasets.get_global_batches` from TFRecord files, `share` by
`sharded_batches.get_sharded_batches` from ArrayRecord files, both in the format of `vmsst data
build`. Variants `share_of_1`, `share_of_2` and `share_of_4` are the first of so many hosts, and so
are `all_of_1`, `all_of_2` and `all_of_4`.

Each measurement runs in its own process, and the variants take turns. Start-up and warm-up batches
are not counted.

Prints one JSON line per variant: pairs of the global batch per second and per second of CPU time,
and, for shares, rows read (and read ahead) per row of the global batch. The last line has under
`ratio` the pairs per second of one host that reads its share of all rows over those of
`get_global_batches`, under `ratios` the same by the number of hosts, and under `cpu_ratios` the
pairs per second of CPU time, which depend less on other work of the machine.
"""

import argparse
import itertools
import json
import pathlib
import tempfile
from typing import Any

import input_pipeline
import measure

BENCHMARK = "sharded_input"
HOSTS = (1, 2, 4)
_FORMATS = {"all": "tfrecord", "share": "array_record"}
PACKAGES = ("array-record", "seqio", "tensorflow", "tensorflow-datasets", "tensorflow-text")


def measure_input(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  from vmsst.tasks import datasets, feature_converter, sharded_batches
  from vmsst.tasks.opus import mixtures

  kind, _, hosts = variant.split("_")
  vocabulary = input_pipeline.make_vocabulary(options)
  folder = str(pathlib.Path(options.work, _FORMATS[kind]))
  mixture = mixtures.opus("benchmark", vocabulary, folder, max_length=options.length)
  config = input_pipeline.training_data(mixture, options)
  get = datasets.get_global_batches if kind == "all" else sharded_batches.get_sharded_batches
  found = get(config, 0, int(hosts), feature_converter.BitextFeatureConverter)
  batches = found.as_numpy_iterator() if kind == "all" else iter(found)
  before = list(itertools.islice(batches, options.warm_up))
  tokens = input_pipeline.tokens_of_pair(before)
  rates = input_pipeline.timed(lambda: next(batches), options.batches, options.batch, tokens)
  if kind == "share":
    global_rows = (options.warm_up + options.batches) * options.batch
    rates["read_per_row"] = [batches.rows_read / global_rows]
    batches.close()
  return rates


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--patterns", nargs="+", help="bitext files (default: the sample corpus)")
  parser.add_argument("--vocabulary", help="SentencePiece model (default: that of the sample)")
  parser.add_argument("--lowercase", action="store_true", help="lowercase the text")
  parser.add_argument("--batch", type=int, default=512, help="pairs per global batch")
  parser.add_argument("--length", type=int, default=32, help="tokens per sentence")
  parser.add_argument("--batches", type=int, default=200, help="timed batches per process")
  parser.add_argument("--warm_up", type=int, default=20, help="batches before the timed ones")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
  parser.add_argument("--measure", help=argparse.SUPPRESS)
  parser.add_argument("--given", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    given = argparse.Namespace(**json.loads(options.given))
    print(json.dumps(measure_input(options.measure, given)))
    return

  def in_own_process(variant: str) -> dict[str, Any]:
    arguments = [f"--measure={variant}", f"--given={json.dumps(vars(options))}"]
    return measure.in_own_process(__file__, arguments, variant, None)

  variants = [f"{kind}_of_{hosts}" for hosts in HOSTS for kind in _FORMATS]
  with tempfile.TemporaryDirectory(prefix="sharded_input_") as options.work:
    work = pathlib.Path(options.work)
    if not options.vocabulary:
      from vmsst.tasks import sample

      options.vocabulary = sample.vocabulary_path()
    options.patterns = options.patterns or input_pipeline.write_sample(work)
    for file_format in _FORMATS.values():
      input_pipeline.write_dataset(work / file_format, options.patterns, file_format)
    runs = measure.in_turns(variants, options.rounds, in_own_process)
  rates: dict[str, dict[str, float]] = {}
  for variant, own in runs.items():
    found = {key: measure.summary(measure.all_of(own, key)) for key in own[0]}
    rates[variant] = {key: each["median"] for key, each in found.items()}
    line = {
      "benchmark": BENCHMARK,
      "variant": variant,
      **measure.machine(*PACKAGES),
      "batch": options.batch,
      "length": options.length,
      "runs": len(own),
      **{key: {k: round(v, 3) for k, v in each.items()} for key, each in found.items()},
    }
    print(json.dumps(line))

  def ratios(key: str) -> dict[int, float]:
    return {n: round(rates[f"share_of_{n}"][key] / rates[f"all_of_{n}"][key], 2) for n in HOSTS}

  by_time = ratios("pairs_per_second")
  cpu_ratios = ratios("pairs_per_cpu_second")
  last = {"ratio": by_time[1], "ratios": by_time, "cpu_ratios": cpu_ratios}
  print(json.dumps({"benchmark": BENCHMARK, **last}))


if __name__ == "__main__":
  main()
