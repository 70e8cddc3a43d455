"""Files that try to hang the reader, exhaust its memory or run code: one clear error each."""

import gzip
import io
import json
import pathlib
import pickle
import re
import zipfile

import model_readers
import numpy as np
import pytest
import trials

import vmsst
from vmsst.bitext import formats
from vmsst.checkpoints import tensors
from vmsst.files import text_files
from vmsst.tasks.opus import recipes, releases

HUGE = 10**9


@pytest.fixture(scope="module")
def large():
  pytest.importorskip("torch", reason="needs torch to make its files")
  return {reader.name: reader for reader in model_readers.large()}


def refused(read, place, match):
  """Calls a reader that must refuse its file, within limits of time and memory."""
  outcome, message = trials.attempt(trials.Reader("x", {}, read), place)
  assert outcome == "refused"
  assert re.search(match, message)


def lay_out(reader, place, **changed):
  for name, content in {**reader.files, **changed}.items():
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content)


def edited(content, **changes):
  return json.dumps({**json.loads(content), **changes}).encode()


def test_gzip_bombs(tmp_path):
  bomb = gzip.compress(bytes(1 << 22), mtime=0) * 20  # 80 MB in 80 kB, one line
  lines = gzip.compress((b"a" * 4095 + b"\n") * (1 << 10), mtime=0) * 70  # 280 MB in 400 kB
  (tmp_path / "x.de-en.tsv.gz").write_bytes(bomb)
  (tmp_path / "lines.gz").write_bytes(lines)
  refused(
    lambda p: list(text_files.read_lines(str(p / "x.de-en.tsv.gz"))), tmp_path, "longer than 64 MB"
  )
  read = lambda p: sum(1 for _ in text_files.read_lines(str(p / "lines.gz")))  # noqa: E731
  refused(read, tmp_path, "compressed more than 500 times")


def test_an_opus_archive_that_names_files_outside_and_expands_a_thousand_times(tmp_path):
  folder = tmp_path / "X" / "v1" / "moses"
  folder.mkdir(parents=True)
  with zipfile.ZipFile(folder / "de-en.txt.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("../../../X.de-en.de", b"a" * (1 << 26))
    archive.writestr("/X.de-en.en", b"b\n" * 3)
    archive.writestr("README", b"x" * (1 << 26))

  def read(place):
    for release in releases.find(str(place)):
      for item in releases.read(release):
        assert isinstance(item, formats.Fault)
      assert len(release.readme()) == 1 << 16

  assert trials.attempt(trials.Reader("x", {}, read), tmp_path) == ("read", "")


@pytest.mark.parametrize(
  "text",
  [
    "a: &a [x, x]\nb: &b [*a, *a]\nname: *b\n",
    "name: !!python/object/apply:os.system ['touch ran']\n",
    f"name: x\nunlisted: true\nseed: 0x{'f' * 9000}\n",
    f"name: x\nunlisted: true\nseed: -0x{'f' * 9000}\n",
    f"name: x\nunlisted: true\nvalidation: {{share: 0x{'f' * 9000}}}\n",
    f"name: 0x{'f' * 9000}\n",
    f"name: x\ntargets: {{0x{'f' * 9000}: 1}}\n",
    "name: x\nseed: 9999-99-99\n",
    f"name: {'[' * 1500}\n",
    "name: x\nlanguages: &a [*a]\n",
    "? [a, b]\n: c\n",
    "<<: {name: x}\n",
    "name: x\ncorpora: [{name: A}]\ncleaning: {max_ratio: .nan}\n",
    "name: x\ncorpora: [{name: A}]\ncleaning: {max_ratio: -.inf, no: 1}\n",
    "name: ../../x\nunlisted: true\n",
  ],
)
def test_recipes(text, tmp_path):
  (tmp_path / "x.yaml").write_text(text)
  refused(lambda place: recipes.load(place / "x.yaml"), tmp_path, r"x\.yaml")


@pytest.mark.parametrize("name", ["import mt5", "import bert", "import vmsst"])
@pytest.mark.parametrize("sizes", [HUGE, 1 << 70])
def test_a_config_with_billions_of_layers(name, sizes, large, tmp_path):
  reader = large[name]
  key = "num_hidden_layers" if "bert" in name else "num_layers"
  lay_out(
    reader, tmp_path, **{"m/config.json": edited(reader.files["m/config.json"], **{key: sizes})}
  )
  assert trials.attempt(reader, tmp_path)[0] == "refused"


@pytest.mark.parametrize(
  "changes",
  [
    {"num_encoder_layers": HUGE},
    {"num_encoder_layers": 1 << 70},
    {"num_encoder_layers": 1 << 70, "scan_layers": True},
    {"emb_dim": HUGE, "mlp_dim": HUGE},
    {"emb_dim": 1 << 70},
    {"relpos_buckets": 4 * HUGE, "relpos_max_distance": 1 << 70},
    {"vocab_size": 1 << 70},
  ],
)
def test_an_encoder_json_with_huge_sizes(changes, tmp_path):
  reader = next(x for x in model_readers.small() if x.name == "vmsst.load of an export")
  record = json.loads(reader.files["encoder.json"])
  record["network"]["config"] |= changes
  lay_out(reader, tmp_path, **{"encoder.json": json.dumps(record).encode()})
  refused(vmsst.load, tmp_path, "encoder.json|layers")


class Touch:
  """An object whose pickle writes a file when loaded."""

  def __reduce__(self):
    return pathlib.Path.touch, (pathlib.Path("ran"),)


def zipped(kind=zipfile.ZIP_STORED, **members):
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, "w", kind) as archive:
    for name, content in members.items():
      archive.writestr(f"x/{name.replace('_pkl', '.pkl')}", content)
  return stream.getvalue()


def test_files_of_torch_that_run_code_or_grow(tmp_path, monkeypatch):
  torch = pytest.importorskip("torch", reason="needs torch to make its files")
  monkeypatch.chdir(tmp_path)

  def saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()

  nested = ("x",)
  for _ in range(22):
    nested = (nested, nested)
  wide = torch.zeros(1).expand(10**6, 10**6)
  place_21 = torch.zeros((2, 1), dtype=torch.int64)
  sparse = torch.sparse_coo_tensor(place_21, [1.0], (10**6, 10**6), check_invariants=True)
  files = {
    "pickle": pickle.dumps({"a": Touch()}),
    "pickle in a zip": zipped(data_pkl=pickle.dumps({"a": Touch()}), version=b"3\n"),
    "compressed": zipped(zipfile.ZIP_DEFLATED, data_pkl=pickle.dumps({}), version=b"3\n"),
    "object": saved({"a": torch.nn.Linear(1, 1)}),
    "one number as terabytes": saved({"a": wide}),
    "sparse": saved({"a": sparse}),
    "on no device": saved({"a": torch.empty(10**6, 10**6, device="meta")}),
    "a name of 2^22 parts": saved({nested: torch.zeros(1)}),
    "no names": saved({1: torch.zeros(1)}),
    "a tar": b"x" * 100 + bytes(1948),
    "numbers": saved({"a": 1.5}),
  }
  for name, content in files.items():
    (tmp_path / name).write_bytes(content)
    read = lambda place, name=name: [  # noqa: E731
      tensor.read() for tensor in tensors.open_file(place / name).values()
    ]
    outcome, _ = trials.attempt(trials.Reader("x", {}, read), tmp_path)
    assert outcome == "refused", (name, outcome)
  assert not (tmp_path / "ran").exists()


def test_nothing_in_the_folder_of_a_run_is_executed(large, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  reader = large["vmsst.load of a run"]
  lay_out(reader, tmp_path)
  assert {"config.gin", "model.py"} <= set(reader.files)
  encoder = vmsst.load(tmp_path)
  assert np.isfinite(encoder.encode(["a"])).all()
  assert not (tmp_path / "ran").exists()
