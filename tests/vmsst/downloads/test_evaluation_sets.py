import dataclasses
import hashlib
import io
import json
import tarfile
import zipfile

import in_process
import memory_store
import pytest

from vmsst import errors
from vmsst.downloads import evaluation_sets, fetch, tables
from vmsst.evaluation import benchmarks
from vmsst.files import storage


def blob(content):
  return "git:" + hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def served(server, name, contents):
  """A set of the catalog with other files; `contents` is by the ends of their addresses."""
  whole = evaluation_sets.catalog()[name]
  items = []
  for item in whole.items:
    for end, content in contents.items():
      if item.file.url.endswith(end):
        url = server.put(f"/{name}/{item.path}", content)
        file = fetch.File(url, len(content), checksum=blob(content))
        items.append(dataclasses.replace(item, file=file))
  assert len(items) == len(contents)
  return dataclasses.replace(whole, items=tuple(items))


def tar(members, compression):
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode=f"w:{compression}") as archive:
    for name, content in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(content)
      archive.addfile(info, io.BytesIO(content))
  return out.getvalue()


def zipped(members):
  out = io.BytesIO()
  with zipfile.ZipFile(out, "w") as archive:
    for name, content in members.items():
      archive.writestr(name, content)
  return out.getvalue()


def files(root):
  return {
    path.relative_to(root).as_posix(): path.read_bytes()
    for path in root.rglob("*")
    if path.is_file() and not path.name.endswith(".json")
  }


def test_the_catalog_is_sound():
  known = evaluation_sets.catalog()
  for each in known.values():
    assert each.license
    assert bool(each.items) != bool(each.by_hand), each.name
    places = [item.to or item.path for item in each.items]
    assert len(set(places)) == len(places), each.name
    for item in each.items:
      assert item.file.url.startswith("https://")
      assert ".." not in item.to + item.path
      if item.file.checksum:
        kind, _, digits = item.file.checksum.partition(":")
        assert len(bytes.fromhex(digits)) == {"git": 20, "sha256": 32}[kind]
      # A file without its own path is unpacked or joined.
      assert bool(item.to) != bool(each.unpack or each.tables), each.name
    for place in (*(item.to for item in each.items), *each.joined):
      assert not place or place.startswith(each.folder + "/")
  assert len(known["tatoeba"].items) == 2 * 112
  assert len(known["sib200"].joined) == 205
  assert len(known["nusax"].joined) == 12


def test_every_benchmark_has_its_sets():
  folders = {each.folder for each in evaluation_sets.catalog().values()}
  for benchmark in benchmarks.BENCHMARKS.values():
    if benchmark.name == "mining":
      continue  # It accepts any corpora.
    for folder in benchmark.folders:
      top = folder.split("/")[0]
      assert any(each.split("/")[0] == top for each in folders), benchmark.name


def test_files_are_put_where_the_benchmark_reads_them(server, fetcher, tmp_path):
  whole = evaluation_sets.catalog()["tatoeba"]
  assert whole.items[0].to == "tatoeba/tatoeba.afr-eng.afr"
  chosen = served(
    server,
    "tatoeba",
    {"afr-eng.afr": b"een\ntwee\n", "afr-eng.eng": b"one\ntwo\n"},
  )
  lines = []
  for _ in range(2):
    evaluation_sets.download(fetcher, chosen, tmp_path, lines.append)
  assert len(server.requests) == 2
  assert lines[0].startswith("tatoeba: 2 files")
  assert lines[1] == "tatoeba: complete"
  (task,) = benchmarks.BENCHMARKS["tatoeba"].read(tmp_path)
  assert [side.texts for side in task.sides] == [["een", "twee"], ["one", "two"]]
  # A missing file is downloaded again.
  (tmp_path / "tatoeba" / "tatoeba.afr-eng.eng").unlink()
  evaluation_sets.download(fetcher, chosen, tmp_path)
  assert len(server.requests) == 3


def test_a_set_is_moved_to_a_store(server, fetcher, tmp_path, monkeypatch):
  memory_store.installed(monkeypatch)
  root, work = storage.path("gs://bucket/data"), tmp_path / "work"
  ends = {"en": b"en-1\tone\n", "gold": b"de-1\ten-1\n", "de": b"de-1\teins\n"}
  archive = zipped({f"bucc2018/de-en/de-en.training.{end}": x for end, x in ends.items()})
  chosen = served(server, "bucc2018", {"bucc2018-de-en.training-gold.tar.bz2": archive})
  (item,) = chosen.items
  chosen = dataclasses.replace(chosen, items=(dataclasses.replace(item, path="x.zip"),))
  upload = storage.upload
  uploaded, lines = [], []

  def fail_at_the_second(local, url):
    uploaded.append(url)
    if len(uploaded) == 2:
      raise errors.InputError("no connection")
    upload(local, url)

  monkeypatch.setattr(storage, "upload", fail_at_the_second)
  with pytest.raises(errors.InputError, match="no connection"):
    evaluation_sets.download(fetcher, chosen, root, work=work)
  assert storage.names(root) == {"bucc2018"}
  for _ in range(2):
    evaluation_sets.download(fetcher, chosen, root, lines.append, work=work)
  assert len(server.requests) == 1
  assert lines[-2:] == ["bucc2018: 3 files in gs://bucket/data/bucc2018", "bucc2018: complete"]
  for end, content in ends.items():
    assert (root / f"bucc2018/de-en.training.{end}").read_bytes() == content
  assert not list(work.iterdir())
  storage.remove(root / "bucc2018/de-en.training.de")
  evaluation_sets.download(fetcher, chosen, root, work=work)
  assert len(server.requests) == 2


def test_archives_are_unpacked(server, fetcher, tmp_path):
  ends = {"en": b"en-1\tone\n", "gold": b"de-1\ten-1\n", "de": b"de-1\teins\n"}
  archive = tar(
    {f"bucc2018/de-en/de-en.training.{end}": content for end, content in ends.items()}
    | {"bucc2018/de-en/._de-en.training.gold": b"\0", "bucc2018/README": b"read"},
    "bz2",
  )
  chosen = served(server, "bucc2018", {"bucc2018-de-en.training-gold.tar.bz2": archive})
  evaluation_sets.download(fetcher, chosen, tmp_path)
  assert files(tmp_path) == {
    f"bucc2018/de-en.training.{end}": content for end, content in ends.items()
  }
  assert len(benchmarks.BENCHMARKS["bucc"].read(tmp_path)) == 1


def test_archives_keep_folders(server, fetcher, tmp_path):
  members = {
    f"flores200_dataset/{split}/{code}.{split}": b"text\n"
    for split in ("dev", "devtest")
    for code in ("eng_Latn", "deu_Latn")
  }
  archive = tar({f"./{name}": content for name, content in members.items()}, "gz")
  chosen = served(server, "flores200", {"flores200_dataset.tar.gz": archive})
  evaluation_sets.download(fetcher, chosen, tmp_path)
  assert "flores200/devtest/eng_Latn.devtest" in files(tmp_path)
  assert benchmarks.BENCHMARKS["flores"].read(tmp_path)


def test_tables_are_joined(server, fetcher, tmp_path):
  text = '"a ""quoted""\r\n  text, of {}"'
  parts = {
    f"english/{part}.csv": f"id,text,label\r\n{number},{text.format(part)},{label}\r\n"
    for number, (part, label) in enumerate(
      (("train", "positive"), ("valid", "negative"), ("test", "positive"))
    )
  }
  chosen = served(server, "nusax", {end: text.encode() for end, text in parts.items()})
  evaluation_sets.download(fetcher, chosen, tmp_path)
  lines = (tmp_path / "nusax" / "english.tsv").read_text().splitlines()
  assert lines[0] == "split\tid\tlabel\ttext"
  assert lines[1] == 'train\t0\tpositive\ta "quoted" text, of train'
  assert [line.split("\t")[0] for line in lines[1:]] == ["train", "valid", "test"]
  assert set(files(tmp_path)) == {"nusax/english.tsv"}
  (task,) = benchmarks.BENCHMARKS["nusax"].read(tmp_path)
  assert len(task.sides[0].texts) == 3


@pytest.mark.parametrize("quoted", [True, False])
def test_quotes_depend_on_the_table(tmp_path, quoted):
  part, out = tmp_path / "a.tsv", tmp_path / "out.tsv"
  part.write_text('id\ttext\n1\t"""so"" she says"\n', encoding="utf-8")
  columns = {"text": "text", "split": tables.PART}
  tables.join({"dev": part}, columns, out, quoted=quoted, header=False)
  assert out.read_text() == ('"so" she says\tdev\n' if quoted else '"""so"" she says"\tdev\n')


@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", "no column id"),
    (b"id\ttext\n", "no rows"),
    (b"name\ttext\n1\tx\n", "no column id"),
    (b"id\ttext\n1\n", "row 2 has 1 fields, not 2"),
    (b"id\ttext\n1\t\xff\n", "UTF-8"),
  ],
)
def test_broken_tables(tmp_path, content, message, quoted):
  part, out = tmp_path / "a.tsv", tmp_path / "out.tsv"
  part.write_bytes(content)
  columns = {"split": tables.PART, "id": "id"}
  with pytest.raises(errors.InputError, match=message):
    tables.join({"dev": part}, columns, out, quoted=quoted, header=True)
  assert not out.exists()


def test_a_file_with_and_without_gz_is_refused(server, fetcher, tmp_path):
  chosen = served(server, "nq", {"NQ-open.dev.jsonl": b"{}\n"})
  twin = tmp_path / "nq" / "NQ-open.dev.jsonl.gz"
  twin.parent.mkdir()
  twin.write_bytes(b"mine")
  with pytest.raises(errors.InputError, match=r"NQ-open\.dev\.jsonl\.gz exists already"):
    evaluation_sets.download(fetcher, chosen, tmp_path)
  assert not server.requests


@pytest.mark.parametrize("note", [b"{", b"[]", b"{}", b'{"nq/NQ-open.dev.jsonl": 5}'])
def test_a_wrong_note_is_ignored(server, fetcher, tmp_path, note):
  chosen = served(server, "nq", {"NQ-open.dev.jsonl": b"{}\n"})
  (tmp_path / ".downloads").mkdir()
  (tmp_path / ".downloads" / "nq.json").write_bytes(note)
  evaluation_sets.download(fetcher, chosen, tmp_path)
  assert (tmp_path / "nq" / "NQ-open.dev.jsonl").read_bytes() == b"{}\n"
  assert json.loads((tmp_path / ".downloads" / "nq.json").read_text()) == {
    "nq/NQ-open.dev.jsonl": 3
  }


def test_sets_by_name():
  assert [each.name for each in evaluation_sets.choose(["nq", "tatoeba"])] == ["tatoeba", "nq"]
  everything = evaluation_sets.choose(["all"])
  assert len(everything) > 8
  assert not any(each.by_hand for each in everything)
  with pytest.raises(
    errors.InputError, match=r"mldoc must be downloaded by hand, into mldoc.*NIST"
  ):
    evaluation_sets.choose(["nq", "mldoc"])
  with pytest.raises(errors.InputError, match="no evaluation set nothing; choose from tatoeba, "):
    evaluation_sets.choose(["nothing"])


def test_the_command(server, monkeypatch, tmp_path, capsys):
  chosen = served(server, "nq", {"NQ-open.dev.jsonl": b"{}\n"})
  known = dict(evaluation_sets.catalog()) | {"nq": chosen}
  monkeypatch.setattr(evaluation_sets, "catalog", lambda: known)
  in_process.download_data("evaluation", "--list")
  everything = capsys.readouterr().out
  assert "tatoeba: Tatoeba v1" in everything
  assert "CC BY-SA 4.0" in everything
  assert "BY HAND" in everything
  in_process.download_data("evaluation", "mldoc", "--list")
  out = capsys.readouterr().out
  assert out.startswith("mldoc: MLDoc")
  assert "NIST" in out
  assert "tatoeba" not in out
  in_process.download_data("evaluation", "nq", "--output", str(tmp_path))
  out = capsys.readouterr().out
  assert "nq: license CC BY-SA 3.0" in out
  assert "nq: 1 files" in out
  for arguments, message in (
    (("evaluation", "nq"), "--output"),
    (("evaluation", "--output", "x"), "name the evaluation sets"),
    (("evaluation", "nothing", "--list"), "no evaluation set nothing"),
  ):
    with pytest.raises(errors.InputError, match=message):
      in_process.download_data(*arguments)
