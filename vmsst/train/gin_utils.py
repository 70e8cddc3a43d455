"""Parses gin configurations (`t5x.gin_utils` in the bundled runtime).

Gin files import `t5x`, as in `from t5x import utils`. In the bundled runtime, `t5x` is an alias of
`vmsst.train`. Therefore, the same gin files also run on upstream T5X, with `python -m t5x.main`.
"""

import contextlib
import difflib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import io
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import gin
import jax
import msgspec

from vmsst import storage
from vmsst.errors import InputError
from vmsst.io import input_files
from vmsst.jobs import outputs

_RUNTIME = "vmsst.train"


# Replace the reader that gin uses for files in Python packages. Gin's reader logs an error for each
# search path that lacks the requested file. It also fails if a gin file includes `data/files.gin`
# and the working directory has a folder `data` that is not a Python package. Gin has no public
# function for replacing this reader.
gin.config._FILE_READERS[:] = [
  (open, os.path.isfile),
  (lambda path: io.StringIO(input_files.read_bytes(path).decode()), storage.is_file),
]


def bindings() -> dict[tuple[str, str], dict[str, Any]]:
  """Returns bound values by (scope, selector) and parameter. Macros have the selector `gin.macro`.

  Gin passes the bound values only to `gin.finalize` hooks, but `parse_gin_flags` needs the values
  before it calls `gin.finalize`.
  """
  return gin.config._CONFIG


def summarize_gin_config(model_dir: str, summary_writer: Any, step: int) -> None:
  """Writes the gin configuration to `model_dir`/config.gin and to TensorBoard."""
  if jax.process_index() != 0:
    return
  text = gin.config_str()
  outputs.write_text(storage.path(model_dir) / "config.gin", text)
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
  """Parses `gin_files` in order, then `gin_bindings`. Later values override earlier values.

  Raises:
    InputError: If a file is missing, if a binding names an unknown macro, configurable or
      parameter, or if a value cannot be parsed or has the wrong type for its parameter.
  """
  install_t5x()
  for path in gin_search_paths:
    gin.add_config_file_search_path(path)
  for file in gin_files:
    with _gin_errors(file):
      gin.parse_config_file(file)
  # Gin would silently accept a misspelled macro name on the command line. Therefore, accept only
  # macros that the gin files define.
  macros = {scope for scope, selector in bindings() if selector == "gin.macro"}
  for reference in gin.config.iterate_references(bindings()):
    if reference.selector == "gin.macro":
      macros.update(reference.scopes)
  for binding in gin_bindings:
    name = binding.split("=", 1)[0].strip()
    if re.fullmatch(r"\w+", name) and name not in macros:
      similar = difflib.get_close_matches(name.upper(), macros, n=3, cutoff=0.5)
      suggestion = f"; did you mean {' or '.join(similar)}?" if similar else ""
      raise InputError(f"--gin.{name}: no gin file defines the macro {name}{suggestion}")
    with _gin_errors(f"--gin.{binding}", "; put strings in inner quotes, like --gin.A=\"'text'\""):
      gin.parse_config(binding)
  _check_types()
  if finalize_config:
    if unset := unset_macros():
      raise InputError(
        f"{', '.join(unset)}: no value; set --gin.{unset[0]}=VALUE (strings in inner quotes)"
      )
    gin.finalize()


def unset_macros() -> list[str]:
  """Returns the names of macros that still have the value `%gin.REQUIRED`."""
  return [
    scope
    for (scope, selector), bound in bindings().items()
    if selector == "gin.macro" and str(bound.get("value")) in (str(gin.REQUIRED), "%gin.REQUIRED")
  ]


def _literal(bound: Any) -> Any:
  """Returns a bound value with its macros replaced by their values.

  Raises:
    LookupError: If the value is missing, or gin computes it later by calling a function.
  """
  if isinstance(bound, Mapping):
    return {key: _literal(value) for key, value in bound.items()}
  if isinstance(bound, list | tuple | set):
    return type(bound)(map(_literal, bound))
  if isinstance(bound, gin.config.ConfigurableReference) and bound.selector == "gin.macro":
    return _literal(bindings()["/".join(bound.scopes), "gin.macro"]["value"])
  if bound is gin.REQUIRED or getattr(bound, "evaluate", False):
    raise LookupError
  return bound.configurable.wrapped if hasattr(bound, "configurable") else bound


def _check_types() -> None:
  """Checks all bound values against the type annotations of their parameters.

  Raises:
    InputError: If a value has the wrong type for its parameter, or refers to itself.
  """
  for (scope, selector), bound_parameters in bindings().items():
    parameters: Mapping[str, inspect.Parameter] = {}
    if selector != "gin.macro":
      try:
        # Gin wraps functions and classes, and the wrappers have no annotations.
        function = gin.config._REGISTRY[selector].wrapped
        parameters = inspect.signature(function, eval_str=True).parameters
      except (LookupError, ValueError, TypeError, NameError, AttributeError, SyntaxError):
        continue  # There is no signature, or only type checkers can resolve an annotation.
    for name, bound in bound_parameters.items():
      parameter = parameters.get(name)
      label = f"{'.'.join(selector.split('.')[-2:]).removeprefix('__main__.')}.{name}"
      if selector == "gin.macro":
        label = scope
      elif isinstance(bound, gin.config.ConfigurableReference):
        label += f" ({'/'.join(bound.scopes)})"
      try:
        value = _literal(bound)
        if parameter is None or parameter.annotation is parameter.empty:
          continue
        if value is not parameter.default:
          if value in (math.inf, -math.inf):
            raise msgspec.ValidationError("Expected a finite number")
          msgspec.convert(value, parameter.annotation)
      except RecursionError:
        raise InputError(f"{label}: the value refers to itself; set it to another value") from None
      except msgspec.ValidationError as error:
        raise InputError(f"{label} is {value!r}: {error}") from None
      except (LookupError, TypeError):
        continue  # The value is computed later, or msgspec does not support the type.


@contextlib.contextmanager
def _gin_errors(source: str, hint: str = "") -> Iterator[None]:
  """Converts errors from gin, and from modules that gin imports, to one-line InputErrors.

  Args:
    source: A gin file or a binding.
    hint: Advice to append to a syntax error message.
  """
  try:
    yield
  except Exception as error:
    problem, *details = str(error).splitlines() or [type(error).__name__]
    if isinstance(error, SyntaxError):
      problem = f"line {error.lineno}: cannot parse {(error.text or '').strip()!r}{hint}"
    locations = [f" ({line.strip()})" for line in details if line.strip().startswith("In file")]
    raise InputError(f"{source}: {problem}{''.join(locations)}") from error


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports modules of `vmsst.train` under the name `t5x`, even if upstream T5X is installed."""

  def find_spec(self, fullname, path=None, target=None):
    if fullname.partition(".")[0] != "t5x":
      return None
    if importlib.util.find_spec(_RUNTIME + fullname.removeprefix("t5x")) is None:
      raise ModuleNotFoundError(
        f"{fullname} is not part of the bundled runtime; run the gin file on upstream T5X with "
        "`python -m t5x.main`"
      )
    return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == "t5x")

  def create_module(self, spec) -> ModuleType:
    module = importlib.import_module(_RUNTIME + spec.name.removeprefix("t5x"))
    self._spec = module.__spec__
    return module

  def exec_module(self, module: ModuleType) -> None:
    module.__spec__ = self._spec  # The import system replaced the original spec.


@functools.cache
def install_t5x() -> None:
  """Makes `import t5x` import the bundled runtime. `parse_gin_flags` calls this function."""
  sys.meta_path.insert(0, _Finder())
