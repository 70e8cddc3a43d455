import functools
import hashlib
import json
import random

import fake_encoders
import line_files
import pytest

from vmsst import languages
from vmsst.evaluation import embedder, suite
from vmsst.evaluation.benchmarks import questions


def signs(text, width):
  """Returns a vector of signs, with exact cosines and frequent ties."""
  digest = hashlib.sha256(text.encode()).digest()
  return [1 - 2 * (byte & 1) for byte in digest[:width]]


def sign_encoder(width=16):
  return fake_encoders.FakeEncoder(functools.partial(signs, width=width))


def write_records(path, records):
  line_files.write_lines(path, (json.dumps(x, ensure_ascii=False) for x in records))


def write_all(root, count=50):
  """Writes NQ, MKQA in three languages, and a knowledge base of several files and formats."""
  write_records(
    root / "nq" / "NQ-open.dev.jsonl",
    [{"question": f"nq {i}", "answer": [f"The {i % 5}!", "none"]} for i in range(20)],
  )
  records = []
  for i in range(12):
    answers = [{"text": str(i % 3), "aliases": [f"alias {i % 5}"]} if i != 3 else {"text": None}]
    queries = {code: f"{code} {i}" for code in ("en", "de", "zh_tw")}
    records.append({"queries": queries, "answers": {"en": answers, "de": [{"text": "x"}]}})
  write_records(root / "mkqa" / "mkqa.jsonl.gz", records)
  base = [(f"paq {i}", [str(i % 5), f"alias {i % 7}"][: 1 + i % 2]) for i in range(count)]
  # The field "answer" is a string if a question has only one answer.
  records = [{"question": x, "answer": y if len(y) > 1 else y[0]} for x, y in base]
  write_records(root / "paq" / "a.jsonl.gz", records[: count // 3])
  write_records(root / "paq" / "b.jsonl", records[count // 3 :])
  return base


def loops(encoder, queries, base):
  """Returns the accuracy of nearest questions, computed with one query at a time."""
  vectors = encoder.encode([question for question, _ in base])
  right = 0
  for query, gold in queries:
    scores = [float(v @ encoder.encode([query])[0]) for v in vectors]
    answers = base[scores.index(max(scores))][1]
    right += any(answer in gold for answer in answers)
  return 100 * right / len(queries)


def test_the_nearest_question_of_the_knowledge_base_gives_the_answer(tmp_path, monkeypatch):
  base = write_all(tmp_path)
  monkeypatch.setattr(questions, "SHARD", 7)
  encoder = sign_encoder()
  (task,) = questions.QUESTIONS.read(tmp_path)
  results = task.results(embedder.Embedder(encoder), [None])[None]
  # Four query sets, then the 16 and 34 questions of two files, at most seven at a time.
  assert encoder.sizes == [20, 11, 11, 11, 7, 7, 2, 7, 7, 7, 7, 6]
  answerable = [i for i in range(12) if i != 3]
  expected = {"nq": loops(encoder, [(f"nq {i}", {str(i % 5)}) for i in range(20)], base)}
  for code in ("en", "de", "zh_tw"):
    queries = [(f"{code} {i}", {str(i % 3), f"alias {i % 5}"}) for i in answerable]
    expected[f"mkqa {code}"] = loops(encoder, queries, base)
  assert {x.name: x.metrics["accuracy"] for x in results} == pytest.approx(expected)
  assert len(set(expected.values())) > 1
  german = {languages.language("de")}
  summary = questions.QUESTIONS.summarize(results, suite.seen_test(german))
  mean = (expected["mkqa en"] + expected["mkqa de"]) / 2  # Table 12 does not include zh_tw.
  assert summary == pytest.approx(
    {
      "nq": expected["nq"],
      "mkqa (incomplete)": mean,
      "mkqa seen (incomplete)": expected["mkqa de"],
      "mkqa unseen (incomplete)": expected["mkqa en"],
    }
  )
  assert len(questions.QUESTIONS.gaps(results)) == 22


def test_a_sample_of_all_questions_has_the_results_of_the_full_search(tmp_path):
  base = write_all(tmp_path)
  encoder = sign_encoder()
  (sampled,) = questions.sample_benchmark(len(base)).read(tmp_path)
  assert list(sampled.text_sets[0].texts) == [question for question, _ in base]
  results = sampled.score(*(encoder.encode(x.texts) for x in sampled.text_sets))
  (full,) = questions.QUESTIONS.read(tmp_path)
  assert results == full.results(embedder.Embedder(encoder), [None])[None]
  summary = questions.sample_benchmark(9).summarize(results, None)
  assert [*summary] == ["nq (sample of PAQ)", "mkqa (sample of PAQ) (incomplete)"]


def test_a_sample_has_random_questions_and_right_ones_similar_to_the_queries(tmp_path):
  words = ["who", "what", "won", "wrote", "the", "a", "big", "old", "red", "cup", "book", "film"]
  rng = random.Random(1)
  base = [(" ".join(rng.choices(words, k=4)), [f"The {i % 9}", "x"]) for i in range(400)]
  records = [{"question": x, "answer": y} for x, y in base]
  single, *split = (tmp_path / name for name in ("base.jsonl", "1.jsonl", "2.jsonl.gz"))
  for path, rows in ((single, records), (split[0], records[:123]), (split[1], records[123:])):
    write_records(path, rows)
  queries = [("who won the old cup", frozenset(["3"])), ("What?", frozenset(["4", "7", "none"]))]

  def sample(queries, paths):
    return [(x.question, x.answers) for x in questions.knowledge_sample(queries, paths, 5)]

  random_rows = sample([], [single])
  assert len(random_rows) == 5
  assert random_rows == [pair for pair in base if pair in random_rows]

  def similarity(text, row):
    one, two = ({*x.lower().replace("?", "").split()} - {"a", "the"} for x in (text, base[row][0]))
    return len(one & two) / len(one | two)

  selected = [base.index(pair) for pair in random_rows]
  for text, gold in queries:
    right = [row for row in range(len(base)) if str(row % 9) in gold]
    selected += sorted(right, key=lambda row: (-similarity(text, row), row))[:10]
  expected = [base[row] for row in sorted({*selected})]
  assert len(expected) > 20
  assert sample(queries, [single]) == expected
  assert sample(queries, split) == expected


def test_mkqa_small_retrieves_the_english_question(tmp_path):
  write_records(tmp_path / "nq" / "nq-open.dev.jsonl.gz", [{"question": "other", "answer": ["x"]}])
  path = tmp_path / "mkqa" / "mkqa.wide.tsv"
  path.parent.mkdir()
  path.write_text("id\tsplit\tar\ten\tzh_cn\n1\tdev\tone\tone\tother\n2\tdev\ttwo\ttwo\ttwo\n")
  (task,) = questions.MKQA_SMALL.read(tmp_path)
  results = task.results(embedder.Embedder(sign_encoder(64)), [None])[None]
  assert [(x.name, x.languages, x.metrics) for x in results] == [
    ("ar", ("ar", "en"), {"accuracy": 100.0, "R@10": 100.0}),
    ("zh_cn", ("zh_cn", "en"), {"accuracy": 50.0, "R@10": 100.0}),
  ]
  seen = suite.seen_test(map(languages.language, ["ar", "en"]))
  assert questions.MKQA_SMALL.summarize(results, seen) == {
    "accuracy (incomplete)": 75.0,
    "accuracy seen (incomplete)": 100.0,
    "accuracy unseen (incomplete)": 50.0,
    **{f"R@10{suffix} (incomplete)": 100.0 for suffix in ("", " seen", " unseen")},
  }
  assert "tr" in questions.MKQA_SMALL.gaps(results)
