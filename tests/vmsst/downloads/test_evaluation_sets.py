import dataclasses
import hashlib
import io
import tarfile

import commands
import memory_store
import pytest

from vmsst import errors, storage
from vmsst.downloads import evaluation_sets
from vmsst.evaluation import benchmarks


def blob(content):
  return "git:" + hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def tar(compression, members):
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode=f"w:{compression}") as out:
    for name, content in members:
      info = tarfile.TarInfo(name)
      info.size = len(content)
      out.addfile(info, io.BytesIO(content))
  return stream.getvalue()


def served(server, name, contents):
  """Returns a set of the catalog with files on the server. `contents` has them by URL ending."""
  whole = evaluation_sets.catalog()[name]
  items = []
  for item in whole.items:
    for end, content in contents.items():
      if item.url.endswith(end):
        url = server.put(f"/{name}/{item.path}", content)
        change = {"url": url, "size": len(content), "checksum": blob(content)}
        items.append(dataclasses.replace(item, **change))
  assert len(items) == len(contents)
  return dataclasses.replace(whole, items=tuple(items))


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
      assert item.url.startswith("https://")
      assert ".." not in item.to + item.path
      kind, _, digits = item.checksum.partition(":")
      assert len(bytes.fromhex(digits)) == {"git": 20, "sha256": 32, "": 0}[kind]
      # A file without a path below the root is an archive or a table to join.
      assert bool(item.to) != bool(each.unpack or each.tables), each.name
    for path in (*(item.to for item in each.items), *each.table_splits):
      assert not path or path.startswith(each.folder + "/")
  counts = [len(known[x].table_splits or known[x].items) for x in ("tatoeba", "sib200")]
  assert counts == [224, 205]
  folders = {each.folder.split("/")[0] for each in known.values()}
  for name, benchmark in benchmarks.BENCHMARKS.items():
    tops = {folder.split("/")[0] for folder in benchmark.files.folders}
    assert tops <= folders or name == "mining"  # Mining accepts any corpora.


def test_a_set_is_moved_to_a_store(server, fetcher, monkeypatch):
  memory_store.installed(monkeypatch)
  root = storage.path("gs://bucket/data")
  members = {f"bucc2018/de-en/de-en.training.{end}": content for end, content in BUCC.items()}
  members |= {"bucc2018/de-en/._de-en.training.gold": b"\0", "bucc2018/README": b"read"}
  archive = tar("bz2", members.items())
  chosen = served(server, "bucc2018", {"bucc2018-de-en.training-gold.tar.bz2": archive})
  upload, uploaded, lines = storage.upload, [], []

  def fail_at_the_second(local, url):
    uploaded.append(url)
    if len(uploaded) == 2:
      raise errors.InputError("no connection")
    upload(local, url)

  with monkeypatch.context() as patch:
    patch.setattr(storage, "upload", fail_at_the_second)
    with pytest.raises(errors.InputError, match="no connection"):
      evaluation_sets.download(fetcher, chosen, root)
  for _ in range(2):
    evaluation_sets.download(fetcher, chosen, root, lines.append)
  assert len(server.requests) == 2
  assert lines[-2:] == ["bucc2018: 3 files in gs://bucket/data/bucc2018", "bucc2018: complete"]
  for end, content in BUCC.items():
    assert (root / f"bucc2018/de-en.training.{end}").read_bytes() == content
  assert len(benchmarks.BENCHMARKS["bucc"].read(root)) == 1


BUCC = {"en": b"en-1\tone\n", "gold": b"de-1\ten-1\n", "de": b"de-1\teins\n"}


def test_folders_of_an_archive_are_kept(server, fetcher, tmp_path):
  root = tmp_path / "data"
  members = [
    (f"./flores200_dataset/{split}/{code}.{split}", b"text\n")
    for split in ("dev", "devtest")
    for code in ("eng_Latn", "deu_Latn")
  ]
  archive = tar("gz", members)
  chosen = served(server, "flores200", {"flores200_dataset.tar.gz": archive})
  evaluation_sets.download(fetcher, chosen, root)
  assert "flores200/devtest/eng_Latn.devtest" in files(root)
  assert benchmarks.BENCHMARKS["flores"].read(root)
  corrected = root / "flores200/devtest/eng_Latn.devtest"
  corrected.write_text("corrected\n")
  (root / "flores200/dev/deu_Latn.dev").unlink()
  with pytest.raises(errors.InputError, match=r"eng_Latn\.devtest differs from the published"):
    evaluation_sets.download(fetcher, chosen, root)
  assert corrected.read_text() == "corrected\n"
  assert not (root / "flores200/dev/deu_Latn.dev").exists()


def test_tables_are_joined(server, fetcher, tmp_path):
  text = '"a ""quoted""\r\n  text, of {}"'
  parts = {
    f"eng_Latn/{part}.tsv": f"index_id\ttext\tcategory\r\n1\t{text.format(part)}\tsports\r\n"
    for part in ("train", "dev", "test")
  }
  chosen = served(server, "sib200", {end: text.encode() for end, text in parts.items()})
  reported = []
  for _ in range(2):
    evaluation_sets.download(fetcher, chosen, tmp_path, reported.append)
  assert len(server.requests) == 3
  assert reported[-1] == "sib200: complete"
  assert (tmp_path / "sib200" / "eng_Latn.tsv").read_text().splitlines() == [
    "split\tindex_id\tcategory\ttext",
    *(f'{part}\t1\tsports\ta "quoted" text, of {part}' for part in ("train", "dev", "test")),
  ]
  assert set(files(tmp_path)) == {"sib200/eng_Latn.tsv"}
  (task,) = benchmarks.BENCHMARKS["sib200"].read(tmp_path)
  assert [len(x.texts) for x in task.text_sets] == [1, 1, 1]


def test_quotes_of_a_table_without_quoting_are_kept(server, fetcher, tmp_path):
  header = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\n"
  row = '2012\t{0}\t2.5\t"so" she says\t"\n'
  parts = {
    f"sts-{part}.tsv": f"{header}news\tf\t{row.format(part)}".encode() for part in ("dev", "test")
  }
  (path,) = evaluation_sets.download(fetcher, served(server, "korsts", parts), tmp_path)
  lines = path.read_text().splitlines(keepends=True)
  assert lines == [f"{part}\tf\t{row.format(part)}" for part in ("dev", "test")]


def test_the_command(server, monkeypatch, tmp_path, capsys):
  chosen = served(server, "nq", {"NQ-open.dev.jsonl": b"{}\n"})
  known = dict(evaluation_sets.catalog()) | {"nq": chosen}
  monkeypatch.setattr(evaluation_sets, "catalog", lambda: known)
  for arguments, texts in (
    (["--list"], ["tatoeba: Tatoeba v1", "CC BY-SA 4.0", "BY HAND"]),
    (["nq", "--output", str(tmp_path)], ["nq: license CC BY-SA 3.0", "nq: 1 files"]),
  ):
    commands.download_data("evaluation", *arguments)
    out = capsys.readouterr().out
    assert all(text in out for text in texts)
  with pytest.raises(errors.InputError, match=r"mldoc must be downloaded by hand.*NIST"):
    commands.download_data("evaluation", "nq", "mldoc", "--output", "x")
  assert not any(each.by_hand for each in evaluation_sets.choose(["all"]))
