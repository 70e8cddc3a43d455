import hashlib
import pathlib

import memory_store
import msgspec
import opus_tree
import pytest
import tensorflow_datasets as tfds

from vmsst import cli, errors
from vmsst.jobs import engines
from vmsst.opus import builder, recipes, stages

pytestmark = pytest.mark.filterwarnings(  # of TFDS, about protobuf
  "ignore:label.. is deprecated:DeprecationWarning"
)


def _texts(language, count):
  return [(f"{language} number {n} is here", f"Sentence {n} stands here.") for n in range(count)]


@pytest.fixture
def tree(tmp_path, monkeypatch):
  """Releases and evaluation sets, and a recipe."""
  monkeypatch.setattr(builder, "BUCKET_BYTES", 1000)  # So that there are several.
  release_files = [
    opus_tree.Part("Europarl", "v8", ("de", "en"), [*_texts("Satz", 40), ("Wer da", "WHO IS it")]),
    opus_tree.Part("Tanzil", "v1", ("en", "tr"), [row[::-1] for row in _texts("cümle", 20)], "tmx"),
  ]
  opus_tree.write_build(tmp_path, release_files, "Wer ist es?", "Who is it?")
  (tmp_path / "opus/<b>.de-en.tmx").touch()
  return tmp_path


def _build(tree, recipe=None, output="tfds", **options):
  options = {"engine": engines.Local(), **options}
  folders = [str(tree / name) for name in ("opus", "evaluation", output)]
  return pathlib.Path(builder.build(recipe or str(tree / "mine.yaml"), *folders, **options))


def _hashes(folder):
  files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
  assert files
  return files


def test_tfds_reads_what_was_built(tree):
  folder = _build(tree)
  data = str(tree / "tfds")
  assert str(folder) == f"{data}/opus_bitext/mine/1.0.0"
  splits = tfds.load("opus_bitext/mine", data_dir=data)
  assert {name: len(dataset) for name, dataset in splits.items()} == {
    "train_deu_eng": 32,
    "validation_deu_eng": 8,
    "train_eng_tur": 16,
    "validation_eng_tur": 4,
  }
  assert len([*folder.glob("*train_deu_eng*")]) > 2
  rows = [
    {name: text.decode() for name, text in row.items()}
    for name in ("train_eng_tur", "validation_eng_tur")
    for row in tfds.as_numpy(splits[name])
  ]
  assert sorted((row["target"], row["source"]) for row in rows) == sorted(_texts("cümle", 20))
  facts = {"corpus": "Tanzil", "source_language": "eng", "target_language": "tur"}
  assert all(row.items() >= facts.items() for row in rows)
  assert len(tfds.load("opus_bitext/mine", split="train_deu_eng[:25%]", data_dir=data)) == 8
  card = (folder / "DATA_CARD.md").read_text()
  assert str(tree) not in card
  for line in (
    "| train_eng_tur | 2 | 16 |",
    "| Europarl | v8 | deu_eng | Europarl/v8/moses/de-en.txt.zip |",
    "| deu_eng | Europarl | 41 | 1 | 40 | 32 | 8 |",
    "| all |  | 61 | 1 | 60 | 48 | 12 |",
    "| tatoeba | 2 | 1 |",
    "- &lt;b>.de-en.tmx: neither the folders nor the file name specify the corpus and its version",
    '      "name": "mine",',
  ):
    assert f"\n{line}" in card
  assert not (folder / ".vmsst").exists()


def test_scripts_that_count_as_one_language_share_its_caps_and_keep_their_sides(tree):
  rows = [(f"房子很大 {n}", f"House {n} is a very large one.") for n in range(30)]
  for code, code_rows in (("zh_CN", rows[:10]), ("zh_TW", rows[10:])):
    swapped = [row[::-1] for row in code_rows]
    opus_tree.write(tree / "opus", [opus_tree.Part("Ted", "v1", ("en", code), swapped)])
  recipe = "name: mine\nlanguages: [en, zh]\nscripts_as_one: [zh]\n"
  (tree / "mine.yaml").write_text(f"{recipe}corpora: [{{name: Ted, cap: 12}}]\n")
  _build(tree)
  splits = tfds.load("opus_bitext/mine", data_dir=str(tree / "tfds"))
  texts = tfds.as_numpy(splits.pop("train_cmn_eng"))
  pairs = {(row["source"].decode(), row["target"].decode()) for row in texts}
  assert (len(pairs), splits) == (12, {})
  assert pairs <= {*rows}


def test_the_data_depend_on_the_seed_but_not_on_workers_or_the_folder(tree, monkeypatch):
  one = _hashes(_build(tree))
  assert _hashes(_build(tree, output="two", engine=engines.Local(2))) == one
  dataset = _build(tree, output="three", work=str(tree / "work"))
  assert _hashes(dataset) | {"job.json": one["job.json"]} == one
  assert not [*(tree / "work").rglob("*.tfrecord*")]
  load = recipes.load
  monkeypatch.setattr(recipes, "load", lambda path: msgspec.structs.replace(load(path), seed=1))
  other_hashes = _hashes(_build(tree, output="four"))
  assert not {name for name in one if "tfrecord" in name and one[name] == other_hashes.get(name)}


def test_the_command_builds_once_and_refuses_other_inputs(tree, capsys):
  arguments = ["data", "build", f"--recipe={tree}/mine.yaml", f"--input={tree}/opus"]
  arguments += [f"--held-out={tree}/evaluation", f"--output={tree}/tfds", "--workers=1"]
  for _ in range(2):
    assert cli.main(arguments) == 0
    assert "1.0.0: see DATA_CARD.md for a description" in capsys.readouterr().out
  sentences = tree / "evaluation/tatoeba/tatoeba.deu-eng.deu"
  (archive,) = (tree / "opus").rglob("*.zip")
  for path, old, new, name in (
    (tree / "mine.yaml", b"0.2", b"0.1", "recipe"),
    (sentences, b"Wer ist es?", b"Satz number 1 is here", "evaluation sets"),
    (archive, b"README", b"readme", "releases"),  # of the same size
  ):
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new))
    assert cli.main(arguments) == 1
    assert f"1.0.0 belongs to another job: {name} is" in capsys.readouterr().err
    path.write_bytes(content)
  assert cli.main(arguments) == 0


@pytest.mark.parametrize("stage", ["clean", "merge", "write"])
def test_an_interrupted_build_repeats_only_unfinished_parts(tree, monkeypatch, stage):
  written, failing = [], []

  def watched(name, function):
    def call(path, *arguments):
      if name in failing and name in written:
        raise OSError(28, "No space left on device", "x")
      written.append(name)
      return function(path, *arguments)

    return call

  for name in ("clean", "merge", "write"):
    monkeypatch.setattr(stages, name, watched(name, getattr(stages, name)))
  expected, calls = _hashes(_build(tree, output="undisturbed")), sorted(written)
  written.clear()
  failing.append(stage)
  with pytest.raises(errors.InputError, match=rf"^{stage} of .*No space left.*to resume"):
    _build(tree)
  assert not list((tree / "tfds").rglob("dataset_info.json"))
  failing.clear()
  assert _hashes(_build(tree)) == expected
  assert sorted(written) == calls


def test_nothing_to_build_is_an_error_that_says_why(tree):
  (tree / "mine.yaml").write_text("name: mine\ncorpora: [{name: UNPC}]\n")
  with pytest.raises(errors.InputError, match=r"uses none of the 2 releases .*Europarl\.v8"):
    _build(tree)
  (tree / "mine.yaml").write_text(
    "name: mine\ncorpora: [{name: Tanzil}]\ncleaning: {max_characters: 3}\n"
  )
  with pytest.raises(
    errors.InputError, match=r"no text pair is left after cleaning: .*'read': 20, 'too_long'"
  ):
    _build(tree)


def test_a_build_in_a_store_is_the_build_on_this_machine(tree, monkeypatch):
  expected = _build(tree)
  store = memory_store.installed(monkeypatch)
  for name in ("opus", "evaluation"):
    store.put(str(tree / name), f"gs://data/{name}", recursive=True)
  folders = (f"gs://data/{name}" for name in ("opus", "evaluation", "tfds"))
  arguments = (str(tree / "mine.yaml"), *folders)
  with pytest.raises(errors.InputError, match="in an object store; set --work"):
    builder.build(*arguments)

  def build():
    return builder.build(*arguments, work=str(tree / "work"), engine=engines.Local())

  put_file, uploaded = memory_store.MemoryStore.put_file, []

  def lose_connection(self, path, url, **options):
    if url.endswith("dataset_info.json"):
      raise ConnectionResetError("lost")
    uploaded.append(url)
    return put_file(self, path, url, **options)

  with monkeypatch.context() as patch:  # All other files come first.
    patch.setattr(memory_store.MemoryStore, "put_file", lose_connection)
    with pytest.raises(errors.InputError, match="lost"):
      build()
  assert uploaded
  assert build() == "gs://data/tfds/opus_bitext/mine/1.0.0"
  (tree / "copy").mkdir()
  store.get("gs://data/tfds/opus_bitext/mine/1.0.0/*", str(tree / "copy"))
  local, copy = _hashes(expected), _hashes(tree / "copy")
  assert local.pop("job.json") != copy.pop("job.json")  # It names the folders of the inputs.
  assert local == copy
  assert not list((tree / "work").rglob("*.tfrecord*"))
