"""`vmsst data embed`, `clean` and `mine-negatives`, and `vmsst vocab train`."""

import functools
import hashlib
import json
import os
import pathlib

import fake_encoders
import line_files
import memory_store
import numpy as np
import pytest

from vmsst import cli, errors, finetuning, storage
from vmsst.data import readers, tables, training_sets, vocabularies
from vmsst.encoder import loading
from vmsst.mining import hard_negative_mining
from vmsst.opus import file_cleaning

PAIRS = [("eins", "one"), ("zwei", "two"), ("drei", "three")]


class Encoder(fake_encoders.FakeEncoder):
  dimension = 6

  def __init__(self):
    super().__init__(fake_encoders.random_vector)

  def encode(self, sentences, *, language, batch_size, progress, on_cut=None):
    return super().encode(sentences).astype(np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Writes a run with two checkpoints, and bitext in two folders."""
  for step in (1, 2):
    (tmp_path / "run" / f"checkpoint_{step}" / "state").mkdir(parents=True)

  def load(path, **_):
    encoder = Encoder()
    encoder.path = str(max(pathlib.Path(path).iterdir()))
    encoder.digest = hashlib.sha256(encoder.path.encode()).hexdigest()
    return encoder

  monkeypatch.setattr(loading, "load", load)
  line_files.write_tsv(tmp_path / "a" / "x.de-en.tsv", PAIRS)
  line_files.write_lines(tmp_path / "b" / "train.fr", ["un", "deux"])
  line_files.write_lines(tmp_path / "b" / "train.en", ["one", "two"])
  return tmp_path


def embed(folder, *options, patterns=("a/*.tsv", "b/train.en"), out="out"):
  out = out if storage.is_url(out) else str(folder / out)
  paths = [str(folder / pattern) for pattern in patterns]
  return cli.main(["data", "embed", str(folder / "run"), out, *paths, *options])


def test_bitext_is_embedded_again_only_if_inputs_change(folder, capsys):
  assert embed(folder) == 0
  paths = [folder / "out" / "a" / "x.de-en.tsv.npy", folder / "out" / "b" / "train.fr.npy"]
  contents = [path.read_bytes() for path in paths]
  paths[1].unlink()
  os.utime(paths[0], (0, 0))
  assert embed(folder) == 0
  assert [path.read_bytes() for path in paths] == contents
  assert paths[0].stat().st_mtime == 0
  (folder / "run" / "checkpoint_3" / "state").mkdir(parents=True)
  assert embed(folder) == 1
  assert "checkpoint_2" in capsys.readouterr().err
  assert embed(folder, "--refresh") == 0
  assert paths[0].stat().st_mtime > 0
  record = json.loads((folder / "out" / "job.json").read_text())
  assert record["inputs"]["encoder"]["name"].endswith("checkpoint_3")
  line_files.write_lines(folder / "b" / "train.en", ["one", "TWO"])
  assert embed(folder) == 0  # the text has changed
  assert paths[1].read_bytes() != contents[1]


def test_two_files_cannot_write_one_output_and_foreign_files_are_not_replaced(folder, capsys):
  line_files.write_tsv(folder / "c" / "a" / "x.de-en.tsv", PAIRS)
  assert embed(folder, patterns=("**/x.de-en.*",)) == 1
  output = folder / "out" / "a" / "x.de-en.tsv.npy"
  assert f"two inputs would write {output}; use another folder" in capsys.readouterr().err
  assert embed(folder, out="a") == 1
  assert "has files that this command did not write" in capsys.readouterr().err


def mine(folder, pairs, out, *options):
  paths = [str(folder / name) for name in ("run", pairs, out)]
  return cli.main(["data", "mine-negatives", *paths, *options])


def read_rows(folder, out):
  """Returns roles, texts and scores of a training set. A missing negative is ""."""
  opened = training_sets.open_set("set", training_sets.TrainingSet(folder / out))
  columns = opened.table.rows(np.arange(len(opened.table)))
  texts = zip(columns["inputs"], columns["targets"], columns["negatives"], strict=True)
  return opened.roles, [(x, y, *rest) for x, y, rest in texts], columns.get("scores")


def cosines(query, *texts):
  vectors = np.array([fake_encoders.random_vector(text) for text in (query, *texts)])
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  return unit[1:] @ unit[0]


def test_negatives_of_bitext_are_written_as_columns_or_json(folder, capsys):
  for out in ("mined.de-en.tsv", "mined.jsonl"):
    assert mine(folder, "a/x.de-en.tsv", out, "--count", "2") == 0
    assert f"{out}: 6 hard negatives of 3 pairs" in capsys.readouterr().out
    roles, rows, scores = read_rows(folder, out)
    assert roles == (None, None)
    assert scores is None
    for (query, positive), row in zip(PAIRS, rows, strict=True):
      rivals = sorted({y for _, y in PAIRS} - {positive}, key=lambda x: -cosines(query, x)[0])
      assert row == (query, positive, *rivals)
  (bitext,) = readers.find_bitext(str(folder / "mined.de-en.tsv"))
  assert [tuple(row.texts) for row in readers.read_rows(bitext)] == rows
  assert mine(folder, "a/x.de-en.tsv", "short.tsv", "--count", "3") == 0
  assert (folder / "short.tsv").read_text().endswith("\t\n")


def test_negatives_of_queries_are_documents_with_teacher_scores(folder):
  documents = [f"document {number}" for number in range(8)]
  records = [json.dumps({"id": number, "body": text}) for number, text in enumerate(documents)]
  line_files.write_lines(folder / "corpus.jsonl", records)
  questions = [("who", "me\nand you"), ("what", "this"), ("who", "them")]
  rows = [json.dumps({"question": x, "answer": y}) for x, y in questions]
  line_files.write_lines(folder / "pairs.jsonl", rows)
  options = ["--corpus", str(folder / "corpus.jsonl"), "--field", "body", "--range-min", "1"]
  options += ["--relative-margin", "0.1", "--range-max", "6", "--teacher", str(folder / "run")]
  assert mine(folder, "pairs.jsonl", "mined.jsonl", *options) == 0
  roles, rows, scores = read_rows(folder, "mined.jsonl")
  assert roles == ("query", "document")
  for (query, positive), row, row_scores in zip(questions, rows, scores, strict=True):
    (limit,) = cosines(query, positive)
    limit -= 0.1 * abs(limit)
    nearest = sorted(documents, key=lambda x: -cosines(query, x)[0])[1:6]
    negatives = [text for text in nearest if cosines(query, text)[0] <= limit][:3]
    assert row == (query, positive, *negatives, *[""] * (len(row) - 2 - len(negatives)))
    expected = cosines(query, positive, *negatives)
    np.testing.assert_allclose(row_scores[: len(expected)], expected, atol=1e-5)
  # A file with teacher scores can be used for contrastive training, a file with labels cannot.
  (opened,) = finetuning.open_sets(folder / "mined.jsonl", None)
  assert "scores" not in opened.features
  (opened,) = finetuning.open_sets(folder / "mined.jsonl", None, objective="kl_divergence")
  assert "scores" in opened.features
  line_files.write_lines(folder / "graded.tsv", ["query\tpos\tlabel", "a\tb\t0"])
  assert mine(folder, "graded.tsv", "out.jsonl") == 1


def test_interrupted_mining_does_not_embed_texts_again(folder, monkeypatch):
  monkeypatch.setattr(hard_negative_mining, "_WINDOW", 2)
  assert mine(folder, "a/x.de-en.tsv", "whole.jsonl") == 0
  for finished in range(4):
    encoder = Encoder()
    encoder.calls, encoder.fail_at, encoder.digest = [], finished, "x"
    monkeypatch.setattr(loading, "open_encoder", lambda path, encoder=encoder: (path, encoder))
    assert mine(folder, "a/x.de-en.tsv", "out.jsonl") == 130
    assert not (folder / "out.jsonl").exists()
    assert mine(folder, "a/x.de-en.tsv", "out.jsonl") == 0
    assert encoder.sizes == [2, 1, 2, 1]
    assert (folder / "out.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()
    assert not (folder / ".out.jsonl.vmsst").exists()
    (folder / "out.jsonl").unlink()


def add_vectors(file, vectors):
  opened = training_sets.open_set("train", training_sets.TrainingSet([file]))
  training_sets.add_file_vectors(opened, vectors)


@pytest.mark.parametrize("out", ["out", "gs://bucket/out"])
def test_training_accepts_only_the_vectors_of_its_bitext(folder, capsys, monkeypatch, out):
  memory_store.installed(monkeypatch)
  assert embed(folder, out=out, patterns=("a/*",)) == 0
  assert "x.de-en.tsv.npy: vectors of 3 pairs, width 6" in capsys.readouterr().out
  vectors = out if storage.is_url(out) else str(folder / out)
  files = readers.find_bitext(str(folder / "a" / "*"))
  # Training can use other language codes, but needs the same texts.
  files += readers.find_bitext(str(folder / "a" / "*"), ("und", "und"))
  for file in files:
    add_vectors(file, vectors)
  (other,) = readers.find_bitext(str(folder / "b" / "train.en"))
  with pytest.raises(errors.InputError, match=r"train\.fr\.npy:? cannot be read"):
    add_vectors(other, vectors)
  line_files.write_tsv(folder / "a" / "x.de-en.tsv", PAIRS[::-1])
  with pytest.raises(errors.InputError, match=r"does not match the current content of"):
    add_vectors(files[0], vectors)
  assert embed(folder, out=out, patterns=("a/*",)) == 0
  storage.cached_copy.cache_clear()
  add_vectors(files[0], vectors)
  if storage.is_url(out):  # The file is copied only once.
    names = [tables.open_vectors(vectors, files[0]).filename for _ in range(2)]
    assert names[0] == names[1]


def clean(folder, *options, patterns=("*.tsv",), out="out"):
  return cli.main(
    ["data", "clean", *(str(folder / x) for x in patterns), str(folder / out), *options]
  )


def test_cleaning_resumes_and_writes_training_data(folder, monkeypatch, capsys):
  monkeypatch.setattr(Encoder, "dimension", 2)
  monkeypatch.setattr(fake_encoders, "random_vector", fake_encoders.angle_vector)
  angles = np.linspace(0, 3, 30)
  pairs = [(f"Ein Winkel von {x}", f"An angle of {x}") for x in angles]
  wrong = [(f"Der Winkel ist {x}", f"The angle is {3 - x}") for x in angles[::3]]
  line_files.write_tsv(folder / "x.de-en.tsv", [*pairs, *wrong, pairs[0], ("1", "2")])
  line_files.write_tsv(folder / "y.fr-en.tsv", [("un 0.5", "one 2.5"), ("deux 1", "two 1")])
  line_files.write_lines(folder / "test.txt", ["AN ANGLE OF 0.0!"])
  options = ["--held-out", str(folder / "test.txt"), "--encoder", str(folder / "run")]
  assert clean(folder, *options) == 1
  assert "--encoder together with --min-cosine, --min-margin or both" in capsys.readouterr().err
  options += ["--min-cosine", "0.5", "--min-margin", "1.0005"]
  assert clean(folder, *options, out="whole") == 0
  printed = capsys.readouterr().out
  assert "whole/deu-eng.tsv: 42 read, 29 kept, 2 held_out, 1 script, " in printed

  # Ctrl-C while the targets are embedded: sources and the finished cleaning are not repeated.
  encode, interrupted = Encoder.encode, []

  @functools.wraps(encode)
  def interrupt(self, sentences, **options):
    interrupted.append(sentences[0])
    if len(interrupted) == 2:
      raise KeyboardInterrupt
    return encode(self, sentences, **options)

  monkeypatch.setattr(Encoder, "encode", interrupt)
  assert clean(folder, *options) == 130
  monkeypatch.setattr(file_cleaning, "clean", lambda *_: pytest.fail("cleaned again"))
  assert clean(folder, *options) == 0
  assert interrupted[1:3] == [interrupted[1]] * 2
  assert capsys.readouterr().out == printed.replace("whole", "out")
  for name in ("deu-eng.tsv", "fra-eng.tsv"):
    assert (folder / "out" / name).read_bytes() == (folder / "whole" / name).read_bytes()
  assert {x.name for x in (folder / "out").iterdir()} == {"deu-eng.tsv", "fra-eng.tsv", "job.json"}
  assert clean(folder, *options) == 0
  counts = json.loads((folder / "out" / "job.json").read_text())["facts"]["counts"]["deu-eng"]
  assert counts["kept"] == 29
  table = training_sets.open_set(
    "train", training_sets.TrainingSet(folder / "out" / "deu-eng.tsv")
  ).table
  assert list(table.pairs())[:2] == pairs[1:3]


def test_cleaning_writes_a_file_per_language_pair(folder, capsys):
  line_files.write_tsv(folder / "a" / "y.de-en.tsv", [("vier", "four"), ("Eins!", "ONE")])
  line_files.write_tsv(folder / "z.tsv", [("!!", "???")])
  assert clean(folder, "--workers", "2", patterns=("a/*", "b/train.en")) == 0
  out = capsys.readouterr().out
  assert "out/deu-eng.tsv: 5 read, 4 kept, 1 duplicate\n" in out
  assert "out/fra-eng.tsv: 2 read, 2 kept\n" in out
  assert (folder / "out" / "fra-eng.tsv").read_text() == "un\tone\ndeux\ttwo\n"
  assert clean(folder, patterns=("z.tsv",), out="und") == 1
  options = ["--languages", "und", "und", "--encoder", str(folder / "run"), "--min-cosine=0"]
  assert clean(folder, *options, patterns=("z.tsv",), out="und") == 0
  assert "und/und-und.tsv: 1 read, 0 kept, 1 script\n" in capsys.readouterr().out
  assert clean(folder, patterns=("a/*",)) == 1
  assert "out belongs to another job: files is" in capsys.readouterr().err


def test_vocab_train_writes_a_vocabulary_and_prints_the_sentences_per_file(tmp_path, capsys):
  pairs = [(f"the {a} dog", f"sees a {b}") for a in ("old", "Big") for b in ("house", "river")]
  bitext = line_files.write_tsv(tmp_path / "a.de-en.tsv.gz", pairs)
  output = tmp_path / "new.model"
  command = ["vocab", "train", f"--output={output}", f"--input={bitext}", "--lowercase"]
  assert cli.main([*command, "--size=36", "--model-type=bpe"]) == 0
  printed = capsys.readouterr().out
  assert "SentencePieceVocabulary.lowercase = True" in printed
  assert f"         8 sentences  {bitext}\n" in printed
  vocabulary = vocabularies.SentencePieceVocabulary(str(output), lowercase=True)
  assert (vocabulary.size, vocabulary.eos_id, vocabulary.unk_id) == (36, 1, 2)
  assert vocabulary.decode(vocabulary.encode(["The Big house"], 50)[0]) == "the big house"
  assert {*tmp_path.iterdir()} == {bitext, output}
  assert cli.main([*command, "--size=5000"]) == 1
  assert "5000 pieces from 8 sentences" in capsys.readouterr().err
