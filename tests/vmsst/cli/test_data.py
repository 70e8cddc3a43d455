"""`vmsst data embed` and `vmsst data mine-negatives`: a job with one file for each bitext."""

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

from vmsst import cli, errors, storage
from vmsst.data import readers, tables, training_sets, vocabularies
from vmsst.encoder import loading
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
  """A run with two checkpoints, and bitext in two folders."""
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


def run(folder, *options, command="mine-negatives", patterns=("a/*.tsv", "b/train.en"), out="out"):
  out = out if storage.is_url(out) else str(folder / out)
  paths = [str(folder / pattern) for pattern in patterns]
  return cli.main(["data", command, str(folder / "run"), out, *paths, *options])


def test_negatives_are_mined_once_until_inputs_change(folder, capsys):
  assert run(folder, "--count", "2") == 0
  assert "a/x.de-en.tsv.gz: 6 hard negatives of 3 pairs" in capsys.readouterr().out
  paths = [folder / "out" / "a" / "x.de-en.tsv.gz", folder / "out" / "b" / "train.fra-eng.tsv.gz"]
  (second,) = readers.find_bitext(str(paths[1]))
  assert [row.texts for row in readers.read_rows(second, 2)] == [
    ("un", "one", "two", ""),
    ("deux", "two", "one", ""),
  ]
  contents = [path.read_bytes() for path in paths]
  paths[1].unlink()
  os.utime(paths[0], (0, 0))
  assert run(folder, "--count", "2") == 0
  assert [path.read_bytes() for path in paths] == contents
  assert paths[0].stat().st_mtime == 0
  assert run(folder) == 1
  assert "count is 2, not 3" in capsys.readouterr().err
  (folder / "run" / "checkpoint_3" / "state").mkdir(parents=True)
  assert run(folder, "--count", "2") == 1
  assert "checkpoint_2" in capsys.readouterr().err
  assert run(folder, "--count", "2", "--refresh") == 0
  assert paths[0].stat().st_mtime > 0
  record = json.loads((folder / "out" / "job.json").read_text())
  assert record["inputs"]["encoder"]["name"].endswith("checkpoint_3")
  line_files.write_lines(folder / "b" / "train.en", ["one", "TWO"])
  assert run(folder, "--count", "2") == 0  # the text has changed
  assert "TWO" in list(readers.read_pairs(second))[1]


def test_no_input_and_no_other_file_is_replaced(folder, capsys):
  line_files.write_tsv(folder / "c" / "a" / "x.de-en.tsv", PAIRS)
  assert run(folder, patterns=("**/x.de-en.*",)) == 1
  assert "a/x.de-en.tsv.gz would replace an input, or is of two" in capsys.readouterr().err
  assert run(folder) == 0
  content = (folder / "out" / "a" / "x.de-en.tsv.gz").read_bytes()
  assert run(folder, "--refresh", patterns=("out/a/x.de-en.tsv.gz",)) == 1
  assert "a/x.de-en.tsv.gz would replace an input" in capsys.readouterr().err
  assert (folder / "out" / "a" / "x.de-en.tsv.gz").read_bytes() == content
  assert run(folder, out="a") == 1
  assert "has files that this command did not write" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["out", "gs://bucket/out"])
def test_training_takes_only_the_vectors_of_its_bitext(folder, capsys, monkeypatch, out):
  memory_store.installed(monkeypatch)
  assert run(folder, command="embed", out=out, patterns=("a/*",)) == 0
  assert "x.de-en.tsv.npy: 3 pairs of vectors of dimension 6" in capsys.readouterr().out
  vectors = out if storage.is_url(out) else str(folder / out)
  files = readers.find_bitext(str(folder / "a" / "*"))
  # Training may name the languages otherwise, but needs the same texts.
  files += readers.find_bitext(str(folder / "a" / "*"), ("und", "und"))
  for file in files:
    tables.open_files("train", [file], teacher=vectors)
  (other,) = readers.find_bitext(str(folder / "b" / "train.en"))
  with pytest.raises(errors.InputError, match=r"train\.fr\.npy:? cannot be read"):
    tables.open_files("train", [other], teacher=vectors)
  line_files.write_tsv(folder / "a" / "x.de-en.tsv", PAIRS[::-1])
  with pytest.raises(errors.InputError, match=r"does not have the vectors of .* as it is now"):
    tables.open_files("train", files[:1], teacher=vectors)
  assert run(folder, command="embed", out=out, patterns=("a/*",)) == 0
  storage.cached_copy.cache_clear()
  tables.open_files("train", files[:1], teacher=vectors)
  if storage.is_url(out):  # A file is copied once.
    names = [tables.open_vectors(vectors, files[0]).filename for _ in range(2)]
    assert names[0] == names[1]


def clean(folder, *options, patterns=("*.tsv",), out="out"):
  return cli.main(
    ["data", "clean", *(str(folder / x) for x in patterns), str(folder / out), *options]
  )


def test_clean_bitext_resumes_and_is_training_data(folder, monkeypatch, capsys):
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

  # Ctrl-C at the second side; the first side and the finished step are not repeated.
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


def test_clean_bitext_has_a_file_per_language_pair(folder, capsys):
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
  assert "out is of another job: files is" in capsys.readouterr().err


def test_vocab_train_writes_a_vocabulary_and_says_from_what(tmp_path, capsys):
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
