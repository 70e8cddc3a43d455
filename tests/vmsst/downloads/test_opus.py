import json
import re

import commands
import memory_store
import pytest

from vmsst import errors, storage
from vmsst.downloads import opus


def record(server, pair, corpus="Europarl", version="v8", **changes):
  """Adds a file to the server, and returns its record in the format of the OPUS API."""
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
  """Adds releases and their list to the server, and replaces the address of the OPUS API."""
  monkeypatch.setattr(opus, "API", server.url("/opusapi/"))
  records = [record(server, pair) for pair in ("de-en", "en-fr", "en-zh_cn", "bg-cs")]
  records.append(record(server, "af-en", alignment_pairs=0, size=0))
  put_list(server, records)


@pytest.mark.usefixtures("listed")
def test_releases_are_listed_in_any_order_and_codes(server, fetcher):
  def pairs(keep, version=None):
    found = opus.releases(fetcher, [("Europarl", version)], keep)
    return [f"{x.source}-{x.target}" for x in found]

  assert pairs(opus.every_pair) == ["de-en", "en-fr", "en-zh_cn", "bg-cs"]
  query = server.requests[-1][0]
  assert query == "/opusapi/?corpus=Europarl&version=latest&preprocessing=moses"
  assert pairs(opus.pairs_among(["deu-eng", "zh-en"]), "v7") == ["de-en", "en-zh_cn"]
  assert "version=v7" in server.requests[-1][0]
  lines = [*opus.describe(opus.releases(fetcher, [("Europarl", None)], opus.every_pair))]
  assert re.match("Europarl .*1,961,119 pairs", lines[0])
  assert lines[4].startswith("4 files, 7,844,476 pairs")
  assert "license" in lines[5]


@pytest.mark.usefixtures("listed")
def test_releases_are_moved_to_a_store(server, fetcher, monkeypatch):
  store, root = memory_store.installed(monkeypatch), storage.path("gs://bucket/opus")
  found = opus.releases(fetcher, [("Europarl", None)], opus.pairs_among(["de-en"]))
  reported = []
  for _ in range(2):
    opus.download(fetcher, found, root, lambda _, new: reported.append(new))
  assert reported == [True, False]
  assert len(server.requests) == 2  # the list and the file
  url = "gs://bucket/opus/Europarl/v8/moses/de-en.txt.zip"
  assert store.cat_file(url) == server.pages["/OPUS-Europarl/v8/moses/de-en.txt.zip"].content
  store.pipe_file(url, b"x" * 5000)
  with pytest.raises(errors.InputError, match=rf"{url} has 5,000 bytes, not .*; remove it"):
    opus.download(fetcher, found, root)


@pytest.mark.parametrize(
  "changes",
  [
    {"corpus": "../../etc"}, {"version": ".."}, {"url": "https://example.org/passwd"},
    {"url": "http://example.org/de-en.txt.zip"},
  ],
)  # fmt: skip
@pytest.mark.usefixtures("listed")
def test_nothing_in_a_list_is_trusted(server, fetcher, changes):
  put_list(server, [record(server, "de-en", **changes)])
  with pytest.raises(errors.InputError, match=r"not a release in Moses format|not an HTTPS"):
    opus.releases(fetcher, [("Europarl", None)], opus.every_pair)


@pytest.mark.usefixtures("listed")
def test_unknown_names_are_refused(server, fetcher):
  put_list(server, [])
  with pytest.raises(errors.InputError, match="no version v99 of the corpus Europarl"):
    opus.releases(fetcher, [("Europarl", "v99")], opus.every_pair)
  with pytest.raises(errors.InputError, match="write it as de-en"):
    opus.pairs_among(["de_en"])


@pytest.mark.usefixtures("listed")
def test_the_command(server, tmp_path, capsys):
  chosen = ("--corpus", "Europarl=v8", "--languages", "de-en", "fr-en")
  commands.download_data("opus", *chosen, "--list")
  assert "2 files" in capsys.readouterr().out
  requests = len(server.requests)
  for count in (3, 4):  # First two files and the list, then only the list.
    commands.download_data("opus", *chosen, "--output", str(tmp_path))
    assert "Europarl/v8/moses/de-en.txt.zip" in capsys.readouterr().out
    assert len(server.requests) == requests + count
  for pair in ("de-en", "en-fr"):
    content = server.pages[f"/OPUS-Europarl/v8/moses/{pair}.txt.zip"].content
    assert (tmp_path / f"Europarl/v8/moses/{pair}.txt.zip").read_bytes() == content
  nothing = ("--corpus", "Europarl=v8", "--languages", "ja-ko", "--list")
  with pytest.raises(errors.InputError, match="none of these language pairs"):
    commands.download_data("opus", *nothing)
  yaml = tmp_path / "mine.yaml"
  yaml.write_text("name: mine\nlanguages: [de, en]\ncorpora: [{name: Europarl, version: v8}]\n")
  commands.download_data("opus", "--recipe", str(yaml), "--list")
  assert re.search(r"de-en .*\n1 files", capsys.readouterr().out)
