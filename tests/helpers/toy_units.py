"""Small units of work, for workers in processes of their own."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import fake_encoders
import line_files
import naive_search
import numpy as np
import opus_tree

from vmsst import errors
from vmsst.jobs import atomic_files, base, engines


@dataclasses.dataclass(frozen=True)
class Square(base.Unit):
  """Writes the square of a number, and who did it."""

  number: int
  path: str

  @functools.cached_property
  def key(self):
    return base.digest("square", self.number)

  def make(self):
    with atomic_files.atomic_file(self.path) as stream:
      stream.write(str(self.number**2).encode())
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"square": self.number**2, "process": os.getpid(), "gpus": gpus}


@dataclasses.dataclass(frozen=True)
class Fatal(Square):
  """Kills its process."""

  def make(self):
    os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class Failing(Square):
  """Raises an error."""

  def make(self):
    raise OSError(28, "No space left on device")


@dataclasses.dataclass(frozen=True)
class Slow(Square):
  """Takes a minute."""

  def make(self):
    time.sleep(60)
    return super().make()


@dataclasses.dataclass(frozen=True)
class Staged(base.StagedUnit):
  """Squares in three stages, each of which takes some time and is noted in a log at its start.

  Before it computes, it waits until stages of its neighbors have started.
  """

  number: int
  path: str
  log: str = ""
  fails_in: str = ""
  seconds: float = 0.0
  neighbors: tuple[str, ...] = ()

  @functools.cached_property
  def key(self):
    return base.digest("staged", self.number)

  def _stage(self, name):
    if self.fails_in == name:
      raise errors.InputError(f"{name} went wrong")
    if self.log:
      with open(self.log, "a", encoding="utf-8") as stream:
        stream.write(f"{name} {self.number}\n")
    time.sleep(self.seconds)

  def read(self):
    self._stage("read")
    return self.number

  def compute(self, prepared):
    self._stage("compute")
    end = time.monotonic() + 60
    while self.neighbors and not {*self.neighbors} <= {*_lines(self.log)}:
      assert time.monotonic() < end, f"{self.neighbors} have not started"
      time.sleep(0.001)
    return prepared**2

  def write(self, computed):
    self._stage("write")
    with atomic_files.atomic_file(self.path) as stream:
      stream.write(str(computed).encode())
    return {"square": computed}


def _lines(path):
  return pathlib.Path(path).read_text(encoding="utf-8").splitlines()


class Pickling(engines.Engine):
  """Makes units as another process would, but in this one.

  Attributes:
    done: Number of units made.
  """

  in_process, this_machine = False, True

  def __init__(self):
    self.done = 0

  def work(self, title, units):
    for unit in base.do(title, pickle.loads(pickle.dumps(units))):
      self.done += 1
      yield unit


def squares(folder, count, kind=Square, **options):
  """Units of the numbers below `count`."""
  return [kind(n, str(pathlib.Path(folder, f"{n}.txt")), **options) for n in range(count)]


def contents(folder):
  """Contents of the output files, by name."""
  return {path.name: path.read_text() for path in pathlib.Path(folder).glob("*.txt")}


def build(folder):
  """Writes OPUS releases and an evaluation set; returns the arguments of a build."""
  corpora = ("Europarl", "Tanzil", "Books", "QED", "Wikipedia", "EMEA", "ECB", "KDE4")
  parts = [
    opus_tree.Part(
      corpus,
      "v1",
      ("de", "en"),
      [(f"{corpus} Satz Nummer {n} ist hier", f"Sentence {n} is here.") for n in range(15_000)],
    )
    for corpus in corpora
  ]
  opus_tree.write(folder / "opus", parts)
  sets = folder / "evaluation" / "tatoeba"
  sets.mkdir(parents=True)
  for code in ("deu", "eng"):
    (sets / f"tatoeba.deu-eng.{code}").write_text("Sentence 3 is here\n")
  (folder / "mine.yaml").write_text(opus_tree.RECIPE)
  options = ["--recipe=mine.yaml", "--input=opus", "--held-out=evaluation", "--output=out"]
  return ["data", "build", *options]


def embed(folder):
  """Writes an encoder and two texts; returns the arguments that embed them."""
  fake_encoders.make_encoder(folder / "encoder")
  for name in ("a.txt.gz", "b.txt"):
    line_files.write_lines(folder / name, fake_encoders.make_lines(45_000))
  return ["embed", "encoder", "a.txt.gz", "b.txt", "out/vectors"]


def index(folder):
  """Writes vectors; returns the arguments that index them."""
  naive_search.write_vectors(folder / "a.vectors", _vectors(0))
  return ["index", "a.vectors", "out/index", "--factory=IVF256,PQ8"]


def mine(folder):
  """Writes two texts and their vectors; returns the arguments that mine them."""
  for number, side in enumerate("ab", 1):
    vectors_ND = _vectors(0) + _vectors(number)
    line_files.write_lines(folder / f"{side}.txt", [f"{side} {n}" for n in range(len(vectors_ND))])
    naive_search.write_vectors(folder / f"{side}.vectors", vectors_ND)
  return ["mine", "a.txt", "b.txt", "out/pairs.tsv", "--vectors", "a.vectors", "b.vectors"]


def search(folder):
  """Writes an encoder, a text with vectors and queries for six shards; returns the arguments."""
  fake_encoders.make_encoder(folder / "encoder")
  lines = list(fake_encoders.make_lines(1_000))
  line_files.write_lines(folder / "corpus.txt", lines)
  line_files.write_lines(folder / "queries.txt", (lines * 90)[:90_000])
  command = [sys.executable, "-m", "vmsst.cli", "embed", "encoder", "corpus.txt", "vectors"]
  subprocess.run(command, cwd=folder, check=True, capture_output=True)
  return ["search", "queries.txt", "corpus.txt", "vectors", "--count=2", "--output=out/found"]


def search_spans(folder):
  """Writes an encoder, a text of three blocks and a few queries; returns the arguments."""
  fake_encoders.make_encoder(folder / "encoder")
  vectors_ND = np.random.default_rng(0).normal(size=(400_000, 64)).astype(np.float32)
  vectors_ND = np.concatenate([vectors_ND, vectors_ND[:200_000]])  # In the first and last block.
  line_files.write_lines(folder / "corpus.txt", [f"line {n}" for n in range(len(vectors_ND))])
  line_files.write_lines(folder / "queries.txt", [f"query {n}" for n in range(1_000)])
  naive_search.write_vectors(folder / "vectors", vectors_ND)
  command = ["search", "queries.txt", "corpus.txt", "vectors", "--encoder=encoder"]
  return [*command, "--output=out/found"]


def evaluate(folder):
  """Writes an encoder, a knowledge base and questions; returns the arguments that evaluate it."""
  fake_encoders.make_encoder(folder / "encoder")
  lines = [*fake_encoders.make_lines(60_000)]
  for number in range(6):
    own = lines[10_000 * number : 10_000 * (number + 1)]
    records = (json.dumps({"question": x, "answer": str(i % 9)}) for i, x in enumerate(own))
    line_files.write_lines(folder / "data" / "paq" / f"{number}.jsonl", records)
  records = (json.dumps({"question": f"{x}?", "answer": [str(i % 9)]}) for i, x in enumerate(lines))
  questions = itertools.islice(records, 300)
  line_files.write_lines(folder / "data" / "nq" / "NQ-open.dev.jsonl", questions)
  return ["eval", "encoder", "--suite=questions", "--data=data", "--out=out"]


def _vectors(seed):
  return np.random.default_rng(seed).normal(size=(30_000, 16)).astype(np.float32)
