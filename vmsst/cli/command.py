"""Subcommands are functions: their signatures and docstrings state every argument, once.

A parameter without `*` before it is a positional argument, a keyword-only one an option; its
annotation says how it is parsed, and the docstring what `--help` shows. A parameter whose type is a
dataclass stands for its fields, the options that several commands share.
"""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from vmsst import errors, storage
from vmsst.io import text_files
from vmsst.jobs import outputs

if TYPE_CHECKING:
  from vmsst.encoder.encoding import EncoderSource
  from vmsst.jobs.engines import Engine


@dataclasses.dataclass(frozen=True)
class Argument:
  """How an argument is parsed, in an `Annotated` type.

  Attributes:
    metavar: What stands for the value in `--help`.
    parse: Returns the value of a text; raises ValueError or ArgumentTypeError.
    role: None, unless the value is a path: "file" or "folder" to write; to read, "text" (a text
      file) or "data" (a folder), which must exist, or "input", which the command itself checks.
    help: The description where a docstring has none.
  """

  metavar: str
  parse: Callable[[str], Any] = str
  role: Literal["input", "text", "data", "file", "folder"] | None = None
  help: str = ""


def _number(kind: str, parse: Callable[[str], Any], is_valid: Callable[[Any], bool], text: str):
  """Parses an argument that is a number of this kind; raises ArgumentTypeError, which names it."""
  with contextlib.suppress(ValueError):
    if is_valid(value := parse(text)):
      return value
  raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")


_PLAIN = {
  str: Argument("TEXT"),
  int: Argument("N", functools.partial(_number, "an integer", int, lambda value: True)),
  float: Argument("X", functools.partial(_number, "a finite number", float, math.isfinite)),
}

_ENCODER = (
  "A run's MODEL_DIR, one of its checkpoint_<step>, an import or export, a folder of "
  "sentence-transformers, or a name on the Hugging Face Hub"
)
_TEXT = "Text file, one sentence per line, UTF-8, plain or gzipped; - is standard input"

_POSITIVE = functools.partial(_number, "an integer above 0", int, lambda value: value > 0)
Positive = Annotated[int, Argument("N", _POSITIVE)]
"""An integer above 0."""
Language = Annotated[str, Argument("CODE")]
"""The code of a language."""
Field = Annotated[str, Argument("NUMBER|KEY")]
"""A column of TSV files, or a key of JSON Lines."""
_ROLE = functools.partial(_number, "query or document", str, {"query", "document"}.__contains__)
Role = Annotated[str, Argument("query|document", _ROLE)]
"""What a text is in a search."""
InputFile = Annotated[str, Argument("FILE", role="input")]
"""A file to read."""
InputFolder = Annotated[str, Argument("FOLDER", role="data")]
"""A folder to read."""
Vectors = Annotated[str, Argument("VECTORS", role="input")]
"""Vectors of `vmsst embed`, or a .npy file."""
OutputFile = Annotated[str, Argument("FILE", role="file")]
"""The file to write."""
OutputFolder = Annotated[str, Argument("FOLDER", role="folder")]
"""The folder to write to."""
Encoder = Annotated[str, Argument("ENCODER", role="input", help=_ENCODER)]
"""An encoder to open."""
Text = Annotated[str, Argument("FILE", role="text", help=_TEXT)]
"""A text to read."""


@dataclasses.dataclass(frozen=True)
class Command:
  """A subcommand.

  Attributes:
    function: Runs the command; raises InputError for errors a user can fix.
    resumable: Whether an interrupted command resumes when it is rerun.
    atomic: Whether the function locks its output.
    types: How arguments are parsed that have other types in Python, by name.
    message: Printed at the end, with the arguments in braces.
  """

  function: Callable[..., object]
  resumable: bool = False
  atomic: bool = False
  types: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  message: str = ""

  @property
  def parameters(self) -> list[inspect.Parameter]:
    """The parameters of the function, annotated with how they are parsed."""
    parameters = inspect.signature(self.function).parameters.items()
    return [x.replace(annotation=self.types.get(name, x.annotation)) for name, x in parameters]

  def declare(self, parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    options: list[tuple[Any, Any, inspect.Parameter]] = []
    for parameter in self.parameters:
      if dataclasses.is_dataclass(shared := parameter.annotation):
        group = parser.add_argument_group(summary(shared))
        fields = inspect.signature(cast(Any, shared)).parameters.values()
        options += [(group, shared, field) for field in fields]
      else:
        options.append((parser, self.function, parameter))
    for into, documented, parameter in options:
      settings = _settings(parameter, _descriptions(documented).get(parameter.name))
      if parameter.kind is parameter.KEYWORD_ONLY:
        required = parameter.default is parameter.empty
        into.add_argument(f"--{parameter.name.replace('_', '-')}", required=required, **settings)
      else:
        into.add_argument(parameter.name, **{**settings, "metavar": parameter.name.upper()})

  def values(self, args: argparse.Namespace) -> dict[str, Any]:
    """Returns what parsed arguments pass to the function."""
    arguments = {}
    for parameter in self.parameters:
      if dataclasses.is_dataclass(parameter.annotation):
        shared = cast(Any, parameter.annotation)
        fields = (field.name for field in dataclasses.fields(shared))
        arguments[parameter.name] = shared(**{field: getattr(args, field) for field in fields})
      else:
        arguments[parameter.name] = getattr(args, parameter.name)
    return arguments

  def __call__(self, args: argparse.Namespace) -> None:
    """Checks the paths, locks the output and runs the command."""
    values = self.values(args)
    paths: dict[str, list[str]] = {x: [] for x in ("input", "text", "data", "file", "folder")}
    for parameter in self.parameters:
      role = _parser_type(parameter.annotation)[1].role
      if role and (value := values[parameter.name]) is not None:
        paths[role] += [value] if isinstance(value, str) else value
    file, folder = (next(iter(paths[role]), None) for role in ("file", "folder"))
    outputs.check([*paths["input"], *paths["text"], *paths["data"]], file=file, folder=folder)
    for path in paths["text"]:
      text_files.check_not_empty(path)
    for path in paths["data"]:
      if not storage.path(path).is_dir():
        raise errors.InputError(f"{path}: not a folder; check the path")
    output = file or folder or outputs.STANDARD
    locked = output != outputs.STANDARD and not self.atomic
    with outputs.ownership(output, is_folder=not file) if locked else contextlib.nullcontext():
      self.function(**values)
    if self.message:
      print(self.message.format(**values))


def summary(documented: Any) -> str:
  """Returns the first line of a docstring."""
  return (inspect.getdoc(documented) or "").partition("\n")[0].rstrip(".")


def _descriptions(documented: Any) -> dict[str, str]:
  """Returns the descriptions of arguments in a docstring; a class has those of its bases."""
  descriptions: dict[str, str] = {}
  for base in reversed(getattr(documented, "__mro__", [documented])):
    text = inspect.getdoc(base) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:  .*\n|\n)+)", f"{text}\n", re.MULTILINE)
    parts = re.split(r"^  (\w+): ", section[1] if section else "", flags=re.MULTILINE)[1:]
    items = zip(parts[::2], parts[1::2], strict=True)
    descriptions |= {name: " ".join(description.split()).rstrip(".") for name, description in items}
  return descriptions


def _parser_type(hint: Any) -> tuple[Any, Argument]:
  """Returns a type without `None`, and how it is parsed: it, or the items of a list or tuple."""
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
  is_several = typing.get_origin(hint) in (list, tuple, Sequence)
  item = typing.get_args(hint)[0] if is_several else hint
  if typing.get_origin(item) is Annotated:
    return hint, item.__metadata__[0]
  return hint, _PLAIN.get(item, _PLAIN[str])


def _settings(parameter: inspect.Parameter, description: str | None) -> dict[str, Any]:
  """Returns the settings of `add_argument` for a parameter."""
  hint, argument = _parser_type(parameter.annotation)
  default = None if parameter.default is parameter.empty else parameter.default
  text = description or argument.help
  if default not in (None, ()) and default is not False and "(default" not in text:
    text += f" (default: {' '.join(default) if isinstance(default, tuple) else default})"
  settings = {"default": default, "help": text.replace("%", "%%")}
  if hint is bool:
    return {**settings, "action": "store_true"}
  if typing.get_origin(hint) is Literal:
    return {**settings, "choices": typing.get_args(hint)}
  parse = os.path.expanduser if argument.role else argument.parse  # no shell does in --out=~/x
  settings |= {"type": parse, "metavar": argument.metavar}
  optional = parameter.kind is not parameter.KEYWORD_ONLY and parameter.default is None
  if typing.get_origin(hint) in (list, Sequence):
    settings |= {"nargs": "*" if optional else "+", "action": "extend", "default": default or []}
  elif typing.get_origin(hint) is tuple:
    settings["nargs"] = len(typing.get_args(hint))
  elif optional:
    settings["nargs"] = "?"
  return settings


# --------------------------------------------------------------------------------------------
# Options that several commands share, and their standard input and output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workers:
  """Parallel work, with the same results.

  Attributes:
    engine: Processes on this machine, or a Ray cluster, whose workers must see the same files
      (default: local).
    workers: Processes on this machine (default: one per core), or Ray tasks at a time (default: as
      many as the cluster has room for).
    ray_address: Ray cluster: HOST:PORT or ray://HOST:PORT (default: $RAY_ADDRESS, a cluster on this
      machine, or a new one on this machine).
  """

  engine: Literal["local", "ray"] | None = None
  workers: Positive | None = None
  ray_address: Annotated[str, Argument("ADDRESS")] | None = None
  gpus_per_worker: ClassVar[int | None] = None
  default_workers: ClassVar[int] = os.cpu_count() or 1
  has_model: ClassVar[bool] = False

  def create(self) -> "Engine":
    """Returns the engine that the options name.

    Raises:
      InputError: an option does not apply to the engine.
    """
    from vmsst.jobs import engines

    if self.engine == "local" and self.ray_address:
      raise errors.InputError("--ray-address does not apply to --engine local; omit it")
    gpus = self.gpus_per_worker or 0
    if self.engine == "ray" or self.ray_address:
      engine: Engine = engines.Ray(self.ray_address, self.workers, gpus)
    else:
      engine = engines.Local(self.workers or self.default_workers, gpus)
    if self.has_model and not engine.in_process:  # This process needs no accelerator.
      import jax

      jax.config.update("jax_platforms", "cpu")
    return engine


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuWorkers(Workers):
  """Parallel work, with the same results.

  Attributes:
    workers: Processes on this machine (default: 1), or Ray tasks at a time (default: as many as
      the cluster has room for).
    gpus_per_worker: GPUs of each worker (default: local workers share all devices, Ray workers have
      none).
  """

  gpus_per_worker: Positive | None = None  # type: ignore[misc]
  default_workers: ClassVar[int] = 1
  has_model: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
  """Encoding.

  Attributes:
    backend: jax, or onnx, which is faster on CPUs and computes in float32 (default: jax on
      accelerators, onnx on CPUs if ONNX Runtime is installed).
    prompt_name: Prompt of the encoder before every text, such as query or passage (default: that
      of documents in embed, that of queries in search, else the encoder's default).
    prompt: Text before every text.
    compute_dtype: Compute dtype (default: as in training).
  """

  backend: Literal["auto", "jax", "onnx"] = "auto"
  prompt_name: Annotated[str, Argument("NAME")] | None = None
  prompt: Annotated[str, Argument("TEXT")] | None = None
  compute_dtype: Literal["float32", "bfloat16"] | None = None
  batch_size: ClassVar[int | None] = None

  def open(
    self, path: str, *, role: Literal["query", "document"] | None = None, **how: Any
  ) -> "EncoderSource":
    """Opens an encoder, in this process and others.

    Args:
      path: Path of the encoder.
      role: What its texts are, whose prompt is used if no other is given.
      **how: Further options of `loading.open_encoder`.
    """
    from vmsst.encoder import encoding, loading
    from vmsst.formats import tokenizers

    if self.prompt is not None and self.prompt_name is not None:
      raise errors.InputError("--prompt and --prompt-name are both given; omit one")
    how |= {"backend": self.backend, "dtype": self.compute_dtype}
    prompt = self.prompt
    name, encoder = loading.open_encoder(path, **how)
    prompts = getattr(encoder, "prompts", {})
    if self.prompt_name is not None:
      if self.prompt_name not in prompts:
        known = ", ".join(prompts) or "none"
        raise errors.InputError(f"--prompt-name is {self.prompt_name!r}; {path} has: {known}")
      prompt = prompts[self.prompt_name]
    elif prompt is None and role:
      prompt = tokenizers.role_prompt(prompts, role)
    if prompt:
      print(f"vmsst: note: the prompt before every text is {prompt!r}", file=sys.stderr)
    load = functools.partial(loading.open_encoder, name, **how, prompt=prompt)
    options = {"batch_size": self.batch_size} if self.batch_size else {}
    return encoding.EncoderSource(loading.with_prompt(encoder, prompt), name, load, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches(Backend):
  """Encoding.

  Attributes:
    batch_size: Sentences per batch.
  """

  batch_size: Positive = 128  # type: ignore[misc]


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
  """Yields the path, or, for "-", the path of a temporary copy of standard input."""
  if path != "-":
    yield path
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    kept = pathlib.Path(folder, "standard input")
    with kept.open("wb") as stream:
      shutil.copyfileobj(sys.stdin.buffer, stream)
    with storage.rename_in_errors(str(kept), kept.name):
      yield str(kept)


@contextlib.contextmanager
def file_to_write(output: str) -> Iterator[str]:
  """Yields the path of a file; its content goes to the output at the end if that is a stream."""
  if not outputs.is_stream(output):
    yield output
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    path = os.path.join(folder, "output")
    yield path
    is_standard, printed = output == outputs.STANDARD, contextlib.nullcontext(sys.stdout.buffer)
    with open(path, "rb") as content, printed if is_standard else open(output, "wb") as stream:
      shutil.copyfileobj(content, stream)
      stream.flush()
