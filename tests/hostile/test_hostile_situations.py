"""Every subcommand that writes, in drawn situations: hostile inputs, outputs, disks and signals."""

import hashlib
import json

import fake_encoders
import model_readers
import pytest
import situations
import tiny_encoders
from situations import SENTENCES, Subcommand

import vmsst
from vmsst.inference import loading
from vmsst.networks import vmsst as networks
from vmsst.vectors import file_embedding, vector_store

LINES = "".join(f"{line}\n" for line in SENTENCES).encode()
PAIRS = "".join(f"{line[::-1]}\t{line}\n" for line in SENTENCES).encode()
OTHER = "".join(f"{line[::-1]}\n" for line in SENTENCES).encode()


def vectors_of(folder):
  return vector_store.open_vectors(folder)[:].tolist()


def files_of(folder):
  """Returns the content of all files that do not name the folder."""
  return {
    path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.rglob("*"))
    if path.is_file() and path.suffix != ".stablehlo"  # contains the lines of all callers
  }


def arrays_of(folder):
  """Returns the content of vectors and of compressed text."""
  paths = sorted({*folder.rglob("*.npy"), *folder.rglob("*.gz")})
  return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def params_of(folder):
  arrays = tiny_encoders.read_arrays(folder.resolve() / "checkpoint_0")
  return {name: array.tobytes() for name, array in arrays.items()}


def scores_of(folder):
  found = json.loads((folder / "results.json").read_text())["benchmarks"]
  return {name: each["results"] for name, each in found.items()}


def embedded(folder, content):
  """Writes the vectors of a text."""
  (folder / "text").write_bytes(content)
  file_embedding.embed_file(fake(), str(folder / "text"), folder / "vectors", name="encoder")
  return folder / "vectors"


def fake():
  encoder = fake_encoders.FakeEncoder(fake_encoders.random_vector)
  encoder.digest = "0" * 64
  return encoder


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
  """Returns the subcommands by name. Those on texts use a fake encoder."""
  folder = tmp_path_factory.mktemp("situations")
  network = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
  run = tiny_encoders.save_run(
    folder / "run", tiny_encoders.model_of(networks_encoder(network), network=network)
  )
  vectors = embedded(folder, LINES)
  two = {"a.txt": LINES, "b.txt": OTHER}
  run_alone = {"run": run}
  benchmark = {"data/tatoeba/tatoeba.deu-eng.deu": OTHER, "data/tatoeba/tatoeba.deu-eng.eng": LINES}
  for path, content in benchmark.items():
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
  results = folder / "results"
  vmsst.evaluate(fake(), vmsst.get_benchmarks(["tatoeba"]), folder / "data", results, name="x")
  return {
    "embed": Subcommand(
      ("embed", "encoder", "a.txt", "OUT"), {"a.txt": LINES}, ("a.txt",),
      folder=True, resumes=("",), result=vectors_of,
    ),
    "score": Subcommand(
      ("score", "encoder", "a.txt", "b.txt", "--output", "OUT"), two, ("a.txt", "b.txt"),
      resumes=(".part", ".part.json"), empty=False,
    ),
    "mine": Subcommand(
      ("mine", "a.txt", "b.txt", "OUT", "--encoder", "encoder"), two, ("a.txt", "b.txt"),
      stream=False, empty=False, blank=False,
      resumes=(".search.npz", ".source.vectors",
               ".target.vectors"),
    ),
    "search": Subcommand(
      ("search", "q.txt", "a.txt", "v", "--output", "OUT", "--encoder", "encoder"),
      {"q.txt": OTHER, "a.txt": LINES, "v": vectors}, ("q.txt",),
    ),
    "translate": Subcommand(
      ("translate", "run", "--to", "de", "--input", "a.txt", "--output", "OUT"),
      {"a.txt": LINES, **run_alone}, ("a.txt",),
    ),
    "vocab train": Subcommand(
      ("vocab", "train", "--input", "a.txt", "--output", "OUT", "--size", "24"),
      {"a.txt": LINES}, ("a.txt",), stream=False, empty=False, blank=False,
    ),
    **{
      f"export {kind}": Subcommand(
        ("export", kind, "run", "OUT"), run_alone, (), folder=True, result=files_of,
      )
      for kind in ("safetensors", "stablehlo", "sentence-transformers")
    },
    **{
      f"data {kind}": Subcommand(
        ("data", kind, "run", "OUT", "t/x.de-en.tsv"), {"t/x.de-en.tsv": PAIRS, **run_alone},
        ("t/x.de-en.tsv",), folder=True, resumes=("",), result=arrays_of, empty=False, blank=False,
      )
      for kind in ("embed", "mine-negatives")
    },
    "import mt5": Subcommand(
      ("import", "mt5", "m", "OUT"), model_readers.mt5_files(), (), folder=True, result=params_of,
    ),
    "eval": Subcommand(
      ("eval", "--encoder", "encoder", "--data", "data", "--out", "OUT", "--suite", "tatoeba"),
      benchmark, tuple(benchmark), folder=True, resumes=("",), empty=False, blank=False,
      result=scores_of,
    ),
    "report": Subcommand(
      ("report", "results", "--out", "OUT"), {"results": results}, (), folder=True,
      resumes=("",), result=files_of,
    ),
  }  # fmt: skip


def networks_encoder(network):
  from vmsst.networks import sentence_encoder

  return sentence_encoder.SentenceEncoder(network.config, network.latent_dim)


@pytest.fixture(autouse=True)
def encoders(monkeypatch):
  """Opens `encoder` as a fake one, and keeps the translator between commands."""
  kept = {}
  load = loading.load_translator

  def load_translator(path):
    if "translator" not in kept:
      kept["translator"] = load(path)
    return kept["translator"]

  monkeypatch.setattr(loading, "open_encoder", lambda path, dtype=None: (path, fake()))
  monkeypatch.setattr(loading, "load_translator", load_translator)


NAMES = ("embed", "score", "mine", "search", "translate", "vocab train", "export safetensors")
SLOW = {name: 170 for name in NAMES} | {
  "export safetensors": 40, "export stablehlo": 20, "export sentence-transformers": 20,
  "data embed": 40, "data mine-negatives": 40, "import mt5": 20, "eval": 60, "report": 20,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_command_in_a_few_situations(name, commands, tmp_path):
  count = 4 if name.startswith("export") else 16
  print(situations.check(commands[name], situations.draw(commands[name], count), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_command_in_many_situations(name, commands, tmp_path):
  drawn = situations.draw(commands[name], SLOW[name], seed=1)
  print(situations.check(commands[name], drawn, tmp_path))
