import argparse
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import string
import subprocess
import sys

import fake_encoders
import line_files
import memory_store
import numpy as np
import pytest

import vmsst
from vmsst import cli, errors
from vmsst.cli.command import finite_number
from vmsst.files import storage, text_files
from vmsst.inference import loading
from vmsst.mining import pair_scoring
from vmsst.text import vocabularies, vocabulary_training
from vmsst.vectors import embedded_text, file_embedding, vector_store

SENTENCES = [
  f"the {a} {b} sees a {c}"
  for a in ("old", "new", "Big")
  for b in ("dog", "cat")
  for c in ("house", "river", "mountain", "bridge")
]


@pytest.fixture
def corpus(tmp_path):
  line_files.write_tsv(tmp_path / "a.de-en.tsv.gz", [(x, x.upper()) for x in SENTENCES])
  (tmp_path / "b.txt").write_text("a plain line\n\nand another one\n", encoding="utf-8")
  return tmp_path


def test_gin_dir_prints_the_folder_of_the_gin_files(capsys):
  assert cli.main(["gin-dir"]) == 0
  assert capsys.readouterr().out.strip().endswith("gin")


def all_options(parser, words=()):
  """Yields every option with the words of its command."""
  for action in parser._actions:
    if isinstance(action.choices, dict):
      for word, inner in action.choices.items():
        yield from all_options(inner, (*words, word))
    yield words, action


def test_options_take_finite_numbers_only_and_negative_ones_in_any_form(capsys):
  assert [words for words, action in all_options(cli.build_parser()) if action.type is float] == []
  required = {("mine",): "abc", ("translate",): ["a", "--to", "de"]}
  required["vocab", "train"] = ["--input", "a", "--output", "b"]
  names = []
  for words, action in all_options(cli.build_parser()):
    if action.type is not finite_number:
      continue
    (name,) = action.option_strings
    names.append(name)
    start = [*words, *required[words], name]
    for text in ("nan", "inf", "-inf", "-NaN", "1e999", "-1e999", "x", "-1x"):
      with pytest.raises(SystemExit) as stop:
        cli.main([*start, text])
      assert stop.value.code == 2
      assert f"argument {name}: " in (error := capsys.readouterr().err)
      assert text in error
    for text in ("-1e-3", "-.5", "-2", "-1E+2", "0.25"):
      assert getattr(cli.build_parser().parse_args([*start, text]), action.dest) == float(text)
  assert {"--threshold", "--min-cosine", "--temperature"} <= set(names)


def test_unknown_commands_list_the_known_ones(capsys):
  with pytest.raises(SystemExit):
    cli.main(["embedd"])
  assert "gin-dir" in (shown := capsys.readouterr().err)
  assert shown.endswith("; did you mean embed?\n")
  with pytest.raises(SystemExit):
    cli.main(["data", "mine-negativ"])
  assert capsys.readouterr().err.endswith("; did you mean mine-negatives?\n")
  with pytest.raises(SystemExit):
    cli.main(["zzz"])
  assert "did you mean" not in capsys.readouterr().err


def test_a_missing_folder_is_named_with_some_of_what_is_there(tmp_path, capsys, monkeypatch):
  for number in range(100):
    (tmp_path / f"{number:03}{'x' * 200}").touch()
  monkeypatch.chdir(tmp_path)
  assert cli.main(["export", "onnx", "nowhere", "out"]) == 1
  message = capsys.readouterr().err
  assert "000xxx" in message
  assert message.endswith(" and 92 more\n")
  assert len(message) < 1000


def test_messages_and_docstrings_name_commands_that_exist():
  package = pathlib.Path(cli.__file__).parents[1]
  commands = {words if len(words) == 2 else (*words, None) for words in cli.COMMANDS}
  commands |= {(word, None) for word, _ in commands}
  named = set()
  for folder in (package, *(package / name for name in ("tasks", "launch"))):
    for path in folder.rglob("*.py"):
      found = re.findall(r"`vmsst ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", path.read_text("utf-8"))
      named |= {(path.name, word, second or None) for word, second in found}
  groups = {word for word, second in commands if second}
  unknown = [x for x in named if (x[1], x[2] if x[1] in groups else None) not in commands]
  assert unknown == []
  assert len(named) > 20


def test_vocab_train_writes_a_vocabulary_and_says_from_what(corpus, capsys):
  output = corpus / "new.model"
  status = cli.main(
    [
      *("vocab", "train", "--input", str(corpus / "*.tsv.gz"), str(corpus / "b.txt")),
      *("--output", str(output), "--size", "40", "--model-type", "bpe", "--lowercase"),
    ]
  )
  printed, problems = capsys.readouterr()
  assert status == 0, problems
  assert "48 of 48 sentences" in printed
  assert "2 of 2 sentences" in printed
  vocabulary = vocabularies.SentencePieceVocabulary(str(output), lowercase=True)
  assert (vocabulary.size, vocabulary.eos_id, vocabulary.unk_id) == (40, 1, 2)
  assert vocabulary.decode(vocabulary.encode(["The Big house"], 50)[0]) == "the big house"
  assert sorted(path.name for path in corpus.iterdir()) == ["a.de-en.tsv.gz", "b.txt", "new.model"]


def test_vocab_train_on_words_says_how_to_use_it(corpus, capsys):
  pytest.importorskip("sacremoses")
  files = ("--input", str(corpus / "*.tsv.gz"), "--output", str(corpus / "new.model"))
  options = ("--size", "40", "--model-type", "bpe", "--lowercase", "--pretokenize")
  assert cli.main(["vocab", "train", *files, *options]) == 0
  printed = capsys.readouterr().out
  assert "SentencePieceVocabulary.lowercase = True" in printed
  assert "SentencePieceVocabulary.pretokenize = True" in printed


def test_vocab_training_is_deterministic_and_draws_evenly(corpus):
  line_files.write_lines(corpus / "long.txt", SENTENCES * 5)
  models = []
  for name in ("one.model", "two.model"):
    report = vocabulary_training.train_vocabulary(
      [str(corpus / "*.txt"), str(corpus / "*.gz")], str(corpus / name), size=50, max_sentences=42
    )
    models.append((corpus / name).read_bytes())
  assert models[0] == models[1]
  # b.txt contributes its 2 lines; the other two share the remaining 40.
  assert [used for used, _ in report.sentences_by_file.values()] == [2, 20, 20]


def test_vocab_train_reports_what_is_wrong_in_one_line(corpus, capsys):
  output = str(corpus / "new.model")
  assert cli.main(["vocab", "train", "--input", "/no/such/*", "--output", output]) == 1
  assert "no file matches" in capsys.readouterr().err
  arguments = ["vocab", "train", "--input", str(corpus / "b.txt"), "--output", output]
  assert cli.main([*arguments, "--size", "5000"]) == 1
  error = capsys.readouterr().err
  assert "5000 pieces from 2 sentences" in error
  assert "Traceback" not in error
  for share in (0, 1.5, float("nan")):
    with pytest.raises(errors.InputError, match=r"character_coverage is .*; set it to a number"):
      vocabulary_training.train_vocabulary("b.txt", output, size=18, character_coverage=share)
  with pytest.raises(errors.InputError, match="/dev/null is not a file"):
    vocabulary_training.train_vocabulary(str(corpus / "b.txt"), "/dev/null", size=18)


def letter_counts(text):
  return [text.lower().count(letter) for letter in string.ascii_lowercase]


@pytest.fixture
def encoder(monkeypatch):
  encoder = fake_encoders.FakeEncoder(letter_counts)
  encoder.dimension = 26
  monkeypatch.setattr(
    loading, "open_encoder", lambda path, dtype=None, backend="jax": (f"/runs/{path[-1]}", encoder)
  )
  monkeypatch.setattr(file_embedding, "_SHARD_LINES", 5)
  monkeypatch.setattr(pair_scoring, "_WINDOW", 5)
  return encoder


@pytest.fixture
def sides(tmp_path):
  """Sentences, and the same in capitals in another order, mixed with others."""
  line_files.write_lines(tmp_path / "x.txt", SENTENCES)
  others = ["", "something else", "", "zzz"]
  capitals = [x.upper() for x in reversed(SENTENCES)]
  line_files.write_lines(tmp_path / "y.txt", others + capitals)
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


@pytest.mark.parametrize("name", [b"caf\xe9", "café \x1b]0;title\x07 [1]*".encode()])
def test_any_name_of_a_file_works(name, sides, encoder, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  name = os.fsdecode(name)
  x, y, vectors, out, scores, found = (f"{name}.{end}" for end in ("x", "y", "v", "m", "s", "f"))
  for side, path in zip(sides, (x, y), strict=True):
    os.rename(side, path)
  encoder.fail_at = 2
  assert cli.main(["mine", x, y, out, "--encoder", "a"]) == 130
  encoder.fail_at = None
  assert cli.main(["mine", x, y, out, "--encoder", "a"]) == 0  # resumes
  for command in (
    ["embed", "a", y, vectors],
    ["index", vectors, "index"],
    ["search", x, y, vectors, "--index", "index", "--output", found],
    ["score", "a", x, x, "--output", scores],
  ):
    assert cli.main(command) == 0, capsys.readouterr().err
  assert len(pathlib.Path(out).read_text().splitlines()) == len(SENTENCES)
  printed = capsys.readouterr()
  assert "caf" in printed.out
  assert not {"\x1b", "\x07", "\udce9"} & {*printed.out, *printed.err}


def test_embed_reports_that_it_resumes_after_an_interruption(sides, encoder, tmp_path, capsys):
  command = ["embed", "a", sides[0], str(tmp_path / "v"), "--dtype", "float16"]
  encoder.fail_at = 2
  assert cli.main(command) == 130
  assert capsys.readouterr().err == "vmsst: interrupted; rerun the same command to resume\n"
  assert cli.main(["search", "-", sides[0], str(tmp_path / "v")]) == 1
  assert "v is not finished; rerun the same command" in capsys.readouterr().err
  assert cli.main(command) == 0
  assert capsys.readouterr().out == f"{tmp_path / 'v'}: 24 vectors of width 26\n"
  assert len(encoder.calls) == 5


def from_standard_input(monkeypatch, text):
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_embed_goes_from_pipe_to_pipe(encoder, tmp_path, capfdbinary, monkeypatch):
  lines = [*SENTENCES[:7], "", "last"]
  from_standard_input(monkeypatch, "\n".join(lines))
  assert cli.main(["embed", "a", "-", "-"]) == 0
  printed = capfdbinary.readouterr().out
  found = np.load(io.BytesIO(printed))
  np.testing.assert_array_equal(found, encoder.encode(lines))
  # The same into a folder; an interrupted command resumes when it gets the same input again.
  folder = str(tmp_path / "v")
  encoder.calls, encoder.fail_at = [], 1
  for status in (130, 0):
    from_standard_input(monkeypatch, "\n".join(lines))
    assert cli.main(["embed", "a", "-", folder]) == status
  np.testing.assert_array_equal(vector_store.open_vectors(folder)[:], encoder.encode(lines))


def test_embed_takes_columns_and_keys(encoder, tmp_path):
  tsv, jsonl = tmp_path / "x.tsv", tmp_path / "x.jsonl"
  texts = ["ab", "", "c"]
  line_files.write_tsv(tsv, [(text, f"zz{text}") for text in texts])
  line_files.write_lines(jsonl, [json.dumps({"text": t, "k": t * 2}) for t in texts])
  for path, options, expected in (
    (tsv, [], texts),
    (tsv, ["--field", "2"], ["zz" + text for text in texts]),
    (jsonl, [], texts),
    (jsonl, ["--field", "k"], [text * 2 for text in texts]),
  ):
    folder = tmp_path / f"{path.name}{''.join(options)}.v"
    assert cli.main(["embed", "a", str(path), str(folder), *options]) == 0
    found = vector_store.open_vectors(folder)[:]
    np.testing.assert_array_equal(found, encoder.encode(expected))
    opened = embedded_text.open_text(str(path), folder)
    assert list(map(opened.reader(), [0, 2])) == [expected[0], expected[2]]


def cosine(one, other):
  norms = np.linalg.norm(one) * np.linalg.norm(other)
  return float(one @ other / norms) if norms else 0.0


def test_score_prints_a_cosine_for_each_line(encoder, tmp_path, capsys, monkeypatch):
  sources, targets = [*SENTENCES[:11], ""], [*SENTENCES[1:12], "x"]
  one, other, both = (tmp_path / name for name in ("a.txt", "b.txt", "both.tsv"))
  line_files.write_lines(one, sources)
  line_files.write_lines(other, targets)
  pairs = "".join(f"{x}\t{y}\n" for x, y in zip(sources, targets, strict=True))
  line_files.write_text(both, pairs)
  expected = [
    cosine(*encoder.encode([x, y]).astype(float)) for x, y in zip(sources, targets, strict=True)
  ]
  capsys.readouterr()
  for arguments in ([str(one), str(other)], [str(both)], ["-"], ["-", str(other)]):
    from_standard_input(monkeypatch, pairs if len(arguments) == 1 else "\n".join(sources) + "\n")
    assert cli.main(["score", "a", *arguments]) == 0
    printed = capsys.readouterr().out.splitlines()
    np.testing.assert_allclose([float(x) for x in printed], expected, atol=1e-6)
  # Into a file, interrupted and resumed; another encoder's file is not resumed.
  out = tmp_path / "new" / "scores.txt"
  encoder.calls, encoder.fail_at = [], 3
  command = ["score", "a", str(one), str(other), "--output", str(out)]
  assert cli.main(command) == 130
  assert not out.exists()
  assert cli.main(["score", "b", *command[2:]]) == 1
  assert (
    ".scores.txt.vmsst: this unfinished output of an earlier command is from other inputs"
    in capsys.readouterr().err
  )
  calls = len(encoder.calls)
  assert cli.main(command) == 0
  assert len(encoder.calls) - calls == 4  # 5 of 12 pairs were finished
  assert out.read_text(encoding="utf-8").splitlines() == printed
  assert [path.name for path in out.parent.iterdir()] == ["scores.txt"]


@pytest.mark.usefixtures("encoder")
def test_score_says_what_is_wrong_in_one_line(sides, tmp_path, capsys):
  bad = tmp_path / "bad.jsonl"
  bad.write_text('{"source": "a", "target": "b"}\n{"source": "a", "target": null}\n')
  for arguments, message in (
    (sides, "x.txt has 24 lines and"),
    ([sides[0]], "x.txt:1: 1 columns, but the text must be in column 2"),
    ([str(bad)], "bad.jsonl:2: not a JSON object with a string 'target'"),
    ([str(bad), "--fields", "source", "0"], "columns are counted from 1"),
    ([sides[0], sides[0], "--fields", "a", "b"], "x.txt:1: not JSON"),
    ([sides[0], sides[0], "--long-texts", "split"], "FakeEncoder does not support long_texts"),
    ([sides[0], str(tmp_path / "none")], "none: cannot be opened"),
  ):
    assert cli.main(["score", "a", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_search_prints_a_line_for_each_query(sides, encoder, tmp_path, capsys, monkeypatch):
  vectors = str(tmp_path / "v")
  assert cli.main(["embed", "a", sides[1], vectors]) == 0
  queries = f"{SENTENCES[3]}\n\nzz é\n"
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(queries.encode())))
  capsys.readouterr()
  assert cli.main(["search", "-", sides[1], vectors, "--count", "2", "--encoder", "b"]) == 0
  printed, notes = capsys.readouterr()
  assert notes == f"vmsst: note: {vectors}: encoder is /runs/a, not /runs/b\n"
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
  assert capsys.readouterr() == ("", "")  # opens the encoder that made the vectors


@pytest.mark.usefixtures("encoder")
def test_search_and_mine_print_the_same_with_an_exact_index(sides, tmp_path, capsys):
  queries = tmp_path / "q.txt"
  queries.write_text(f"{SENTENCES[3]}\nzz é\n", encoding="utf-8")
  folders, indexes = ([str(tmp_path / f"{side}.{x}") for side in "ab"] for x in ("v", "index"))
  for text, folder in zip(sides, folders, strict=True):
    assert cli.main(["embed", "a", text, folder]) == 0
  count = vmsst.open_vectors(folders[0]).shape[0]
  for folder, index in zip(folders, indexes, strict=True):
    capsys.readouterr()
    assert cli.main(["index", folder, index]) == 0
    assert capsys.readouterr().out.startswith(f"{index}: Flat of ")
  search = ["search", str(queries), sides[1], folders[1], "--count", "2"]
  mine = ["mine", *sides, str(tmp_path / "pairs.tsv"), "--vectors", *folders]
  printed = []
  for options in ([], ["--index", indexes[1]]):
    assert cli.main([*search, *options]) == 0
    printed.append(capsys.readouterr().out)
  assert printed[0] == printed[1]
  for options in ([], ["--index", *indexes]):
    assert cli.main([*mine, *options]) == 0
    printed.append((tmp_path / "pairs.tsv").read_text(encoding="utf-8"))
  assert printed[2] == printed[3]
  assert len(printed[3].splitlines()) > count / 4
  capsys.readouterr()
  assert cli.main([*search, "--index", indexes[0]]) == 1
  assert f"{indexes[0]} is an index of other vectors than {folders[1]}" in capsys.readouterr().err
  assert cli.main(["index", folders[1], indexes[1], "--factory", "HNSW8"]) == 1
  assert "factory 'HNSW8' is not supported" in capsys.readouterr().err


@pytest.mark.usefixtures("encoder")
def test_commands_on_texts_say_what_is_wrong_in_one_line(sides, tmp_path, capsys):
  vectors, folder = str(tmp_path / "v"), str(tmp_path)
  cli.main(["embed", "a", sides[0], vectors])
  for command, message in (
    (["mine", *sides, f"{folder}/out.tsv"], "give --encoder to compute them, or --vectors"),
    (["mine", *sides, "o", "--vectors", folder, vectors], "no vectors.json: give a folder that"),
    (["mine", *sides, f"{folder}/o.tsv", "--vectors", vectors, vectors], "y.txt has 28 lines and"),
    (["search", "-", sides[1], vectors], "has 24 vectors, not one per line"),
    (["search", f"{folder}/none", sides[0], vectors], "none"),
    (["embed", "b", sides[0], vectors], "give another folder"),
    (["embed", "a", f"{folder}/none", vectors], "none: cannot be opened"),
    (["embed", "a", sides[0], f"{sides[0]}/v"], "x.txt is not a folder"),
  ):
    capsys.readouterr()
    assert cli.main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("vmsst: error: ")
    assert message in error
    assert error.count("\n") == 1
  for command in (
    ["mine", *sides, "o", "--neighbors", "0"],
    ["mine", *sides, "o", "--threshold", "1", "--gold", "g"],
    ["search", "-", sides[0], vectors, "--count", "many"],
  ):
    with pytest.raises(SystemExit) as stop:
      cli.main(command)
    assert stop.value.code == 2


@pytest.mark.usefixtures("encoder")
@pytest.mark.parametrize(
  "arguments",
  [
    ["embed", "a", "x.txt", "out"],
    ["score", "a", "x.txt", "y.txt", "--output", "out"],
    ["mine", "x.txt", "y.txt", "out", "--vectors", "x", "y"],
    ["mine", "y.txt", "x.txt", "out", "--encoder", "a"],
    ["search", "q.txt", "x.txt", "x", "--output", "out"],
    ["search", "q.txt", "x.txt", "x", "--output", "out", "--workers", "1"],
  ],
  ids=" ".join,
)
def test_a_replaced_text_is_refused_or_read_as_it_was(sides, tmp_path, monkeypatch, arguments):
  """Replaces the text before each time that a command opens it, except the first."""
  del sides
  lines = (tmp_path / "x.txt").read_text().splitlines()
  line_files.write_lines(tmp_path / "y.txt", map(str.upper, lines))
  line_files.write_lines(tmp_path / "q.txt", lines[:7])
  monkeypatch.chdir(tmp_path)
  for name in "xy":
    assert cli.main(["embed", "a", f"{name}.txt", name]) == 0
  kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
  opens, inner = [], text_files._open

  def opening(path):
    if os.path.basename(path) == "x.txt":
      opens.append(path)
      if len(opens) == replaced:
        line_files.write_lines(tmp_path / "new", reversed(lines))
        os.replace(tmp_path / "new", "x.txt")
    return inner(path)

  monkeypatch.setattr(text_files, "_open", opening)
  replaced, expected, refused = 1, None, 0
  while expected is None or replaced <= len(opens):
    for path in tmp_path.iterdir():
      shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path, content in kept.items():
      path.parent.mkdir(exist_ok=True)
      path.write_bytes(content)
    replaced = 0 if expected is None else max(replaced + 1, 2)
    opens.clear()
    if cli.main(arguments):
      refused += 1
      assert not (tmp_path / "out").is_file()
      continue
    found = tmp_path / "out" if (tmp_path / "out").is_file() else tmp_path / "out" / "vectors.json"
    expected = expected or found.read_bytes()
    assert found.read_bytes() == expected, replaced
  assert refused


@pytest.mark.usefixtures("encoder")
@pytest.mark.parametrize("name", ["empty.txt", "empty.txt.gz"])
def test_empty_texts_are_refused_and_nothing_is_written(sides, tmp_path, capsys, monkeypatch, name):
  x, vectors, out = sides[0], str(tmp_path / "v"), str(tmp_path / "out")
  cli.main(["embed", "a", x, vectors])
  path = tmp_path / name
  path.write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
  before = sorted(tmp_path.iterdir())
  for arguments in (
    ["embed", "a", str(path), out],
    ["embed", "a", str(path), str(path), out],
    ["embed", "a", "-", out],
    ["embed", "a", str(path), "-"],
    ["score", "a", str(path), str(path), "--output", out],
    ["score", "a", "-"],
    ["mine", str(path), x, out, "--encoder", "a"],
    ["mine", x, str(path), out, "--encoder", "a"],
    ["search", str(path), x, vectors, "--output", out],
    ["search", "-", x, vectors, "--output", out],
    ["search", x, str(path), vectors, "--output", out],
    ["translate", "run", "--to", "de", "--input", str(path)],
  ):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    capsys.readouterr()
    assert cli.main(arguments) == 1, arguments
    done = capsys.readouterr()
    culprit = name if str(path) in arguments else "standard input"
    what = " contains no sentence" if arguments[0] == "mine" else ": empty; give a text with at"
    assert f"{culprit}{what}" in done.err, arguments
    assert done.out == ""
    assert sorted(tmp_path.iterdir()) == before


def test_who_reads_the_output_may_stop():
  code = (
    "import sys; from vmsst import cli; from vmsst.cli.command import Command\n"
    "def run(args):\n"
    "  for _ in range(10000): print('x' * 99)\n"
    "cli.COMMANDS['much',] = Command('much', lambda parser: None, run)\n"
    "sys.exit(cli.main(['much']))"
  )
  with subprocess.Popen(
    [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
  ) as process:
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


@pytest.mark.usefixtures("encoder")
def test_standard_input_is_read_once_and_queries_may_be_gzipped(sides, tmp_path, capsys):
  assert cli.main(["score", "a", "-", "-"]) == 1
  assert "standard input (-) is given twice" in capsys.readouterr().err
  vectors = str(tmp_path / "v")
  assert cli.main(["embed", "a", sides[1], vectors]) == 0
  plain, packed = tmp_path / "q.txt", tmp_path / "q.txt.gz"
  plain.write_text(f"{SENTENCES[3]}\nzz\n", encoding="utf-8")
  packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
  capsys.readouterr()
  printed = []
  for queries in (plain, packed):
    assert cli.main(["search", str(queries), sides[1], vectors, "--encoder", "a"]) == 0
    printed.append(capsys.readouterr().out)
  assert printed[0] == printed[1]


def test_a_build_that_fails_at_once_leaves_nothing(tmp_path, capsys):
  pytest.importorskip("tensorflow_datasets")
  (tmp_path / "opus").mkdir()
  (tmp_path / "sets").mkdir()
  command = ["data", "build", "--recipe", "ems", "--input", str(tmp_path / "opus")]
  command += ["--held-out", str(tmp_path / "sets"), "--output", str(tmp_path / "new" / "tfds")]
  assert cli.main(command) == 1
  error = capsys.readouterr().err
  assert error.startswith("vmsst: error: ")
  assert error.count("\n") == 1
  assert sorted(path.name for path in tmp_path.iterdir()) == ["opus", "sets"]


def test_embed_names_what_replaces_parts_and_refuses_what_cannot_be(
  sides, encoder, tmp_path, capsys
):
  out = str(tmp_path / "v")
  (tmp_path / "t.tsv").write_text("a\tb\n")
  for argv, message in (
    ([*sides, "-"], "- needs a single FILE"),
    (["-", out, "--engine", "ray"], "- needs a single FILE, and an engine on this machine"),
    ([sides[0], str(tmp_path / "t.tsv"), out], "texts in different fields; give --field"),
    ([sides[0], out, "--engine", "local", "--ray-address", "x:1"], "--ray-address does not apply"),
  ):
    assert cli.main(["embed", "a", *argv]) == 1
    assert message in capsys.readouterr().err
  assert not os.path.exists(out)
  assert cli.main(["embed", "a", *sides, out]) == 0
  assert capsys.readouterr().out == f"{out}: 52 vectors of width 26\n"


# --------------------------------------------------------------------------------------------
# Object stores


def test_only_these_arguments_may_be_in_object_stores():
  accepted = {}
  for words, command in cli.COMMANDS.items():
    names = [*command.inputs, command.output_file, command.output_folder]
    names = [name for name in names if name]
    accepted[" ".join(words)] = {name for name in names if name in command.urls}
    for name in set(names) - set(command.urls):
      given = argparse.Namespace(**dict.fromkeys(names), **{})
      setattr(given, name, "gs://bucket/x")
      message = f"gs://bucket/x: {name.upper()} cannot be in an object store; give a local path"
      with pytest.raises(errors.InputError, match=re.escape(message)):
        command(given)
  assert {words: names for words, names in accepted.items() if names} == {
    "data build": {"input", "held_out", "recipe", "output"},
    "data download": {"output"},
    "data embed": {"encoder", "patterns", "output"},
    "data mine-negatives": {"encoder", "patterns", "output"},
    "embed": {"encoder", "file", "out"},
    "eval": {"encoder", "data", "out"},
    "export onnx": {"encoder", "output"},
    "export safetensors": {"encoder", "output"},
    "export sentence-transformers": {"encoder", "output"},
    "import bert": {"folder", "output"},
    "import ems": {"file", "vocabulary", "output"},
    "import mt5": {"folder", "output"},
    "import vmsst": {"folder", "vocabulary", "output"},
    "mine": {"source", "target", "gold", "encoder", "vectors", "index", "out"},
    "push": {"encoder", "results"},
    "report": {"out"},
    "score": {"encoder", "source", "target", "output"},
    "index": {"vectors", "index"},
    "search": {"queries", "corpus", "vectors", "index", "encoder", "output"},
    "translate": {"folder", "input", "output"},
    "vocab train": {"input", "output"},
  }


def test_texts_vectors_and_results_in_a_store_are_as_local_ones(
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
