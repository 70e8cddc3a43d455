import hashlib
import os
import pathlib

import memory_store
import opus_tree
import pytest
import tensorflow_datasets as tfds
from fsspec.implementations import memory

from vmsst import cli, errors
from vmsst.data import dataset_shards
from vmsst.jobs import engines, work_folders
from vmsst.opus import builder, pipeline, releases

pytestmark = pytest.mark.filterwarnings(  # of TFDS, about protobuf
  "ignore:label.. is deprecated:DeprecationWarning"
)


def _texts(language, count):
  return [(f"{language} number {n} is here", f"Sentence {n} stands here.") for n in range(count)]


@pytest.fixture
def tree(tmp_path):
  """Releases and evaluation sets, and a recipe."""
  parts = [
    opus_tree.Part("Europarl", "v8", ("de", "en"), [*_texts("Satz", 40), ("Wer da", "WHO IS it")]),
    opus_tree.Part("Tanzil", "v1", ("en", "tr"), [row[::-1] for row in _texts("cümle", 20)], "tmx"),
  ]
  opus_tree.write(tmp_path / "opus", parts)
  folder = tmp_path / "evaluation" / "tatoeba"
  folder.mkdir(parents=True)
  for code, text in (("deu", "Wer ist es?"), ("eng", "Who is it?")):
    (folder / f"tatoeba.deu-eng.{code}").write_text(f"{text}\n")
  (tmp_path / "mine.yaml").write_text(opus_tree.RECIPE)
  return tmp_path


def _build(tree, recipe=None, output="tfds", **options):
  options = {"engine": engines.Local(), **options}
  folders = [str(tree / name) for name in ("opus", "evaluation", output)]
  return builder.build(recipe or str(tree / "mine.yaml"), *folders, **options)


def _hash(folder):
  files = {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
    for path in folder.glob("opus_bitext-*")
  }
  assert files
  return files


def test_tfds_reads_what_was_built(tree):
  folder = _build(tree)
  data = str(tree / "tfds")
  assert folder == f"{data}/opus_bitext/mine/1.0.0"
  found = tfds.load("opus_bitext/mine", data_dir=data)
  assert {name: len(dataset) for name, dataset in found.items()} == {
    "train_deu_eng": 32,
    "validation_deu_eng": 8,
    "train_eng_tur": 16,
    "validation_eng_tur": 4,
  }
  rows = [
    {name: text.decode() for name, text in row.items()}
    for name in ("train_eng_tur", "validation_eng_tur")
    for row in tfds.as_numpy(found[name])
  ]
  assert sorted((row["target"], row["source"]) for row in rows) == sorted(_texts("cümle", 20))
  assert set(rows[0]) == set(dataset_shards.FEATURES)
  for row in rows:
    assert (row["source_language"], row["target_language"]) == ("eng", "tur")
    assert row["corpus"] == "Tanzil"
  # Slices, and the file system alone.
  assert len(tfds.load("opus_bitext/mine", split="train_deu_eng[:25%]", data_dir=data)) == 8
  assert tfds.builder_from_directory(folder).info.splits.total_num_examples == 60
  info = tfds.builder("opus_bitext/mine", data_dir=data).info
  assert set(info.metadata) >= {"recipe", "configuration", "content"}
  # What was made on the way is gone, and the card lies there.
  assert not (tree / "tfds" / "opus_bitext_work").exists()
  text = (tree / "tfds/opus_bitext/mine/1.0.0/DATA_CARD.md").read_text()
  assert "| tatoeba | 2 | 1 |" in text
  assert info.metadata["content"] in text


def test_scripts_that_count_as_one_language_share_its_caps_and_keep_their_sides(tree):
  rows = [(f"房子很大 {n}", f"House {n} is a very large one.") for n in range(30)]
  swapped = [row[::-1] for row in rows]
  parts = [
    opus_tree.Part("Ted", "v1", ("en", "zh_CN"), swapped[:10], "tmx"),
    opus_tree.Part("Ted", "v1", ("en", "zh_TW"), swapped[10:]),
  ]
  opus_tree.write(tree / "opus", parts)
  for caps, count in (("", 30), (", cap: 12", 12)):
    recipe = tree / f"chinese_{count}.yaml"
    recipe.write_text(
      f"name: chinese_{count}\ncorpora: [{{name: Ted{caps}}}]\nlanguages: [en, zh]\n"
      "scripts_as_one: [zh]\n"
    )
    _build(tree, str(recipe))
    found = tfds.load(f"opus_bitext/chinese_{count}", data_dir=str(tree / "tfds"))
    assert [*found] == ["train_cmn_eng"]
    texts = tfds.as_numpy(found["train_cmn_eng"])
    pairs = {(row["source"].decode(), row["target"].decode()) for row in texts}
    assert len(pairs) == count
    assert pairs <= {*rows}


def test_the_command_builds_once_and_refuses_another_recipe(tree, capsys):
  arguments = ["data", "build", f"--recipe={tree}/mine.yaml", f"--input={tree}/opus"]
  arguments += [f"--held-out={tree}/evaluation", f"--output={tree}/tfds", "--workers=1"]
  assert cli.main(arguments) == 0
  assert "1.0.0: described in DATA_CARD.md" in capsys.readouterr().out
  (tree / "opus").rename(tree / "elsewhere")
  assert cli.main(arguments) == 0
  (tree / "mine.yaml").write_text(opus_tree.RECIPE.replace("0.2", "0.1"))
  assert cli.main(arguments) == 1
  assert "was built by another recipe of that name" in capsys.readouterr().err
  arguments[5] = f"--output={tree}/more"
  assert cli.main(arguments) == 1
  assert f"{tree}/opus" in capsys.readouterr().err


def test_a_dataset_of_other_inputs_is_refused(tree, monkeypatch):
  memory_store.installed(monkeypatch)
  monkeypatch.setattr(work_folders, "upload", None)  # A process that is killed before it uploads.
  arguments = [str(tree / name) for name in ("mine.yaml", "opus", "evaluation")]

  def build_locally():
    return builder.build(*arguments, str(tree / "tfds"), engine=engines.Local())

  def build_in_store():
    work = str(tree / "work")
    builder.build(*arguments, "gs://data/tfds", work=work, engine=engines.Local())

  build_locally()
  with pytest.raises(TypeError):
    build_in_store()
  sentences = tree / "evaluation/tatoeba/tatoeba.deu-eng.deu"
  sentences.write_text("Satz number 1 is here\n")
  for build in (build_locally, build_in_store):
    with pytest.raises(errors.InputError, match=r"^the evaluation sets in \S+ are not those that "):
      build()
  sentences.write_text("Wer ist es?\n")
  build_locally()
  (archive,) = (tree / "opus").rglob("*.zip")
  archive.write_bytes(archive.read_bytes().replace(b"README", b"readme"))  # of the same size
  for build in (build_locally, build_in_store):
    with pytest.raises(errors.InputError, match=r"^the releases in \S+ are not those that "):
      build()


def test_a_damaged_dataset_is_refused(tree):
  folder = pathlib.Path(_build(tree))
  train, validation = (folder / name for name in sorted(_hash(folder)) if "deu_eng" in name)
  contents = train.read_bytes(), validation.read_bytes()
  for damaged in (
    (b"", contents[1]),
    (contents[0][:-1] + b"?", contents[1]),
    contents[::-1],
  ):
    for path, content in zip((train, validation), damaged, strict=True):
      path.write_bytes(content)
    with pytest.raises(errors.InputError, match=r"mine/1.0.0 is damaged, .*; remove this dataset"):
      _build(tree)
  train.unlink()
  with pytest.raises(errors.InputError, match=r"mine/1.0.0 is damaged"):
    _build(tree)
  for path, content in zip((train, validation), contents, strict=True):
    path.write_bytes(content)
  assert _build(tree) == str(folder)


def test_a_release_is_known_by_content_not_by_size_and_time(tree, monkeypatch):
  part = opus_tree.Part("Books", "v1", ("de", "en"), _texts("Buch", 9), "tsv")
  path = tree / "opus" / part.path.removesuffix(".gz")
  path.parent.mkdir(parents=True)

  def build(noun):
    path.write_bytes(opus_tree.content(part).replace(b"Buch", noun))
    os.utime(path, (1e9, 1e9))
    (tree / f"{noun.decode()}.yaml").write_text(opus_tree.RECIPE.replace("mine", noun.decode()))
    folder = _build(tree, str(tree / f"{noun.decode()}.yaml"), work=str(tree / "work"))
    return b"".join(shard.read_bytes() for shard in pathlib.Path(folder).glob("*deu_eng*"))

  assert b"Buch" in build(b"Buch")
  shards = build(b"Werk")
  assert b"Werk" in shards
  assert b"Buch" not in shards
  read = releases.read

  def changing(release):
    yield from read(release)
    if release.corpus == "Books":
      path.write_bytes(opus_tree.content(part))

  monkeypatch.setattr(releases, "read", changing)
  with pytest.raises(
    errors.InputError, match=r"clean of .*de-en\.tsv: it has changed while it was"
  ):
    build(b"Heft")


def test_a_build_that_fails_leaves_no_dataset_and_resumes(tree, monkeypatch):
  def fail(*arguments):
    raise OSError(28, "No space left on device", "x")

  with monkeypatch.context() as patch:
    patch.setattr(dataset_shards, "write", fail)
    with pytest.raises(errors.InputError, match=r"write of .*No space left"):
      _build(tree)
  assert not list((tree / "tfds").rglob("1.0.0*"))
  cleaned = tree / "tfds/opus_bitext_work/mine/.vmsst/clean/Tanzil.v1.eng_tur.parquet"
  assert cleaned.exists()
  with monkeypatch.context() as patch:
    patch.setattr(pipeline.stages.Clean, "make", fail)  # It is done and need not be done again.
    _build(tree)
  _build(tree, output="other")
  folders = [tree / name / "opus_bitext/mine/1.0.0" for name in ("tfds", "other")]
  assert _hash(folders[0]) == _hash(folders[1])
  assert (folders[0] / "DATA_CARD.md").read_text() == (folders[1] / "DATA_CARD.md").read_text()


def test_a_build_in_a_store_is_that_on_this_machine(tree, monkeypatch):
  expected = pathlib.Path(_build(tree))
  store = memory_store.installed(monkeypatch)
  for name in ("opus", "evaluation"):
    store.put(str(tree / name), f"gs://data/{name}", recursive=True)
  folders = (f"gs://data/{name}" for name in ("opus", "evaluation", "tfds"))
  arguments = (str(tree / "mine.yaml"), *folders)
  with pytest.raises(errors.InputError, match="in an object store: give --work"):
    builder.build(*arguments)

  def build():
    return builder.build(*arguments, work=str(tree / "work"), engine=engines.Local())

  url = build()
  assert url == "gs://data/tfds/opus_bitext/mine/1.0.0"
  (tree / "copy").mkdir()
  store.get(f"{url}/*", str(tree / "copy"))
  assert {path.name for path in (tree / "copy").iterdir()} == {
    path.name for path in expected.iterdir()
  }
  assert _hash(tree / "copy") == _hash(expected)
  assert (tree / "copy/DATA_CARD.md").read_text() == (expected / "DATA_CARD.md").read_text()
  assert not list((tree / "work").rglob("*upload*"))
  monkeypatch.setattr(memory_store.MemoryStore, "put_file", None)  # Nothing is uploaded again.
  assert build() == url


def test_a_lost_connection_is_not_taken_for_the_end_of_a_file(tree, monkeypatch):
  store = memory_store.installed(monkeypatch)
  store.put(str(tree / "opus"), "gs://data/opus", recursive=True)
  (release, _) = releases.scan("gs://data/opus")[0]
  assert len(list(releases.read(release))) == 41

  def readinto(self, buffer):
    raise ConnectionResetError("lost")

  monkeypatch.setattr(memory.MemoryFile, "readinto", readinto)
  with pytest.raises(errors.InputError, match="cannot be read: ConnectionResetError: lost"):
    list(releases.read(release))
