import sys
import zlib

import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import cli
from vmsst.encoder import loading

TEXTS = [f"word{n} other{n * 7}" for n in range(12)]


def vector(text):
  return 0.5 + sum(
    np.random.default_rng(zlib.crc32(word.encode())).standard_normal(16)
    for word in text.lower().split()
  )


@pytest.fixture
def encoder(monkeypatch):
  encoder = fake_encoders.FakeEncoder(vector)
  monkeypatch.setattr(loading, "open_encoder", lambda path, **_: (path, encoder))
  return encoder


def run(*arguments):
  return cli.main(["align", *map(str, arguments), "--encoder", "a"])


def translated(texts):
  return [text.upper() for text in texts]


def write(folder, name, texts):
  line_files.write_lines(folder / "x" / name, texts)
  line_files.write_lines(folder / "y" / name, translated(texts))


@pytest.mark.usefixtures("encoder")
def test_two_files_are_aligned(tmp_path, capsys):
  source = line_files.write_lines(tmp_path / "x.txt.gz", TEXTS)
  target = line_files.write_lines(tmp_path / "y.txt", translated([*TEXTS[:3], *TEXTS[4:]]))
  out = tmp_path / "new" / "out.tsv"
  assert run(source, target, out) == 0
  assert capsys.readouterr().out == f"{out}: 11 pairs of 1 document\n"
  rows = [line.split("\t") for line in out.read_text().splitlines()]
  assert [row[1:] for row in rows] == [[x, x.upper()] for x in [*TEXTS[:3], *TEXTS[4:]]]
  assert all(float(row[0]) > 0.9 for row in rows)
  assert run(source, target, out, "--format", "vecalign") == 0
  numbers = [line.rpartition(":")[0] for line in out.read_text().splitlines()]
  assert numbers[:5] == ["[0]:[0]", "[1]:[1]", "[2]:[2]", "[3]:[]", "[4]:[3]"]
  assert run(source, target, out, "--format", "tmx", "--languages", "de", "en") == 0
  assert out.read_text().count('<tuv xml:lang="en">') == 11


@pytest.mark.usefixtures("encoder")
def test_a_marker_separates_documents_that_can_be_empty(tmp_path, capsys):
  lines = [*TEXTS[:5], "<doc>", "<doc>", *TEXTS[5:]]
  other = [*TEXTS[:5], "<doc>", TEXTS[0], "<doc>", *TEXTS[5:]]
  source = line_files.write_lines(tmp_path / "x.txt.gz", lines)
  target = line_files.write_lines(tmp_path / "y.txt", translated(other)).as_posix()
  out = tmp_path / "out"
  assert run(source, target, out, "--marker", "<doc>") == 1
  assert "x.txt.gz has 3 documents and" in capsys.readouterr().err
  line_files.write_lines(
    tmp_path / "y.txt", [x.replace("<DOC>", "<doc>") for x in translated(other)]
  )
  assert run(source, target, out, "--marker", "<doc>", "--format", "vecalign") == 0
  assert capsys.readouterr().out == f"{out}: 12 pairs of 3 documents\n"
  # Line numbers are relative to the files, not to the documents.
  numbers = [line.rpartition(":")[0] for line in out.read_text().splitlines()]
  assert numbers[4:7] == ["[4]:[4]", "[]:[6]", "[7]:[8]"]


def test_folders_resume_after_the_last_document(encoder, tmp_path, capsys):
  for n in range(3):
    write(tmp_path, f"{n}.txt", TEXTS[n:])
  encoder.fail_at = 3
  assert run(tmp_path / "x", tmp_path / "y", tmp_path / "out") == 130
  calls = len(encoder.calls)
  assert run(tmp_path / "x", tmp_path / "y", tmp_path / "out") == 0
  assert len(encoder.calls) == calls + 4  # for two unfinished documents
  assert capsys.readouterr().out.endswith("out: 33 pairs of 3 documents\n")
  names = sorted(x.name for x in (tmp_path / "out").iterdir())
  assert names == ["0.txt.tsv", "1.txt.tsv", "2.txt.tsv", "job.json"]
  assert len((tmp_path / "out" / "2.txt.tsv").read_text().splitlines()) == 10
  assert run(tmp_path / "x", tmp_path / "y", tmp_path / "out") == 0  # finished
  assert len(encoder.calls) == calls + 4
  (tmp_path / "y" / "3.txt").write_text("")
  assert run(tmp_path / "x", tmp_path / "y", tmp_path / "out") == 1
  assert "3.txt must be in both " in capsys.readouterr().err


@pytest.mark.usefixtures("encoder")
def test_lists_contain_paths_of_documents(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write(tmp_path, "a/1.txt", TEXTS)
  write(tmp_path, "b/1.txt", TEXTS[3:])
  for side in "xy":
    line_files.write_lines(tmp_path / f"{side}.list", [f"{side}/a/1.txt", f"{side}/b/1.txt"])
  assert run("x.list", "y.list", "out", "--lists", "--format", "tmx") == 0
  written = [tmp_path / "out" / name for name in ("00001-1.txt.tmx", "00002-1.txt.tmx")]
  assert [path.read_text().count("<tu>") for path in written] == [12, 9]
  assert all(path.read_text().endswith("</body>\n</tmx>\n") for path in written)


@pytest.mark.usefixtures("encoder")
def test_paragraphs_are_split_into_sentences(tmp_path, capsys, monkeypatch):
  pytest.importorskip("sentencex")
  sides = tmp_path / "x", tmp_path / "y"
  line_files.write_lines(sides[0], ["Dr. Wu came. Mr. Li left.", "They met again."])
  line_files.write_lines(sides[1], ["Dr. Wu CAME.", "Mr. Li LEFT. They MET AGAIN."])
  assert run(*sides, tmp_path / "out", "--split", "eng", "deu") == 0
  rows = [line.split("\t")[1:] for line in (tmp_path / "out").read_text().splitlines()]
  assert [x.upper() for x, _ in rows] == [y.upper() for _, y in rows]
  assert [x for x, _ in rows] == ["Dr. Wu came.", "Mr. Li left.", "They met again."]
  assert run(*sides, tmp_path / "out", "--split", "en", "de", "--format", "vecalign") == 1
  assert "split the files first" in capsys.readouterr().err
  monkeypatch.setitem(sys.modules, "sentencex", None)
  assert run(*sides, tmp_path / "other", "--split", "en", "de") == 1
  assert "pip install 'vmsst[align]'" in capsys.readouterr().err
