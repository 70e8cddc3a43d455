"""The comparisons: their tasks on made-up data, and resuming after interruption."""

import argparse
import importlib
import json
import pathlib
import shutil
import sys

import line_files
import numpy as np
import pytest

import vmsst
from vmsst import errors, languages
from vmsst.evaluation import suite

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  names = ("compare", "comparison_tasks")
  yield tuple(importlib.import_module(name) for name in names)
  for name in names:
    del sys.modules[name]


@pytest.fixture
def data_folder(tmp_path):
  """Texts are `<language> <number>`; the number is the meaning."""
  root = tmp_path / "data"
  for code in ("tur", "fra"):
    line_files.write_lines(
      root / f"tatoeba/tatoeba.{code}-eng.{code}.gz", [f"{code} {i}" for i in range(20)]
    )
    line_files.write_lines(
      root / f"tatoeba/tatoeba.{code}-eng.eng.gz", [f"eng {i}" for i in range(20)]
    )
  pairs = [(0, 0), (1, 1), (2, 3), (4, 5)]
  scored = [f"{5 * (i == j)}\teng {i}\teng {j}" for i, j in pairs]
  line_files.write_lines(root / "sts/STS12.OnWN.tsv", scored)
  line_files.write_lines(root / "sts/JSTS.ja.valid.tsv", ["not\tlooked\tat", "at all"])
  for track in ("1.ar-ar", "5.en-en", "6.tr-en"):
    first = "tur" if "tr" in track else "eng"
    lines = [f"{5 * (i == j)}\t{first} {i}\teng {j}" for i, j in pairs]
    line_files.write_lines(root / f"xlsts/STS17.track{track}.tsv", lines)
  for code in ("tr", "fr"):
    line_files.write_lines(
      root / f"mining/{code}-en.{code}.gz", [f"{code}-{i}\ttur {i}" for i in range(10)]
    )
    line_files.write_lines(
      root / f"mining/{code}-en.en.gz", [f"en-{i}\teng {i + 5}" for i in range(10)]
    )
    line_files.write_lines(
      root / f"mining/{code}-en.gold", [f"{code}-{i}\ten-{i - 5}" for i in range(5, 10)]
    )
  header = "id\tsplit\ten\ttr\tzh_cn"
  questions = [f"{i}\tdev\teng {i}\ttur {i}\tchinese {i}" for i in range(30)]
  line_files.write_lines(root / "mkqa/mkqa.wide.tsv.gz", [header, *questions])
  line_files.write_lines(
    root / "nq/a.jsonl.gz", [json.dumps({"question": f"eng {i}"}) for i in range(30, 50)]
  )
  return root


SEEN = {languages.language(code) for code in ("tr", "en")}


class Encoder:
  """Maps English and Turkish to the same vectors, French to the next of twenty."""

  def encode(self, texts):
    numbers = [(text.split()[0], int(text.split()[1])) for text in texts]
    return np.eye(60)[[(i + 1) % 20 if code == "fra" else i for code, i in numbers]]


def run_all(tasks, data_folder, encoder, output):
  """Scores and result names of the columns of the objectives table."""
  columns, seen = tasks.SUITES["objectives"], suite.seen_test(SEEN)
  benchmarks = tasks.benchmarks_of(columns, seen)
  found = suite.evaluate(encoder, benchmarks, data_folder, output, name="x", seen=SEEN)
  results = {key: suite.results_of(each) for key, each in found["benchmarks"].items()}
  return tasks.scores(columns, results, seen)


def test_columns_are_means_over_the_languages_of_training(data_folder, modules, tmp_path):
  _, tasks = modules
  scores, names = run_all(tasks, data_folder, Encoder(), tmp_path / "out")
  assert names["MKQA"] == ["tr"]
  zero = {"Tatoeba unseen": 0.0}
  columns = [name for name in tasks.SUITES["objectives"] if name != "XL (s.)"]
  assert scores == pytest.approx({name: zero.get(name, 100.0) for name in columns})
  assert names["Tatoeba unseen"] == ["fra"]
  assert names["Mining (c.)"] == ["tr-en"]
  assert names["XL (d.)"] == ["track6.tr-en"]


def test_topics_and_translation_directions_are_those_of_training(modules, tmp_path):
  _, tasks = modules
  for code in ("eng", "tur", "arb", "fra"):
    lines = [f"{code} {i}" for i in range(8)]
    line_files.write_lines(tmp_path / f"ntrex/ntrex.{code}.txt.gz", lines)
    rows = [
      f"{split}\t{i}\t{topic}\t{code} {i}"
      for split in ("train", "dev", "test")
      for i, topic in enumerate(["a", "b"] * 7)
    ]
    header = "split\tindex_id\tcategory\ttext"
    line_files.write_lines(tmp_path / f"sib200/{code}_{SCRIPTS[code]}.tsv.gz", [header, *rows])
  columns = {x: y for x, y in tasks.SUITES["ems"].items() if x != "Tatoeba seen"}
  known = SEEN | {languages.language("ar")}
  seen = suite.seen_test(known)
  benchmarks = tasks.benchmarks_of(columns, seen)
  found = suite.evaluate(Encoder(), benchmarks, tmp_path, tmp_path / "out", name="x", seen=known)
  results = {key: suite.results_of(each) for key, each in found["benchmarks"].items()}
  scores, names = tasks.scores(columns, results, seen)
  assert sorted(names["NTREX"]) == ["arb-tur", "tur-arb"]
  assert sorted(names["SIB en-xx"]) == ["eng_Latn->arb_Arab", "eng_Latn->tur_Latn"]
  assert sorted(names["SIB xx-en"]) == ["arb_Arab->eng_Latn", "tur_Latn->eng_Latn"]
  assert scores["NTREX"] == 100


SCRIPTS = {"eng": "Latn", "tur": "Latn", "arb": "Arab", "fra": "Latn"}


class Commands:
  """Replaces training and evaluation: records commands and writes their outputs."""

  def __init__(self, allowed):
    self.done = []
    self.allowed = allowed

  def __call__(self, what, *command):
    if len(self.done) == self.allowed:
      raise SystemExit(f"{what} failed")
    self.done.append(what)
    flags = dict(part.lstrip("-").split("=", 1) for part in command if "=" in part)
    if "train" in command:
      run = pathlib.Path(flags["gin.MODEL_DIR"].strip("'"))
      (run / f"checkpoint_{flags['gin.TRAIN_STEPS']}" / "state").mkdir(parents=True)
      return
    run, untrained = pathlib.Path(flags["evaluate"]), flags["encoder"] != "trained"
    score = 10.0 if untrained else 50.0 + 2 * int(run.name[-1])
    more = {"Eng.": 7.0} if run.parent.name == "vmsst" else {}
    result = {
      "scores": {"MKQA": score, **more},
      "details": {"MKQA": ["tr"], **{key: ["STS12"] for key in more}},
      "curve": {} if untrained else {"5": score / 2, "7": score},
      "latents": {"kl/semantic": 1.5} if run.parent.name == "vmsst" else {},
      "seconds": {"training": 100.0, "evaluation": 5.0},
    }
    (run / flags["result"]).write_text(json.dumps(result), encoding="utf-8")


@pytest.fixture
def compare(tmp_path, modules, monkeypatch):
  """Compares two models with at most `allowed` commands and returns the finished ones."""
  script, _ = modules
  rows = {
    "contrastive": script.Row("CONTRASTIVE", "contrastive.gin", baseline="untrained"),
    "vmsst": script.Row("VMSST", "vmsst.gin"),
  }
  comparison = script.Comparison(rows, suite="objectives")
  monkeypatch.setattr(script, "COMPARISONS", {"some": comparison})
  for model in rows:
    line_files.write_lines(tmp_path / f"gin/{model}.gin", ["include 'data.gin'", "WEIGHT = 1"])
  line_files.write_lines(
    tmp_path / "gin/data.gin", ["TRAIN_STEPS = 7", "PATTERNS = ['*.tsv']", "VOCAB_SIZE = 9"]
  )
  monkeypatch.setattr(vmsst, "gin_dir", lambda: tmp_path / "gin")
  line_files.write_lines(tmp_path / "out/vocabulary.model", ["a vocabulary"])

  def run(allowed=None, steps=None, seeds=(0, 1)):
    commands = Commands(allowed)
    monkeypatch.setattr(script, "run_command", commands)
    options = argparse.Namespace(
      comparison="some",
      data_root=str(tmp_path),
      output_dir=str(tmp_path / "out"),
      rows=None,
      seeds=seeds,
      steps=steps,
      teacher=None,
    )
    if allowed is None:
      script.compare(options)
    else:
      with pytest.raises(SystemExit, match="failed"):
        script.compare(options)
    return [what.replace(f"{tmp_path}/out/", "") for what in commands.done]

  return run


def test_an_interrupted_comparison_resumes_and_always_has_a_table(compare, tmp_path):
  first = compare(allowed=4)
  assert first == [
    "training of contrastive/seed_0",
    "baseline of contrastive/seed_0",
    "evaluation of contrastive/seed_0",
    "training of vmsst/seed_0",
  ]
  table = (tmp_path / "out/table.md").read_text(encoding="utf-8").splitlines()
  assert [line for line in table if "50.00" in line] == [
    "| CONTRASTIVE | 0 | 50.00 |",
    "| CONTRASTIVE | 25.00 | 50.00 |",  # while training
  ]
  second = compare()
  assert second[0] == "evaluation of vmsst/seed_0"
  assert second[1:] == [
    *(x.replace("seed_0", "seed_1") for x in first),
    "evaluation of vmsst/seed_1",
  ]
  table = (tmp_path / "out/table.md").read_text(encoding="utf-8").splitlines()
  assert "| untrained | 0, 1 | 10.00 ± 0.00 | - |" in table
  assert "| VMSST | 0, 1 | 51.00 ± 1.41 | 7.00 ± 0.00 |" in table  # 50 and 52
  assert "| VMSST | 25.50 ± 0.71 | 51.00 ± 1.41 |" in table
  assert "| Eng. | STS12 |" in table
  assert "| kl/semantic | 1.500 ± 0.000 |" in table
  raw = json.loads((tmp_path / "out/table.json").read_text(encoding="utf-8"))
  assert raw["VMSST"]["1"]["scores"] == {"MKQA": 52.0, "Eng.": 7.0}
  assert compare() == []


def test_results_of_other_settings_are_refused(compare, tmp_path):
  compare(seeds=(0,))
  with pytest.raises(errors.InputError, match=r"seed_0 .*TRAIN_STEPS was 7, is 8"):
    compare(steps=8, seeds=(0,))
  line_files.write_lines(tmp_path / "gin/vmsst.gin", ["include 'data.gin'", "WEIGHT = 2"])
  with pytest.raises(errors.InputError, match=r"vmsst/seed_0 .*WEIGHT was 1, is 2"):
    compare(seeds=(0,))
  line_files.write_lines(tmp_path / "gin/vmsst.gin", ["include 'data.gin'", "VOCAB_SIZE = 10"])
  with pytest.raises(errors.InputError, match="differ in VOCAB_SIZE"):
    compare(seeds=(0,))


def test_a_table_has_no_score_without_data_in_the_languages(
  data_folder, modules, tmp_path, monkeypatch
):
  script, tasks = modules
  line_files.write_lines(data_folder / "bitext/spa-eng.tsv", ["spa 1\teng 1"])
  for code in ("spa", "eng"):
    line_files.write_lines(
      data_folder / f"tatoeba/tatoeba.spa-eng.{code}.gz", [f"{code} {i}" for i in range(20)]
    )
  run = tmp_path / "run"
  line_files.write_lines(run / "config.gin", ["PATTERNS = ['bitext/spa-eng.tsv']"])
  line_files.write_lines(run / "settings.json", ["{}"])
  monkeypatch.setattr(script.vmsst, "load", lambda path: Encoder())
  columns = tasks.SUITES["batches"]
  found = script.evaluate_run(run, str(data_folder), columns, "a folder")
  assert found["scores"] == {"Tatoeba seen": 100}
  shutil.rmtree(data_folder / "mining")
  with pytest.raises(errors.InputError, match=r"no folder .*mining"):
    script.evaluate_run(run, str(data_folder), columns, "a folder")
