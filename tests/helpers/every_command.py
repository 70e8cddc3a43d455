"""The subcommands of `vmsst` that write an output, and small inputs of all of them."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import model_readers
import tiny_encoders
import trials

import vmsst
from vmsst.encoder import file_embedding, loading
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks

WORK = "the work folder"
"""Stands for `.OUT.vmsst` among the places that an interrupted command leaves."""


@dataclasses.dataclass(frozen=True)
class Subcommand:
  """A subcommand.

  Attributes:
    argv: Its arguments; OUT stands for the output.
    folder: Whether the output is a folder.
    stream: Whether the output may be a device or pipe.
    resumes: What an interrupted command may leave, as suffixes of the output's name.
    result: Reads the output.
  """

  argv: str
  folder: bool = False
  stream: bool = True
  resumes: tuple[str, ...] = ()
  result: Callable[[pathlib.Path], Any] = pathlib.Path.read_bytes


def _files(*ends):
  return lambda folder: {k: x for k, x in trials.files_below(folder).items() if k.endswith(ends)}


def _params(folder):
  arrays = tiny_encoders.read_arrays(folder.resolve() / "checkpoint_0")
  return {name: array.tobytes() for name, array in arrays.items()}


def _scores(folder):
  found = json.loads((folder / "results.json").read_text())["benchmarks"]
  return {name: each["results"] for name, each in found.items()}


_At_once = functools.partial(Subcommand, folder=True)
_Resumed = functools.partial(Subcommand, folder=True, resumes=("",))
COMMANDS = {
  "embed": _Resumed("embed encoder a.txt OUT", result=_files(".npy")),
  "score": Subcommand("score encoder a.txt b.txt --output OUT", resumes=(WORK,)),
  "score by likelihood": Subcommand(
    "score run a.txt b.txt --output OUT --by likelihood --languages en de", resumes=(WORK,)
  ),
  "mine": Subcommand(
    "mine a.txt b.txt OUT --encoder encoder",
    stream=False,
    resumes=(WORK, ".source.vectors", ".target.vectors"),
  ),
  "search": Subcommand(
    "search b.txt corpus vectors --output OUT --encoder encoder", resumes=(WORK,)
  ),
  "index": _Resumed("index vectors OUT --factory IVF2,SQ8", result=_files("")),
  "translate": Subcommand("translate run --to de --input a.txt --output OUT"),
  "vocab train": Subcommand("vocab train --input a.txt --output OUT --size 21", stream=False),
  **{
    f"export {kind}": _At_once(f"export {kind} run OUT", result=_files(""))
    for kind in ("safetensors", "sentence-transformers", "onnx")
  },
  **{
    f"data {kind}": _Resumed(
      f"data {kind} run OUT t/x.de-en.tsv t/y.fr-en.tsv", result=_files(".npy", ".gz")
    )
    for kind in ("embed", "mine-negatives")
  },
  **{
    f"import {kind}": _At_once(f"import {kind} hub/{kind}/m OUT", result=_params)
    for kind in ("mt5", "bert", "vmsst")
  },
  "import ems": _At_once("import ems x.safetensors OUT --vocabulary x.model", result=_params),
  "eval": _Resumed("eval --encoder encoder --data data --out OUT --suite tatoeba", result=_scores),
  "report": _Resumed("report results --out OUT", result=_files("")),
}


def write_inputs(folder, encoder=None):
  """Writes all inputs but `encoder`, which computes the vectors: by default that of `run`."""
  network = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
  own = sentence_encoder.SentenceEncoder(network.config, network.latent_dim)
  tiny_encoders.save_run(folder / "run", tiny_encoders.model_of(own, network=network))
  sentences = [f"{a} {b}" for a in ("old", "new", "big") for b in ("house", "river", "road")]
  lines = "".join(f"{x}\n" for x in sentences).encode()
  other = "".join(f"{x[::-1]}\n" for x in sentences).encode()
  pairs = "".join(f"{x[::-1]}\t{x}\n" for x in sentences).encode()
  sides = {f"data/tatoeba/tatoeba.deu-eng.{k}": x for k, x in (("deu", other), ("eng", lines))}
  texts = {
    "a.txt": lines,
    "b.txt": other,
    "corpus": lines,
    "t/x.de-en.tsv": pairs,
    "t/y.fr-en.tsv": pairs,
  }
  trials.lay_out({**texts, **sides, **model_readers.ems_files()}, folder)
  trials.lay_out(model_readers.mt5_files(), folder / "hub" / "mt5")
  trials.lay_out(model_readers.bert_files(), folder / "hub" / "bert")
  trials.lay_out(model_readers.vmsst_files(), folder / "hub" / "vmsst")
  encoder = encoder or loading.load(folder / "run")
  file_embedding.embed_file(encoder, str(folder / "corpus"), folder / "vectors", name="encoder")
  chosen = vmsst.get_benchmarks(["tatoeba"])
  vmsst.evaluate(encoder, chosen, folder / "data", folder / "results", name="x")
