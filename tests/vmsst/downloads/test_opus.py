import json

import in_process
import killed_commands
import memory_store
import pytest

from vmsst import errors
from vmsst.downloads import opus
from vmsst.files import storage


def record(server, pair, corpus="Europarl", version="v8", **changes):
  """A record in the format of the OPUS API, of a file on the server."""
  path = f"/OPUS-{corpus}/{version}/moses/{pair}.txt.zip"
  content = b"PK" + pair.encode() * 5000
  url = server.put(path, content)
  source, target = pair.split("-")
  return {
    "alignment_pairs": 1961119,
    "corpus": corpus,
    "documents": "",
    "id": 2796,
    "latest": "True",
    "preprocessing": "moses",
    "size": len(content) // 1024,
    "source": source,
    "source_tokens": 45625482,
    "target": target,
    "target_tokens": 48984323,
    "url": url,
    "version": version,
  } | changes


def put_list(server, records):
  return server.put("/opusapi/", json.dumps({"corpora": records}).encode())


@pytest.fixture
def api(server, fetcher):
  records = [record(server, pair) for pair in ("de-en", "en-fr", "en-zh_cn", "bg-cs")]
  records.append(record(server, "af-en", alignment_pairs=0, size=0))
  return opus.api(fetcher, put_list(server, records))


def pairs(found):
  return [f"{x.source}-{x.target}" for x in found]


def test_releases_are_listed(server, api):
  found = opus.releases(api, [("Europarl", None)], opus.anything)
  assert pairs(found) == ["de-en", "en-fr", "en-zh_cn", "bg-cs"]
  query = server.requests[-1][0]
  assert query == "/opusapi/?corpus=Europarl&version=latest&preprocessing=moses"
  opus.releases(api, [("Europarl", "v7")], opus.anything)
  assert "version=v7" in server.requests[-1][0]
  lines = list(opus.describe(found))
  assert "Europarl" in lines[0]
  assert "1,961,119 pairs" in lines[0]
  assert lines[4].startswith("4 files, 7,844,476 pairs")
  assert "license" in lines[5]


@pytest.mark.parametrize(
  ("wanted", "found"),
  [
    (["en-de"], ["de-en"]),
    (["deu-eng", "fr-en"], ["de-en", "en-fr"]),
    (["zh-en"], ["en-zh_cn"]),
    (["sw-en"], []),
  ],
)
def test_pairs_in_any_order_and_codes(api, wanted, found):
  assert pairs(opus.releases(api, [("Europarl", None)], opus.one_of(wanted))) == found


def test_releases_are_fetched_once_into_opus_s_layout(server, api, fetcher, tmp_path):
  found = opus.releases(api, [("Europarl", None)], opus.one_of(["de-en"]))
  reported = []
  for _ in range(2):
    opus.download(fetcher, found, tmp_path, lambda release, fetched: reported.append(fetched))
  path = tmp_path / "Europarl" / "v8" / "moses" / "de-en.txt.zip"
  assert path.read_bytes() == server.pages["/OPUS-Europarl/v8/moses/de-en.txt.zip"].content
  assert reported == [True, False]


def test_releases_are_moved_to_a_store(server, api, fetcher, tmp_path, monkeypatch):
  store, root = memory_store.installed(monkeypatch), storage.path("gs://bucket/opus")
  found = opus.releases(api, [("Europarl", None)], opus.one_of(["de-en"]))
  reported, upload = [], storage.upload

  def download():
    work = tmp_path / "work"
    opus.download(fetcher, found, root, lambda _, new: reported.append(new), work=work)

  monkeypatch.setattr(storage, "upload", None)  # A process that is killed before it uploads.
  with pytest.raises(TypeError):
    download()
  monkeypatch.setattr(storage, "upload", upload)
  requests = len(server.requests)
  for _ in range(2):
    download()
  assert reported == [True, False]
  assert len(server.requests) == requests  # The local file was kept.
  url = "gs://bucket/opus/Europarl/v8/moses/de-en.txt.zip"
  assert store.cat_file(url) == server.pages["/OPUS-Europarl/v8/moses/de-en.txt.zip"].content
  assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
  store.pipe_file(url, b"x" * 5000)
  with pytest.raises(errors.InputError, match=rf"{url} has 5,000 bytes, not .*; remove it"):
    download()


@pytest.mark.parametrize(
  "changes",
  [
    {"corpus": "../../etc"},
    {"corpus": "/etc"},
    {"corpus": None},
    {"version": ".."},
    {"version": ""},
    {"source": "../de"},
    {"source": "fr"},
    {"url": "https://example.org/passwd"},
    {"url": 5},
    {"size": "200"},
    {"size": -1},
    {"size": True},
  ],
)
def test_nothing_in_a_list_is_trusted(server, fetcher, changes):
  api = opus.api(fetcher, put_list(server, [record(server, "de-en", **changes)]))
  with pytest.raises(errors.InputError, match="not a release in Moses format"):
    opus.releases(api, [("Europarl", None)], opus.anything)


def test_a_list_of_files_without_https(server, fetcher):
  url = "http://example.org/de-en.txt.zip"
  api = opus.api(fetcher, put_list(server, [record(server, "de-en", url=url)]))
  with pytest.raises(errors.InputError, match="not an HTTPS"):
    opus.releases(api, [("Europarl", None)], opus.anything)


@pytest.mark.parametrize(
  "answer", [b"", b"<html>", b"[]", b"{}", b'{"corpora": 3}', b'{"corpora": ["a"]}', b"[" * 9999]
)
def test_a_response_that_is_not_a_list(server, fetcher, answer):
  api = opus.api(fetcher, server.put("/opusapi/", answer))
  with pytest.raises(errors.InputError, match="not a list in the format of OPUS"):
    opus.releases(api, [("Europarl", None)], opus.anything)


def test_unknown_corpora_and_wrong_names(server, fetcher):
  api = opus.api(fetcher, put_list(server, []))
  with pytest.raises(errors.InputError, match="no corpus Europarl in version v99"):
    opus.releases(api, [("Europarl", "v99")], opus.anything)
  with pytest.raises(errors.InputError, match="not a name of an OPUS corpus"):
    opus.releases(api, [("a'; drop table", None)], opus.anything)
  with pytest.raises(errors.InputError, match="write it as de-en"):
    opus.one_of(["de_en"])


def test_the_command(server, api, monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(opus, "API", server.url("/opusapi/"))
  chosen = ("--corpus", "Europarl=v8", "--languages", "de-en", "fr-en")
  in_process.download_data("opus", *chosen, "--list")
  assert "2 files" in capsys.readouterr().out
  in_process.download_data("opus", *chosen, "--output", str(tmp_path))
  assert "Europarl/v8/moses/de-en.txt.zip" in capsys.readouterr().out
  folder = tmp_path / "Europarl" / "v8" / "moses"
  assert sorted(path.name for path in folder.iterdir()) == ["de-en.txt.zip", "en-fr.txt.zip"]
  for arguments, message in (
    (("opus", *chosen), "--output"),
    (("opus", "--output", "x"), "--corpus or --recipe"),
    (("opus", *chosen, "--output", "gs://bucket/x"), "is not local; give a local folder with --w"),
    (("opus", *chosen, "--output", "x", "--work", "y"), "--work does not apply to the local fo"),
    (
      ("opus", "--corpus", "Europarl", "--languages", "sw-en", "--list"),
      "none of these language pairs",
    ),
  ):
    with pytest.raises(errors.InputError, match=message):
      in_process.download_data(*arguments)


def test_a_recipe_chooses(server, fetcher, monkeypatch, tmp_path, capsys):
  yaml = tmp_path / "mine.yaml"
  yaml.write_text(
    "name: mine\ndescription: x\nlanguages: [de, en]\ncorpora:\n  - {name: Europarl, version: v8}\n"
  )
  put_list(server, [record(server, pair) for pair in ("de-en", "en-fr", "de-xyz")])
  monkeypatch.setattr(opus, "API", server.url("/opusapi/"))
  in_process.download_data("opus", "--recipe", str(yaml), "--list")
  out = capsys.readouterr().out
  assert "1 files" in out
  assert "de-en" in out


@pytest.mark.slow
def test_killed_and_rerun(server, api, tmp_path):
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
