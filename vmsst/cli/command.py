"""Turns functions into subcommands. Options are described only in signatures and docstrings.

A keyword-only parameter becomes an option. Any other parameter becomes a positional argument. The
annotation controls how the value is parsed, and the docstring provides the text of `--help`. A
parameter annotated with a dataclass becomes a group of options, one for each field. Several
commands share these dataclasses.
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
  """Metadata in an `Annotated` type: how an argument is parsed and described.

  Attributes:
    metavar: Placeholder for the value in `--help`.
    parse: Converts the text to a value; raises ValueError or ArgumentTypeError.
    role: Kind of path. "file" and "folder" are outputs. "text" is an existing text file, and "data"
      an existing folder. "input" is an input path that the function itself checks.
    help: Description for `--help` if the function's docstring does not describe the parameter.
  """

  metavar: str
  parse: Callable[[str], Any] = str
  role: Literal["input", "text", "data", "file", "folder"] | None = None
  help: str = ""


def _number(kind: str, parse: Callable[[str], Any], is_valid: Callable[[Any], bool], text: str):
  """Parses a value; raises ArgumentTypeError ("... is not an integer") if the value is invalid."""
  with contextlib.suppress(ValueError):
    if is_valid(value := parse(text)):
      return value
  raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")


_DEFAULTS = {
  str: Argument("TEXT"),
  int: Argument("N", functools.partial(_number, "an integer", int, lambda value: True)),
  float: Argument("X", functools.partial(_number, "a finite number", float, math.isfinite)),
}

_ENCODER = (
  "A training run's MODEL_DIR, one of its checkpoint_<step> folders, an imported or exported "
  "encoder, a sentence-transformers folder, or a name on the Hugging Face Hub"
)
_TEXT = "Text file, one sentence per line, UTF-8, plain or gzipped; - is standard input"

_POSITIVE = functools.partial(_number, "an integer above 0", int, lambda value: value > 0)
Positive = Annotated[int, Argument("N", _POSITIVE)]  # an integer above 0
Language = Annotated[str, Argument("CODE")]
Field = Annotated[str, Argument("NUMBER|KEY")]  # a column of TSV files, or a key of JSON Lines
_ROLE = functools.partial(_number, "query or document", str, {"query", "document"}.__contains__)
Role = Annotated[str, Argument("query|document", _ROLE)]  # the role of a text in a search
InputFile = Annotated[str, Argument("FILE", role="input")]
InputFolder = Annotated[str, Argument("FOLDER", role="data")]
Vectors = Annotated[str, Argument("VECTORS", role="input")]  # an embed folder or a .npy file
OutputFile = Annotated[str, Argument("FILE", role="file")]
OutputFolder = Annotated[str, Argument("FOLDER", role="folder")]
Encoder = Annotated[str, Argument("ENCODER", role="input", help=_ENCODER)]
Text = Annotated[str, Argument("FILE", role="text", help=_TEXT)]


@dataclasses.dataclass(frozen=True)
class Command:
  """A subcommand.

  Attributes:
    function: Function of the subcommand; raises InputError for errors that a user can fix.
    resumable: Whether a rerun resumes an interrupted command.
    atomic: Whether the function itself locks its output.
    types: Annotations by parameter name. They replace the annotations in the function's signature.
    message: Message to print at the end. Parameter names in braces are replaced by the arguments.
  """

  function: Callable[..., object]
  resumable: bool = False
  atomic: bool = False
  types: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  message: str = ""

  @property
  def parameters(self) -> list[inspect.Parameter]:
    """The function's parameters, with the annotations from `types`."""
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
    for group, documented, parameter in options:
      settings = _settings(parameter, _descriptions(documented).get(parameter.name))
      if parameter.kind is parameter.KEYWORD_ONLY:
        required = parameter.default is parameter.empty
        group.add_argument(f"--{parameter.name.replace('_', '-')}", required=required, **settings)
      else:
        group.add_argument(parameter.name, **{**settings, "metavar": parameter.name.upper()})

  def values(self, args: argparse.Namespace) -> dict[str, Any]:
    """Converts the parsed command line to arguments for the function."""
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
    """Checks the paths, locks the output and calls the function."""
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
  """Returns the parameter descriptions in a docstring. A class also inherits descriptions."""
  descriptions: dict[str, str] = {}
  for base in reversed(getattr(documented, "__mro__", [documented])):
    text = inspect.getdoc(base) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:  .*\n|\n)+)", f"{text}\n", re.MULTILINE)
    fields = re.split(r"^  (\w+): ", section[1] if section else "", flags=re.MULTILINE)[1:]
    items = zip(fields[::2], fields[1::2], strict=True)
    descriptions |= {name: " ".join(description.split()).rstrip(".") for name, description in items}
  return descriptions


def _parser_type(hint: Any) -> tuple[Any, Argument]:
  """Returns a type without `None`, and the `Argument` attached to the type or to its items."""
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
  is_several = typing.get_origin(hint) in (list, tuple, Sequence)
  item = typing.get_args(hint)[0] if is_several else hint
  if typing.get_origin(item) is Annotated:
    return hint, item.__metadata__[0]
  return hint, _DEFAULTS.get(item, _DEFAULTS[str])


def _settings(parameter: inspect.Parameter, description: str | None) -> dict[str, Any]:
  """Returns the keyword arguments of `add_argument` for a parameter."""
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
  # A shell does not expand the tilde in --out=~/x.
  parse = os.path.expanduser if argument.role else argument.parse
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
# Options that several commands share; standard input and output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workers:
  """Parallel workers; the results do not depend on them.

  Attributes:
    engine: local for processes on this machine, or ray for a Ray cluster. The nodes of a cluster
      must see the same files as this machine (default: local).
    workers: Number of local processes (default: one per core) or of concurrent Ray tasks (default:
      as many as fit on the cluster).
    ray_address: Ray cluster, HOST:PORT or ray://HOST:PORT (default: $RAY_ADDRESS, a cluster on this
      machine, or a new one on this machine).
  """

  engine: Literal["local", "ray"] | None = None
  workers: Positive | None = None
  ray_address: Annotated[str, Argument("ADDRESS")] | None = None
  gpus_per_worker: ClassVar[int | None] = None
  default_workers: ClassVar[int] = os.cpu_count() or 1
  has_model: ClassVar[bool] = False

  def create(self) -> "Engine":
    """Returns the engine that the options describe.

    Raises:
      InputError: If an option does not apply to the engine.
    """
    from vmsst.jobs import engines

    if self.engine == "local" and self.ray_address:
      raise errors.InputError("--ray-address does not apply to --engine local; omit it")
    gpus = self.gpus_per_worker or 0
    if self.engine == "ray" or self.ray_address:
      engine: Engine = engines.Ray(self.ray_address, self.workers, gpus)
    else:
      engine = engines.Local(self.workers or self.default_workers, gpus)
    if self.has_model and not engine.in_process:  # Leave the accelerators to the workers.
      import jax

      jax.config.update("jax_platforms", "cpu")
    return engine


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuWorkers(Workers):
  """Parallel workers; the results do not depend on them.

  Attributes:
    workers: Number of local processes (default: 1) or of concurrent Ray tasks (default: as many as
      fit on the cluster).
    gpus_per_worker: Number of GPUs per worker (default: local processes share all GPUs, and Ray
      tasks get no GPU).
  """

  gpus_per_worker: Positive | None = None  # type: ignore[misc]
  default_workers: ClassVar[int] = 1
  has_model: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
  """Encoding.

  Attributes:
    backend: jax or onnx. ONNX Runtime is faster on CPUs, and computes in float32 (default: jax on
      accelerators, onnx on CPUs if ONNX Runtime is installed).
    prompt_name: Which of the encoder's prompts to put before every text, by its name, such as query
      or passage (default: the document prompt in embed, the query prompt in search, otherwise the
      encoder's default prompt).
    prompt: Prompt to put before every text.
    compute_dtype: Data type of the activations (default: as in training).
  """

  backend: Literal["auto", "jax", "onnx"] = "auto"
  prompt_name: Annotated[str, Argument("NAME")] | None = None
  prompt: Annotated[str, Argument("TEXT")] | None = None
  compute_dtype: Literal["float32", "bfloat16"] | None = None
  batch_size: ClassVar[int | None] = None

  def open(
    self, path: str, *, role: Literal["query", "document"] | None = None, **options: Any
  ) -> "EncoderSource":
    """Opens an encoder; returns a source from which worker processes can open the encoder too.

    Args:
      path: Path or name of the encoder.
      role: Role of the texts, which selects the prompt if no prompt option is given.
      **options: Further options of `loading.open_encoder`.
    """
    from vmsst.encoder import encoding, loading
    from vmsst.formats import tokenizers

    if self.prompt is not None and self.prompt_name is not None:
      raise errors.InputError("--prompt and --prompt-name are both given; omit one")
    options |= {"backend": self.backend, "dtype": self.compute_dtype}
    prompt = self.prompt
    name, encoder = loading.open_encoder(path, **options)
    prompts = getattr(encoder, "prompts", {})
    if self.prompt_name is not None:
      if self.prompt_name not in prompts:
        choices = ", ".join(prompts) or "none"
        raise errors.InputError(
          f"--prompt-name is {self.prompt_name!r}; prompts of {path}: {choices}"
        )
      prompt = prompts[self.prompt_name]
    elif prompt is None and role:
      prompt = tokenizers.role_prompt(prompts, role)
    if prompt:
      print(f"vmsst: note: the prompt before every text is {prompt!r}", file=sys.stderr)
    load = functools.partial(loading.open_encoder, name, **options, prompt=prompt)
    batches = {"batch_size": self.batch_size} if self.batch_size else {}
    return encoding.EncoderSource(loading.with_prompt(encoder, prompt), name, load, **batches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches(Backend):
  """Encoding.

  Attributes:
    batch_size: Sentences per batch.
  """

  batch_size: Positive = 128  # type: ignore[misc]


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
  """Yields the path; for "-", the path of a temporary copy of standard input."""
  if path != "-":
    yield path
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    copy = pathlib.Path(folder, "standard input")
    with copy.open("wb") as stream:
      shutil.copyfileobj(sys.stdin.buffer, stream)
    with storage.rename_in_errors(str(copy), copy.name):
      yield str(copy)


@contextlib.contextmanager
def file_to_write(output: str) -> Iterator[str]:
  """Yields the path of a file to write.

  If the output is a stream, yields a temporary file and copies it to the stream at the end.
  """
  if not outputs.is_stream(output):
    yield output
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    path = os.path.join(folder, "output")
    yield path
    is_standard, stdout = output == outputs.STANDARD, contextlib.nullcontext(sys.stdout.buffer)
    with open(path, "rb") as content, stdout if is_standard else open(output, "wb") as stream:
      shutil.copyfileobj(content, stream)
      stream.flush()
