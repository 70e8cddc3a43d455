import dataclasses
import functools
import itertools
import json

import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation.benchmarks import parallel
from vmsst.evaluation.metrics import retrieval


def texts_and_vectors(codes, count=20):
  """Writes translations with one repeated sentence per language; returns a vector per text."""
  rng = np.random.default_rng(0)
  meaning = rng.normal(size=[count, 6]) + 0.5
  texts, vectors = {}, {}
  for code in codes:
    texts[code] = [f"{code} {i if i != 7 else 3}" for i in range(count)]
    for text, vector in zip(texts[code], meaning, strict=True):
      vectors.setdefault(text, vector + 0.8 * rng.normal(size=6))
  return texts, vectors


def test_every_ordered_pair_is_that_of_plain_loops(tmp_path):
  codes = ["deu_Latn", "eng_Latn", "fra_Latn", "kor_Hang"]
  texts, vectors = texts_and_vectors(codes)
  for code in codes:
    line_files.write_lines(tmp_path / "flores200" / "devtest" / f"{code}.devtest", texts[code])
    line_files.write_lines(tmp_path / "flores200" / "dev" / f"{code}.dev", texts[code][:2])
  seen = [languages.language(code) for code in ("de", "fr")]
  groups = {"accuracy": {"a": ["de", "fr", "ko"]}, "xsim": {"b": ["en", "fr"], "c": ["en", "ja"]}}
  averages = functools.partial(parallel.summarize, groups)
  benchmark = dataclasses.replace(parallel.FLORES, averages=averages)
  encoder = fake_encoders.table_encoder(vectors)
  found = benchmark_trees.run_benchmark(benchmark, encoder, tmp_path, seen=seen)
  names = [f"{x}-{y}" for x, y in itertools.permutations(codes, 2)]
  assert [each["name"] for each in found["results"]] == names
  values = {}
  for each in found["results"]:
    x, y = each["languages"]
    sides = [[vectors[text] for text in texts[code]] for code in (x, y)]
    nearest, _ = retrieval.nearest(*map(np.array, sides))
    errors_ = [i for i, row in enumerate(nearest.margin_N) if texts[y][row] != texts[y][i]]
    # Of two equal sentences the first is found for both.
    hits = [i for i, row in enumerate(nearest.cosine_N) if row == i]
    wanted = {"accuracy": 5 * len(hits), "xsim": 5 * len(errors_), "hubness": nearest.hubness}
    assert each["metrics"] == pytest.approx(wanted)
    assert 7 not in hits
    values[x[:3], y[:3]] = each["metrics"]
  parts = {
    "": list(values),
    " without English": [pair for pair in values if "eng" not in pair],
    " to English": [pair for pair in values if pair[1] == "eng"],
    " from English": [pair for pair in values if pair[0] == "eng"],
    " seen": [("deu", "fra"), ("fra", "deu")],
    " unseen": [pair for pair in values if {*pair} != {"deu", "fra"}],
  }
  for metric, (part, pairs) in itertools.product(parallel.METRICS, parts.items()):
    expected = np.mean([values[pair][metric] for pair in pairs])
    assert found["summary"][f"{metric}{part} (incomplete)"] == pytest.approx(expected)
  foreign = [values[pair]["accuracy"] for pair in parts[" without English"]]
  assert found["summary"]["accuracy a"] == pytest.approx(np.mean(foreign))
  both = [values["eng", "fra"]["xsim"], values["fra", "eng"]["xsim"]]
  assert found["summary"]["xsim b"] == pytest.approx(np.mean(both))
  assert found["summary"]["xsim b: fr"] == pytest.approx(both[0])
  assert not any(name.startswith("xsim c") for name in found["summary"])
  assert len(found["missing"]) == 204 - 4


def test_changed_english_sentences_are_taken_for_translations(tmp_path):
  # The first source is nearest to a change of its translation, the second to its translation, the
  # third to a change of another sentence.
  axes = np.eye(7)
  vectors = {f"x {i}": axes[i] for i in range(3)}
  vectors |= {"y 0": axes[0] + 0.5 * axes[3], "y 1": axes[1], "y 2": axes[2] + axes[4]}
  vectors |= {"y 0 not": axes[0] + 0.1 * axes[3], "y 1 new": axes[2] + 0.1 * axes[5]}
  vectors["odd"] = axes[6]
  folder = tmp_path / "flores200"
  kinds = {"y 0 not": ("y 0", "Causality"), "y 1 new": ("y 1", "Entity"), "odd": ("y 2", "Number")}
  types = {text: dict(zip(("src", "errtype"), x, strict=True)) for text, x in kinds.items()}
  for path, lines in {
    "dev/deu_Latn.dev": [f"x {i}" for i in range(3)],
    "dev/eng_Latn.dev": [f"y {i}" for i in range(3)],
    "dev_augmented/eng_Latn_augmented.dev": ["y 0 not ", "y 1 new", "odd"],
    "dev_augmented/eng_Latn_errtype.dev.json": [json.dumps(types)],
  }.items():
    line_files.write_lines(folder / path, lines)
  found = benchmark_trees.run_benchmark(
    parallel.FLORES_DEV, fake_encoders.table_encoder(vectors), tmp_path
  )
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  assert by_name["eng_Latn-deu_Latn"].keys() == {"accuracy", "xsim", "hubness"}
  shares = {"": 200 / 3, " Causality": 100 / 3, " Entity": 0, " Misaligned": 100 / 3, " Number": 0}
  changed = {key[6:]: x for key, x in by_name["deu_Latn-eng_Latn"].items() if "++" in key}
  assert changed == pytest.approx(shares)
  assert found["summary"]["xsim++ (incomplete)"] == pytest.approx(200 / 3)
  assert len(found["missing"]) == 204 - 2


def test_ntrex_is_read_as_published_and_variants_of_a_language_are_not_compared(tmp_path):
  texts, vectors = texts_and_vectors(["eng", "eng-GB", "deu", "zho-CN"], 4)
  folder = tmp_path / "ntrex" / "NTREX-128"
  line_files.write_lines(folder / "newstest2019-src.eng.txt", texts["eng"])
  for code in ("eng-GB", "deu", "zho-CN"):
    line_files.write_lines(folder / f"newstest2019-ref.{code}.txt", texts[code])
  found = benchmark_trees.run_benchmark(
    parallel.NTREX, fake_encoders.table_encoder(vectors), tmp_path
  )
  names = {each["name"] for each in found["results"]}
  assert len(names) == 4 * 3 - 2
  assert {"eng-eng-GB", "eng-GB-eng"} & names == set()
