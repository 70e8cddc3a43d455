import json

import commands
import killed_commands
import memory_store
import pytest

from vmsst import errors, storage
from vmsst.downloads import opus


def record(server, pair, corpus="Europarl", version="v8", **changes):
  """A record in the format of the OPUS API, of a file on the server."""
  path = f"/OPUS-{corpus}/{version}/moses/{pair}.txt.zip"
  content = b"PK" + pair.encode() * 5000
  url = server.put(path, content)
  source, target = pair.split("-")
  return {
    "alignment_pairs": 1961119, "corpus": corpus, "preprocessing": "moses",
    "size": len(content) // 1024, "source": source, "target": target, "url": url,
    "version": version,
  } | changes  # fmt: skip


def put_list(server, records):
  return server.put("/opusapi/", json.dumps({"corpora": records}).encode())


@pytest.fixture
def listed(server, monkeypatch):
  """Releases on the server, and a list of them there instead of that of OPUS."""
  monkeypatch.setattr(opus, "API", server.url("/opusapi/"))
  records = [record(server, pair) for pair in ("de-en", "en-fr", "en-zh_cn", "bg-cs")]
  records.append(record(server, "af-en", alignment_pairs=0, size=0))
  put_list(server, records)


@pytest.mark.usefixtures("listed")
def test_releases_are_listed_in_any_order_and_codes(server, fetcher):
  def pairs(chosen):
    found = opus.releases(fetcher, [("Europarl", None)], chosen)
    return [f"{x.source}-{x.target}" for x in found]

  assert pairs(opus.anything) == ["de-en", "en-fr", "en-zh_cn", "bg-cs"]
  query = server.requests[-1][0]
  assert query == "/opusapi/?corpus=Europarl&version=latest&preprocessing=moses"
  for wanted, expected in (
    (["en-de"], ["de-en"]),
    (["deu-eng", "fr-en"], ["de-en", "en-fr"]),
    (["zh-en"], ["en-zh_cn"]),
    (["sw-en"], []),
  ):
    assert pairs(opus.pairs_among(wanted)) == expected
  found = opus.releases(fetcher, [("Europarl", "v7")], opus.anything)
  assert "version=v7" in server.requests[-1][0]
  lines = list(opus.describe(found))
  assert "Europarl" in lines[0]
  assert "1,961,119 pairs" in lines[0]
  assert lines[4].startswith("4 files, 7,844,476 pairs")
  assert "license" in lines[5]


@pytest.mark.usefixtures("listed")
def test_releases_are_moved_to_a_store(server, fetcher, tmp_path, monkeypatch):
  store, root = memory_store.installed(monkeypatch), storage.path("gs://bucket/opus")
  found = opus.releases(fetcher, [("Europarl", None)], opus.pairs_among(["de-en"]))
  reported, upload = [], storage.upload
  own = tmp_path / "work" / found[0].path
  own.parent.mkdir(parents=True)
  own.write_bytes(server.pages["/OPUS-Europarl/v8/moses/de-en.txt.zip"].content)

  def download():
    work = tmp_path / "work"
    opus.download(fetcher, found, root, lambda _, new: reported.append(new), work=work)

  monkeypatch.setattr(storage, "upload", None)  # A process that is killed before it uploads.
  with pytest.raises(TypeError):
    download()
  monkeypatch.setattr(storage, "upload", upload)
  requests = len(server.requests)
  assert requests == 2  # the list and the file
  for _ in range(2):
    download()
  assert reported == [True, False]
  assert len(server.requests) == requests  # The local file was kept.
  url = "gs://bucket/opus/Europarl/v8/moses/de-en.txt.zip"
  assert store.cat_file(url) == server.pages["/OPUS-Europarl/v8/moses/de-en.txt.zip"].content
  assert [path for path in (tmp_path / "work").rglob("*") if not path.is_dir()] == [own]
  assert not (tmp_path / "work" / ".vmsst").exists()
  store.pipe_file(url, b"x" * 5000)
  with pytest.raises(errors.InputError, match=rf"{url} has 5,000 bytes, not .*; remove it"):
    download()


@pytest.mark.parametrize(
  "changes",
  [
    {"corpus": "../../etc"}, {"corpus": None}, {"version": ".."}, {"source": "fr"},
    {"url": "https://example.org/passwd"}, {"url": "http://example.org/de-en.txt.zip"}, {"url": 5},
    {"size": "200"}, {"size": -1},
  ],
)  # fmt: skip
@pytest.mark.usefixtures("listed")
def test_nothing_in_a_list_is_trusted(server, fetcher, changes):
  put_list(server, [record(server, "de-en", **changes)])
  with pytest.raises(
    errors.InputError, match=r"not a release in Moses format|not an HTTPS|not a list in the format"
  ):
    opus.releases(fetcher, [("Europarl", None)], opus.anything)


@pytest.mark.usefixtures("listed")
def test_other_responses_and_names_are_refused(server, fetcher):
  for answer in (
    b"<html>", b"[]", b"{}", b'{"corpora": ["a"]}', b"[" * 9999,
  ):  # fmt: skip
    server.put("/opusapi/", answer)
    with pytest.raises(errors.InputError, match="not a list in the format of OPUS"):
      opus.releases(fetcher, [("Europarl", None)], opus.anything)
  put_list(server, [])
  with pytest.raises(errors.InputError, match="no corpus Europarl in version v99"):
    opus.releases(fetcher, [("Europarl", "v99")], opus.anything)
  with pytest.raises(errors.InputError, match="write it as de-en"):
    opus.pairs_among(["de_en"])


@pytest.mark.usefixtures("listed")
def test_the_command(server, tmp_path, capsys):
  chosen = ("--corpus", "Europarl=v8", "--languages", "de-en", "fr-en")
  commands.download_data("opus", *chosen, "--list")
  assert "2 files" in capsys.readouterr().out
  requests = len(server.requests)
  for count in (3, 4):  # Two files and the list; then the list alone.
    commands.download_data("opus", *chosen, "--output", str(tmp_path))
    assert "Europarl/v8/moses/de-en.txt.zip" in capsys.readouterr().out
    assert len(server.requests) == requests + count
  folder = tmp_path / "Europarl" / "v8" / "moses"
  assert sorted(path.name for path in folder.iterdir()) == ["de-en.txt.zip", "en-fr.txt.zip"]
  content = server.pages["/OPUS-Europarl/v8/moses/de-en.txt.zip"].content
  assert (folder / "de-en.txt.zip").read_bytes() == content
  none = ("--corpus", "Europarl", "--languages", "sw-en", "--list")
  for arguments, message in (
    (chosen, "--output"),
    (("--output", "x"), "--corpus or --recipe"),
    ((*chosen, "--output", "gs://bucket/x"), "is not local; give a local folder with --w"),
    (none, "none of these language pairs"),
  ):
    with pytest.raises(errors.InputError, match=message):
      commands.download_data("opus", *arguments)
  yaml = tmp_path / "mine.yaml"
  yaml.write_text("name: mine\nlanguages: [de, en]\ncorpora: [{name: Europarl, version: v8}]\n")
  commands.download_data("opus", "--recipe", str(yaml), "--list")
  out = capsys.readouterr().out
  assert "1 files" in out
  assert "de-en" in out


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
def test_killed_and_rerun(server, tmp_path):
  (tmp_path / "start").mkdir()
  argv = ["data", "download", "opus", "--corpus", "Europarl=v8", "--output", "out"]
  settings = {"vmsst.downloads.opus.API": server.url("/opusapi/")}
  modules = ["vmsst.downloads.opus", "vmsst.downloads.fetch"]
  moments = 8, [3000, 20000]
  whole, killed = killed_commands.run(modules, argv, tmp_path, moments=moments, settings=settings)
  expected = killed_commands.contents(whole)
  assert "out/Europarl/v8/moses/de-en.txt.zip" in expected
  print(f"{len(killed)} kills")
  for name, folder in killed.items():
    assert killed_commands.contents(folder) == expected, name
