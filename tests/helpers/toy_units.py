"""Inputs of commands that take seconds, with the arguments of the commands."""

import itertools
import json
import subprocess
import sys

import fake_encoders
import line_files
import naive_search
import numpy as np
import opus_tree


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
  arguments = opus_tree.write_build(folder, parts, *["Sentence 3 is here"] * 2)
  return [*arguments, "--output=out"]


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
