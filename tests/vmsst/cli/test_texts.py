import gzip
import io
import json
import os
import pathlib
import re
import shutil
import string

import fake_encoders
import line_files
import memory_store
import numpy as np
import pytest
import released_folders
import tiny_encoders

import vmsst
from vmsst import cli, storage
from vmsst.cli import vector_jobs
from vmsst.encoder import loading
from vmsst.io import progress_bar
from vmsst.mining import bitext_mining
from vmsst.networks import sentence_encoder
from vmsst.search import vector_store

SENTENCES = [
  f"the {a} {b} sees a {c}"
  for a in ("old", "new", "Big")
  for b in ("dog", "cat")
  for c in ("house", "river", "mountain", "bridge")
]


def letter_counts(text):
  return [text.lower().count(letter) for letter in string.ascii_lowercase]


@pytest.fixture
def encoder(monkeypatch):
  encoder = fake_encoders.FakeEncoder(letter_counts)
  encoder.dimension = 26
  monkeypatch.setattr(
    loading, "open_encoder", lambda path, dtype=None, backend="jax": (f"/runs/{path[-1]}", encoder)
  )
  monkeypatch.setattr(vector_jobs, "_SPAN_LINES", 5)
  monkeypatch.setattr(bitext_mining, "_WINDOW", 5)
  return encoder


@pytest.fixture
def sides(tmp_path):
  """Writes sentences, and the same sentences reversed, in capitals, after four other lines."""
  line_files.write_lines(tmp_path / "x.txt", SENTENCES)
  distractors = ["", "something else", "", "zzz"]
  capitals = [x.upper() for x in reversed(SENTENCES)]
  line_files.write_lines(tmp_path / "y.txt", distractors + capitals)
  return str(tmp_path / "x.txt"), str(tmp_path / "y.txt")


def test_mine_embeds_and_finds_translations(sides, encoder, tmp_path, capsys):
  out, gold = tmp_path / "new" / "out.tsv", tmp_path / "gold.tsv"
  line_files.write_tsv(gold, [(i + 1, 28 - i) for i in range(24)])
  assert cli.main(["mine", *sides, str(out), "--encoder", "a", "--gold", str(gold)]) == 0
  printed = capsys.readouterr().out
  assert "F1 100.00, precision 100.00, recall 100.00" in printed
  assert "24 of 24 pairs found among 24 and 26 sentences" in printed
  rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
  assert sorted(source for _, source, _ in rows) == sorted(SENTENCES)
  assert all(source.upper() == target for _, source, target in rows)
  scores = [float(score) for score, _, _ in rows]
  assert scores == sorted(scores, reverse=True)
  # Finished vectors are not embedded again, and need not come from this command.
  calls = len(encoder.calls)
  folders = [f"{out}.{side}.vectors" for side in ("source", "target")]
  options = ["--vectors", *folders, "--margin", "distance", "--retrieval", "intersection"]
  assert cli.main(["mine", *sides, str(tmp_path / "b.tsv"), *options, "--threshold", "9"]) == 0
  assert len(encoder.calls) == calls
  assert (tmp_path / "b.tsv").read_text() == ""


def test_mine_takes_the_texts_of_json_lines_and_writes_each_pair_on_one_line(encoder, tmp_path):
  texts = ["foo\nbar", "hello\tworld", "x\ry"]
  sides = [tmp_path / f"{name}.jsonl" for name in "xy"]
  for number, path in enumerate(sides):
    line_files.write_lines(path, [json.dumps({"id": number, "text": text}) for text in texts])
  assert cli.main(["mine", *map(str, sides), str(tmp_path / "out"), "--encoder", "a"]) == 0
  rows = [line.split("\t") for line in (tmp_path / "out").read_bytes().decode().split("\n")[:-1]]
  assert {tuple(fields) for _, *fields in rows} == {
    ("foo bar",) * 2, ("hello world",) * 2, ("x y",) * 2
  }  # fmt: skip


def from_standard_input(monkeypatch, text):
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_embed_reads_a_pipe_and_resumes_with_the_same_text(encoder, tmp_path, capsys, monkeypatch):
  lines = [*SENTENCES[:7], "", "last"]
  folder = str(tmp_path / "v")
  encoder.calls, encoder.fail_at = [], 1
  from_standard_input(monkeypatch, "\n".join(lines))
  assert cli.main(["embed", "a", "-", folder]) == 130
  assert capsys.readouterr().err == "vmsst: interrupted; rerun the same command to resume\n"
  (tmp_path / "x").write_text("".join(f"{line}\n" for line in lines))
  assert cli.main(["search", "-", str(tmp_path / "x"), folder]) == 1
  assert "v is not finished; rerun the same command" in capsys.readouterr().err
  from_standard_input(monkeypatch, "\n".join(lines))
  assert cli.main(["embed", "a", "-", folder]) == 0
  assert capsys.readouterr().out == f"{folder}: 9 vectors of width 26\n"
  np.testing.assert_array_equal(vector_store.open_vectors(folder)[:], encoder.encode(lines))


def test_embed_reads_columns_and_keys(encoder, tmp_path):
  tsv, jsonl, scored = (tmp_path / name for name in ("x.tsv", "x.jsonl", "scored.tsv"))
  texts = ["ab", "", "c"]
  line_files.write_tsv(tsv, [(text, f"zz{text}") for text in texts])
  line_files.write_tsv(scored, [("0.5", text) for text in texts])
  line_files.write_lines(jsonl, [json.dumps({"text": t, "k": t * 2}) for t in texts])
  for path, options, expected in (
    (tsv, [], texts),
    (scored, [], texts),
    (tsv, ["--field", "2"], ["zz" + text for text in texts]),
    (jsonl, ["--field", "k"], [text * 2 for text in texts]),
  ):
    folder = tmp_path / f"{path.name}{''.join(options)}.v"
    assert cli.main(["embed", "a", str(path), str(folder), *options]) == 0
    found = vector_store.open_vectors(folder)[:]
    np.testing.assert_array_equal(found, encoder.encode(expected))
    opened = vector_store.open_text(str(path), folder)
    assert list(map(opened.reader(), [0, 2])) == [expected[0], expected[2]]


def cosine(one, other):
  norms = np.linalg.norm(one) * np.linalg.norm(other)
  return float(one @ other / norms) if norms else 0.0


def test_score_prints_a_cosine_for_each_line(encoder, tmp_path, capsys, monkeypatch):
  sources, targets = [*SENTENCES[:11], ""], [*SENTENCES[1:12], "x"]
  one, other, both, mined = (tmp_path / x for x in ("a.txt", "b.txt", "both.tsv", "mined.txt"))
  line_files.write_lines(one, sources)
  line_files.write_lines(other, targets)
  pairs = "".join(f"{x}\t{y}\n" for x, y in zip(sources, targets, strict=True))
  line_files.write_text(both, pairs)
  line_files.write_text(mined, "".join(f"0.9\t{line}\n" for line in pairs.splitlines()))
  expected = [
    cosine(*encoder.encode([x, y]).astype(float)) for x, y in zip(sources, targets, strict=True)
  ]
  capsys.readouterr()
  for arguments in ([str(one), str(other)], [str(both)], [str(mined)], ["-"], ["-", str(other)]):
    from_standard_input(monkeypatch, pairs if len(arguments) == 1 else "\n".join(sources) + "\n")
    assert cli.main(["score", "a", *arguments]) == 0
    printed = capsys.readouterr().out.splitlines()
    np.testing.assert_allclose([float(x) for x in printed], expected, atol=1e-6)


def test_search_prints_a_line_for_each_query(sides, encoder, tmp_path, capsys, caplog, monkeypatch):
  vectors = str(tmp_path / "v")
  assert cli.main(["embed", "a", sides[1], vectors]) == 0
  queries = f"{SENTENCES[3]}\n\nzz é\n"
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(queries.encode())))
  capsys.readouterr()
  assert cli.main(["search", "-", sides[1], vectors, "--count", "2", "--encoder", "b"]) == 0
  printed = capsys.readouterr().out
  assert [x.getMessage() for x in caplog.records] == [f"{vectors}: encoder is /runs/a, not /runs/b"]
  found = [json.loads(line) for line in printed.splitlines()]
  assert [each["query"] for each in found] == [SENTENCES[3], "", "zz é"]
  assert [len(each["results"]) for each in found] == [2, 2, 2]
  first = {"line": 25, "score": 1.0, "text": SENTENCES[3].upper()}
  assert found[0]["results"][0] == first
  assert found[2]["results"][0] == {"line": 4, "score": 1.0, "text": "zzz"}
  (tmp_path / "q.txt").write_text(queries, encoding="utf-8")
  out = tmp_path / "found.jsonl"
  options = ["--count", "2", "--output", str(out)]
  assert cli.main(["search", str(tmp_path / "q.txt"), sides[1], vectors, *options]) == 0
  assert out.read_text(encoding="utf-8") == printed
  assert capsys.readouterr() == ("", "")  # The default is the encoder of the vectors.


@pytest.mark.usefixtures("encoder")
def test_npy_files_are_vectors_for_every_command(sides, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for side in sides:
    assert cli.main(["embed", "a", side, f"{side}.vectors"]) == 0
    np.save(f"{side}.npy", vector_store.open_vectors(f"{side}.vectors")[:])
  x, y = sides
  results = []
  for end in ("vectors", "npy"):
    for command in (
      ["index", f"{y}.{end}", f"{end}.index"],
      ["mine", x, y, f"{end}.tsv", "--vectors", f"{x}.{end}", f"{y}.{end}"],
      ["search", x, y, f"{y}.{end}", "--encoder", "a", "--output", f"{end}.found"],
      ["search", x, y, f"{y}.{end}", "--encoder", "a", "--index", f"{end}.index"],
    ):
      capsys.readouterr()
      assert cli.main(command) == 0, capsys.readouterr().err
    files = [f"{end}.{name}" for name in ("tsv", "found", "index/index.faiss")]
    results.append([*(pathlib.Path(file).read_bytes() for file in files), capsys.readouterr().out])
  assert results[0] == results[1]
  assert cli.main(["search", x, y, f"{y}.npy"]) == 1
  assert "y.txt.npy does not name its encoder; give --encoder" in capsys.readouterr().err


def test_texts_and_queries_have_the_prompt_of_their_role_or_of_an_option(tmp_path, capsys):
  prompts = {"config_sentence_transformers.json": {"prompts": {"query": "red ", "passage": "the "}}}
  model = str(released_folders.write(tmp_path / "m", "bert", prompts))
  encoder, texts = vmsst.load(model), ["apple", "museum is open"]
  corpus, queries = tmp_path / "corpus.txt", tmp_path / "queries.txt"
  corpus.write_text("\n".join(texts), encoding="utf-8")
  queries.write_text("museum", encoding="utf-8")
  for out, options, prompt in (
    ("v", [], "the "),
    ("named", ["--prompt-name", "query"], "red "),
    ("given", ["--prompt", "open "], "open "),
  ):
    assert cli.main(["embed", model, str(corpus), str(tmp_path / out), *options]) == 0
    assert f"the prompt before every text is {prompt!r}" in capsys.readouterr().err
    found_ND = vmsst.open_vectors(tmp_path / out)[:]
    np.testing.assert_allclose(found_ND, encoder.encode(texts, prefix=prompt), atol=1e-6)
  assert cli.main(["search", str(queries), str(corpus), str(tmp_path / "v")]) == 0
  found = {hit["text"]: hit["score"] for hit in json.loads(capsys.readouterr().out)["results"]}
  expected_N = encoder.similarity(encoder.encode_query("museum"), encoder.encode_document(texts))[0]
  np.testing.assert_allclose([found[text] for text in texts], expected_N, atol=1e-5)
  # A folder of vectors belongs to one prompt.
  assert cli.main(["embed", model, str(corpus), str(tmp_path / "v"), "--prompt", "open "]) == 1
  assert cli.main(["embed", model, str(corpus), str(tmp_path / "w"), "--prompt-name", "x"]) == 1
  assert "--prompt-name is 'x'" in capsys.readouterr().err


@pytest.mark.usefixtures("encoder")
def test_errors_of_commands_on_texts_are_one_line(sides, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert cli.main(["embed", "a", *sides, "both"]) == 0
  assert capsys.readouterr().out == "both: 52 vectors of width 26\n"
  cli.main(["embed", "a", "x.txt", "v"])
  bad = '{"source": "a", "target": "b"}\n{"source": "a", "target": null}\n'
  (tmp_path / "bad.jsonl").write_text(bad)
  (tmp_path / "t.tsv").write_text("a\tb\n")
  pipe, _ = os.pipe()
  for command, message in (
    ("mine x.txt y.txt out.tsv", "give --encoder to compute them, or --vectors"),
    ("mine x.txt y.txt o --vectors v v", "do not match the current text in y.txt (28 lines)"),
    ("embed a x.txt t.tsv o", "texts in different fields; give --field"),
    ("embed a x.txt o --engine local --ray-address x:1", "--ray-address does not apply"),
    ("score a x.txt y.txt", "x.txt has 24 lines but"),
    ("score a bad.jsonl", "bad.jsonl:2: not a JSON object with a string 'target'"),
    (f"embed a /dev/fd/{pipe} o", "not a file; pass the path of a file"),
  ):
    capsys.readouterr()
    assert cli.main(command.split()) == 1, command
    error = capsys.readouterr().err
    assert error.startswith("vmsst: error: ")
    assert message in error
    assert error.count("\n") == 1
  assert not {"o", "out", "out.tsv"} & {path.name for path in tmp_path.iterdir()}


@pytest.mark.usefixtures("encoder")
def test_empty_texts_are_refused_and_nothing_is_written(sides, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  cli.main(["embed", "a", "x.txt", "v"])
  (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
  before = sorted(tmp_path.iterdir())
  for line in (
    "embed a - out",
    "score a -",
    "mine x.txt empty.gz out --encoder a",
    "search x.txt empty.gz v --output out",
    "translate run --to de --input empty.gz",
  ):
    from_standard_input(monkeypatch, "")
    capsys.readouterr()
    assert cli.main(line.split()) == 1, line
    done = capsys.readouterr()
    culprit = "empty.gz" if "empty.gz" in line else "standard input"
    assert f"{culprit}: empty; pass a file with at" in done.err, line
    assert done.out == ""
    assert sorted(tmp_path.iterdir()) == before


# --------------------------------------------------------------------------------------------
# Object stores


def test_commands_write_the_same_files_to_a_store_as_locally(
  sides, encoder, tmp_path, capsys, monkeypatch
):
  store = memory_store.installed(monkeypatch)
  urls = [f"gs://bucket/{number}.txt" for number in range(2)]
  for side, url in zip(sides, urls, strict=True):
    store.put_file(side, url)
  results = []
  for place, (source, target) in (("local", sides), ("store", urls)):
    folder = tmp_path / place
    gold = f"{source}.gold"
    storage.path(gold).write_text("".join(f"{i + 1}\t{28 - i}\n" for i in range(24)))
    vectors = "gs://bucket/vectors" if place == "store" else str(folder)
    out = "gs://bucket/out/x" if place == "store" else str(folder)
    search = ["search", source, target, f"{vectors}/t", "--encoder", "a"]
    both = ["--vectors", f"{vectors}/v", f"{vectors}/t"]
    for command in (
      ["embed", "a", source, f"{vectors}/v"],
      ["embed", "a", target, f"{vectors}/t"],
      [*search, "--output", f"{out}.s"],
      ["index", f"{vectors}/v", f"{vectors}/vi", "--factory", "SQfp16"],
      ["index", f"{vectors}/t", f"{vectors}/ti", "--factory", "SQfp16"],
      [*search, "--output", f"{out}.i", "--index", f"{vectors}/ti"],
      ["mine", source, target, f"{out}.m", *both],
      ["mine", source, target, f"{out}.j", *both, "--index", f"{vectors}/vi", f"{vectors}/ti"],
      ["mine", source, target, f"{out}.n", "--encoder", "a"],
      ["mine", source, target, f"{out}.g", "--encoder", "a", "--gold", gold],
      ["score", "a", source, source, "--output", f"{out}.c"],
      ["vocab", "train", "--input", source, "--output", f"{out}.model", "--size", "26"],
    ):
      assert cli.main(command) == 0, capsys.readouterr().err
    results.append(
      [
        vector_store.open_vectors(f"{vectors}/v")[:].tolist(),
        *(
          storage.path(f"{out}.{end}").read_bytes()
          for end in ("s", "i", "m", "j", "n", "g", "c", "model")
        ),
      ]
    )
  assert results[0] == results[1]
  vectors = {f"x.{end}.{side}.vectors" for end in "ng" for side in ("source", "target")}
  results = {f"x.{end}" for end in ("s", "i", "m", "j", "n", "g", "c", "model")}
  assert storage.names("gs://bucket/out") == vectors | results


# --------------------------------------------------------------------------------------------
# Encoders that have changed

NETWORK = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)


def save(folder, seed, network=NETWORK, **options):
  shutil.rmtree(folder, ignore_errors=True)
  model = tiny_encoders.model_of(network, **options)
  return tiny_encoders.save_run(folder, model, tiny_encoders.random_params(network, seed))


@pytest.fixture
def run(tmp_path):
  return save(tmp_path / "run", 0)


@pytest.fixture
def text(tmp_path):
  path = tmp_path / "text.txt"
  path.write_text("one\ntwo\nthree\n")
  return path


def command(*words):
  return cli.main([*map(str, words)])


def test_vectors_of_replaced_weights_are_not_reused_or_searched(run, text, tmp_path, capsys):
  folder = tmp_path / "vectors"
  assert command("embed", run, text, folder) == 0
  files = {path: path.read_bytes() for path in folder.iterdir()}
  assert command("embed", run, text, folder) == 0  # nothing to do
  moved = run.rename(tmp_path / "moved")
  assert command("embed", moved, text, folder) == 0  # the same encoder
  save(run, 1)
  capsys.readouterr()
  for words, message in (
    (("embed", run, text, folder), "belongs to another job: encoder is "),
    (("search", text, text, folder), "has changed since it computed"),
  ):
    assert command(*words) == 1
    assert message in capsys.readouterr().err
  assert {path: path.read_bytes() for path in folder.iterdir()} == files
  assert not (tmp_path / "out").exists()
  other = tmp_path / "other"
  assert command("embed", run, text, other) == 0
  assert command("mine", text, text, tmp_path / "out", "--vectors", folder, other) == 1
  assert "differ: encoder is" in capsys.readouterr().err
  assert command("search", text, text, folder, "--encoder", moved) == 0


@pytest.mark.parametrize(
  ("line", "total"),
  [
    ("embed run a.txt out --batch-size 8", 48),
    ("mine a.txt b.txt out --encoder run --batch-size 8", 48),
    ("data embed run out x.de-en.tsv", 300),
  ],
)
def test_progress_counts_texts_after_each_batch(line, total, run, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(progress_bar, "LINE_SECONDS", 1e-9)
  line_files.write_lines(tmp_path / "a.txt", SENTENCES * 2)
  line_files.write_lines(tmp_path / "b.txt", SENTENCES[::-1] * 2)
  line_files.write_tsv(tmp_path / "x.de-en.tsv", [(f"a {n}", f"b {n}") for n in range(150)])
  assert cli.main(line.split()) == 0
  counts = [int(x) for x in re.findall(rf" (\d+)/{total} ", capsys.readouterr().err)]
  assert counts == sorted(counts) or line.startswith("mine")  # two texts
  assert 0 < min(counts) < total == max(counts)
