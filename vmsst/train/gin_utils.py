"""Parsing gin configurations: `t5x.gin_utils` of the bundled runtime."""

import contextlib
import difflib
import importlib.util  # noqa: F401  (gin 0.5 uses it without importing it)
import inspect
import io
import logging
import math
import os
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import gin
import jax
import msgspec

from vmsst import storage
from vmsst.errors import InputError
from vmsst.io import input_files
from vmsst.jobs import atomic_files

# Raised by gin for errors in a file or a binding.
_UNPARSED = (
  ValueError,
  SyntaxError,
  tokenize.TokenError,
  ImportError,
  AttributeError,
  NameError,
  TypeError,
  RecursionError,
  MemoryError,
)


def summarize_gin_config(model_dir: str, summary_writer: Any, step: int) -> None:
  """Writes the gin configuration to `model_dir`/config.gin and to TensorBoard."""
  if jax.process_index() != 0:
    return
  text = gin.config_str()
  atomic_files.write_text(storage.path(model_dir) / "config.gin", text)
  if summary_writer is not None:
    summary_writer.write_texts(step, {"config": gin.markdown(text)})
    summary_writer.flush()


def sum_fn(var1: Any = gin.REQUIRED, var2: Any = gin.REQUIRED) -> Any:
  """Returns `var1 + var2`, for use in gin files."""
  return var1 + var2


def parse_gin_flags(
  gin_search_paths: Sequence[str],
  gin_files: Sequence[str],
  gin_bindings: Sequence[str],
  finalize_config: bool = True,
) -> None:
  """Parses `gin_files` in order, then `gin_bindings`; later ones override earlier ones.

  Raises:
    InputError: A file is missing (the message lists the paths searched), a binding names an
      unknown macro, configurable or parameter (the message suggests the nearest name), or a value
      cannot be parsed or does not have the type of its parameter.
  """
  for path in gin_search_paths:
    gin.add_config_file_search_path(path)
  for file in gin_files:
    try:
      with _searching():
        gin.parse_config_file(file)
    except OSError as error:
      missing = re.search(r"file:? (\S+?)\.? ", str(error))
      name = missing.group(1) if missing else file
      searched = ", ".join(
        path if storage.is_url(path) else os.path.abspath(path) for path in gin_search_paths
      )
      raise InputError(f"gin file {name!r} not found; searched: {searched}") from error
    except _UNPARSED as error:
      raise InputError(f"{file}: {explain(error)}") from error
  # The macros that the parsed files define or use.
  known = {scope for scope, selector in gin.config._CONFIG if selector == "gin.macro"}
  for reference in gin.config.iterate_references(gin.config._CONFIG):
    if reference.selector == "gin.macro":
      known.update(reference.scopes)
  for binding in gin_bindings:
    name = binding.split("=", 1)[0].strip()
    if re.fullmatch(r"\w+", name) and name not in known:
      raise InputError(f"--gin.{name}: no gin file has a macro {name}{_nearest(name, known)}")
    try:
      gin.parse_config(binding)
    except (SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
      raise InputError(
        f"--gin.{binding}: cannot parse the value; put strings in inner quotes, like "
        f"--gin.{name}=\"'text'\""
      ) from error
    except _UNPARSED as error:
      raise InputError(f"--gin.{binding}: {explain(error)}") from error
  check_loops()
  check_types()
  if finalize_config:
    unset = unset_macros()
    if unset:
      raise InputError(
        f"{', '.join(unset)}: no value; set --gin.{unset[0]}=VALUE (strings in inner quotes)"
      )
    try:
      gin.finalize()
    except _UNPARSED as error:
      raise InputError(f"gin: {explain(error)}") from error


def check_loops() -> None:
  """Raises InputError, with the names, if a macro or an argument of a function needs itself."""

  def follow(path: list[tuple[str, str]]) -> None:
    if path[-1] in path[:-1]:
      names = [scope if selector == "gin.macro" else selector for scope, selector in path]
      loop = " = ".join(names[names.index(names[-1]) :])
      raise InputError(f"{loop}: the value refers to itself; set {names[-1]} to another one")
    for reference in gin.config.iterate_references(gin.config._CONFIG.get(path[-1], {})):
      if reference.evaluate:
        follow([*path, reference.config_key])

  for key in gin.config._CONFIG:
    follow([key])


class _UnknownError(Exception):
  """A value depends on a reference that is only called when the configuration is used."""


def check_types() -> None:
  """Checks the values of all bindings against the annotations of their parameters.

  Raises:
    InputError: A value has another type; the message names the parameter and its macro.
  """
  for (_, selector), bindings in gin.config._CONFIG.items():
    if selector == "gin.macro" or selector not in gin.config._REGISTRY:
      continue
    try:
      signature = inspect.signature(gin.config._REGISTRY[selector].wrapped, eval_str=True)
    except (ValueError, TypeError, NameError, AttributeError, SyntaxError):
      continue  # no signature, or an annotation that exists for type checkers alone
    for name, bound in bindings.items():
      parameter = signature.parameters.get(name)
      if parameter is None or parameter.annotation is parameter.empty:
        continue
      try:
        value = _literal(bound)
        if value is not parameter.default:
          if value in (math.inf, -math.inf):
            raise msgspec.ValidationError("Expected a finite number")
          msgspec.convert(value, parameter.annotation)
      except msgspec.ValidationError as error:
        label = f"{'.'.join(selector.split('.')[-2:]).removeprefix('__main__.')}.{name}"
        if isinstance(bound, gin.config.ConfigurableReference):
          label += f" ({'/'.join(bound.scopes)})"
        raise InputError(f"{label} is {value!r}: {error}") from None
      except (_UnknownError, TypeError):
        continue  # the value is not known yet, or msgspec does not check this type


def _literal(bound: Any) -> Any:
  """Returns a bound value without its references; raises _UnknownError if one is called later."""
  if isinstance(bound, Mapping):
    return {key: _literal(value) for key, value in bound.items()}
  if isinstance(bound, list | tuple | set):
    return type(bound)(map(_literal, bound))
  if bound is gin.REQUIRED:
    raise _UnknownError
  if not isinstance(bound, gin.config.ConfigurableReference):
    return bound
  if bound.selector == "gin.macro":
    values = gin.config._CONFIG.get(("/".join(bound.scopes), "gin.macro"), {})
    return _literal(values.get("value", gin.REQUIRED))
  if bound.evaluate:
    raise _UnknownError
  return bound.configurable.wrapped


def is_computed(parameter: str) -> bool:
  """Returns whether a parameter, such as "TRAIN_STEPS/gin.macro.value", is not set to a literal."""
  key = gin.config.ParsedBindingKey.parse(parameter)
  bound = gin.config._CONFIG.get((key.scope, key.complete_selector), {})
  try:
    _literal(bound.get(key.arg_name, gin.REQUIRED))
  except _UnknownError:
    return True
  return False


def unset_macros() -> list[str]:
  """Returns macros that the user must set (`%gin.REQUIRED`)."""
  return [
    scope
    for (scope, selector), bound in gin.config._CONFIG.items()
    if selector == "gin.macro" and str(bound.get("value")) in (str(gin.REQUIRED), "%gin.REQUIRED")
  ]


@contextlib.contextmanager
def _searching() -> Iterator[None]:
  """Hides the error that gin logs for every folder without a file, and fixes its package lookup.

  Gin also searches `data/files.gin` in a Python package `data`, and fails if the working directory
  has a plain folder of that name.
  """

  def tolerant(is_readable: Callable[[str], bool]) -> Callable[[str], bool]:
    def check(path: str) -> bool:
      try:
        return is_readable(path)
      except TypeError:  # from a package without a location
        return False

    return check

  readers = gin.config._FILE_READERS
  gin.config._FILE_READERS = [
    *((reader, tolerant(check)) for reader, check in readers),
    (_open_in_store, _is_in_store),
  ]
  logging.disable(logging.ERROR)
  try:
    yield
  finally:
    logging.disable(logging.NOTSET)
    gin.config._FILE_READERS = readers


def _is_in_store(path: str) -> bool:
  if not storage.is_url(path):
    return False
  with storage.explained(path, "read"):
    return storage.path(path).is_file()


def _open_in_store(path: str) -> TextIO:
  return io.StringIO(input_files.read_bytes(path).decode())


_UPSTREAM = {
  "concurrent_metrics",
  "params_on_devices",
  "relative_steps",
  "strict",
  "use_orbax",
  "verify_matching_vocabs_fn",
}
"""Parameters that gin files of upstream T5X often set and that the bundled runtime lacks."""


def explain(error: BaseException) -> str:
  """Returns gin's message in one line, with the nearest known name for an unknown one."""
  if isinstance(error, SyntaxError):
    reason = re.sub(r"<ast\.\w+ object at 0x\w+>", "", " ".join(error.msg.split()))
    return f"line {error.lineno}: cannot parse {(error.text or '').strip()!r} ({reason})"
  # Gin does not change the message of an error in an included file.
  if isinstance(error, tokenize.TokenError) and len(error.args) > 1:
    return f"line {error.args[1][0]}: {error.args[0]}"
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  text = lines[0] if lines else type(error).__name__
  places = [line for line in lines[1:] if line.startswith("In file")]
  where = f" ({places[0]})" if places else ""
  parameter = re.search(r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'", text)
  if parameter:
    name, unknown = parameter.groups()
    text = f"{name} has no parameter {unknown!r}{_nearest(unknown, _parameters(name))}"
    if unknown in _UPSTREAM:
      text = f"{name} has {unknown!r} in upstream T5X only; remove this binding"
  selector = re.search(r"Couldn't resolve selector ([\w.]+); <module '(\w+)\.", text)
  if selector and selector[2] == "vmsst":
    text = f"the bundled runtime has no {selector[1]}; run the gin file on upstream T5X"
    if selector[1].startswith("optimizers."):
      text += ", or set optimizers.OptaxWrapper.optax_optimizer to an optimizer of optax"
  macro = re.search(r"No bindings specified for '(\S+)/gin.macro'", text)
  if macro:
    text = f"no gin file or binding sets %{macro.group(1)}; set it"
  configurable = re.search(r"No configurable matching (?:reference )?'@?([^'()]+)", text)
  if configurable:
    unknown = configurable.group(1)
    text = f"the gin files do not import {unknown!r}"
    names = {name for name, _ in gin.config._REGISTRY.items()}
    names |= {".".join(name.split(".")[-2:]) for name in names}
    text += _nearest(unknown, names)
  return text + where


def _nearest(name: str, known: Sequence[str] | set[str]) -> str:
  upper = {candidate.lower(): candidate for candidate in known}
  close = difflib.get_close_matches(name.lower(), list(upper), n=3, cutoff=0.5)
  return f"; did you mean {' or '.join(upper[match] for match in close)}?" if close else ""


def _parameters(selector: str) -> list[str]:
  for name, entry in gin.config._REGISTRY.items():
    if f".{name}".endswith(f".{selector}"):
      return list(inspect.signature(entry.wrapped).parameters)
  return []
