"""Files that try to hang the reader, exhaust its memory or run code: one clear error each."""

import gzip
import io
import json
import lzma
import pickle
import re
import tarfile
import zipfile

import model_readers
import numpy as np
import opus_tree
import pytest
import trials

import vmsst
from vmsst.bitext import formats
from vmsst.checkpoints import tensors
from vmsst.checkpoints.importers import bert, mt5
from vmsst.downloads import archives, tables
from vmsst.exports import safetensors_folder
from vmsst.files import text_files
from vmsst.tasks.opus import recipes, releases

HUGE = 10**9


def refused(read, place, match=""):
  """Calls a reader that must refuse its file, within limits of time and memory."""
  outcome, message = trials.attempt(read, place)
  assert outcome == "refused"
  assert re.search(match, message)


def unpacked(place):
  archives.unpack(place / "a.tgz", place / "out", str, 12 * 10**9)


def tar_of(kind, size):
  stream, info = io.BytesIO(), tarfile.TarInfo("a.txt")
  info.type, info.size = kind, size
  with tarfile.open(fileobj=stream, mode="w") as archive:
    archive.addfile(info)
  return stream.getvalue()[:512]


def large_window():
  filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 3 << 29, "mode": lzma.MODE_FAST,
              "mf": lzma.MF_HC3, "nice_len": 4}]  # fmt: skip
  return lzma.compress(b"x", filters=filters)


@pytest.mark.parametrize(
  ("content", "read", "match"),
  [
    # 80 MB in 80 kB, one line; 280 MB of lines in 400 kB
    (lambda: gzip.compress(bytes(1 << 22)) * 20, text_files.read_lines, "longer than 64 MB"),
    (lambda: gzip.compress((b"a" * 4095 + b"\n") * (1 << 10)) * 70, text_files.read_lines,
     "compressed more than 500 times"),
    # headers of 3.4 GB in 3.4 MB; a chain of headers
    *((lambda kind=kind: gzip.compress(tar_of(kind, 3 << 30)) + 200 * gzip.compress(bytes(1 << 24)),
       unpacked, "header")
      for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE)),
    (lambda: gzip.compress(tar_of(tarfile.XHDTYPE, 0) * 5000), unpacked, "broken"),
    (large_window, lambda place: archives.unpack(place / "a.tar.xz", place / "out", str, HUGE),
     "broken"),
    (lambda: b"a,b\n" + b"x," * (1 << 27),
     lambda place: tables.join({"x": place / "x.csv"}, {"a": "a"}, place / "out" / "y", quoted=True,
                               header=True), "characters"),
  ],
)  # fmt: skip
def test_files_that_grow(content, read, match, tmp_path):
  for name in ("a.tgz", "a.tar.xz", "x.gz", "x.csv"):
    (tmp_path / name).write_bytes(content())
  is_lines = read is text_files.read_lines
  refused((lambda p: sum(map(len, read(str(p / "x.gz"))))) if is_lines else read, tmp_path, match)


def test_an_opus_archive_that_names_files_outside_and_expands_a_thousand_times(tmp_path):
  (tmp_path / "X" / "v1" / "moses").mkdir(parents=True)
  members = {"../../../X.de-en.de": b"a" * (1 << 26), "/X.de-en.en": b"b\n" * 3,
             "LICENSE": b"x" * (1 << 26)}  # fmt: skip
  (tmp_path / "X" / "v1" / "moses" / "de-en.txt.zip").write_bytes(opus_tree.zipped(members))

  def read(place):
    for release in releases.find(str(place)):
      assert all(isinstance(item, formats.Fault) for item in releases.read(release))
      assert len(release.license()) <= 1 << 16

  assert trials.attempt(read, tmp_path) == ("read", "")


@pytest.mark.parametrize(
  "text",
  [
    "a: &a [x, x]\nb: &b [*a, *a]\nname: *b\n",
    "name: !!python/object/apply:os.system ['touch ran']\n",
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


def edited(files, name, *path, **changes):
  record = json.loads(files[name])
  inner = record
  for key in path:
    inner = inner[key]
  inner |= changes
  return {**files, name: json.dumps(record).encode()}


@pytest.mark.parametrize("size", [HUGE, 1 << 70])
@pytest.mark.parametrize(
  ("read", "files", "key"),
  [
    (mt5.import_mt5, model_readers.mt5_files, "num_layers"),
    (bert.import_bert, model_readers.bert_files, "num_hidden_layers"),
  ],
)
def test_a_config_with_huge_sizes(read, files, key, size, tmp_path):
  trials.lay_out(edited(files(), "m/config.json", **{key: size}), tmp_path)
  refused(lambda place: read(place / "m", place / "out" / "x"), tmp_path)


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
  export = model_readers.made(safetensors_folder.export_safetensors, model_readers.run_files())
  trials.lay_out(edited(export, "m/encoder.json", "network", "config", **changes), tmp_path)
  refused(lambda place: vmsst.load(place / "m"), tmp_path, "encoder.json|layers")


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
  place_21 = torch.zeros((2, 1), dtype=torch.int64)
  code = pickle.dumps({"a": model_readers.Touch()})
  files = {
    "pickle": code,
    "pickle in a zip": zipped(data_pkl=code, version=b"3\n"),
    "compressed": zipped(zipfile.ZIP_DEFLATED, data_pkl=pickle.dumps({}), version=b"3\n"),
    "object": saved({"a": torch.nn.Linear(1, 1)}),
    "one number as terabytes": saved({"a": torch.zeros(1).expand(10**6, 10**6)}),
    "sparse": saved(
      {"a": torch.sparse_coo_tensor(place_21, [1.0], (10**6, 10**6), check_invariants=True)}
    ),
    "on no device": saved({"a": torch.empty(10**6, 10**6, device="meta")}),
    "a name of 2^22 parts": saved({nested: torch.zeros(1)}),
    "no names": saved({1: torch.zeros(1)}),
    "a tar": b"x" * 100 + bytes(1948),
    "numbers": saved({"a": 1.5}),
  }
  trials.lay_out(files, tmp_path)
  for name in files:
    read = lambda place, name=name: [  # noqa: E731
      tensor.read() for tensor in tensors.open_file(place / name).values()
    ]
    assert (name, trials.attempt(read, tmp_path)[0]) == (name, "refused")
  assert not (tmp_path / "ran").exists()


def test_nothing_in_the_folder_of_a_run_is_executed(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  trials.lay_out(model_readers.run_files(), tmp_path)
  assert {"config.gin", "model.py"} <= {path.name for path in (tmp_path / "m").iterdir()}
  assert np.isfinite(vmsst.load(tmp_path / "m").encode(["a"])).all()
  assert not (tmp_path / "ran").exists()
