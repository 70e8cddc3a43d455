"""Options that several commands share, and their standard input."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vmsst import errors, storage
from vmsst.cli.command import Argument, Positive
from vmsst.jobs import outputs

if TYPE_CHECKING:
  from vmsst.jobs.engines import Engine


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

  def chosen(self, local_workers: int | None = None, gpus_per_worker: int = 0) -> "Engine":
    """Returns the engine that the options name; `local_workers` is the default number.

    Raises:
      InputError: an option does not apply to the engine.
    """
    from vmsst.jobs import engines

    name = self.engine or ("ray" if self.ray_address else "local")
    if name == "local" and self.ray_address:
      raise errors.InputError("--ray-address does not apply to --engine local; omit it")
    if name == "ray":
      from vmsst.jobs import engines

      return engines.Ray(self.ray_address, self.workers, gpus_per_worker)
    workers = self.workers or local_workers or os.cpu_count() or 1
    return engines.Local(workers, gpus_per_worker)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuWorkers(Workers):
  """Parallel work, with the same results.

  Attributes:
    workers: Processes on this machine (default: 1), or Ray tasks at a time (default: as many as
      the cluster has room for).
    gpus_per_worker: GPUs of each worker (default: local workers share all devices, Ray workers have
      none).
  """

  gpus_per_worker: Positive | None = None

  def chosen(self, local_workers: int | None = 1, gpus_per_worker: int = 0) -> "Engine":
    """Returns the engine; keeps this process off accelerators if others do the work."""
    engine = super().chosen(local_workers, self.gpus_per_worker or gpus_per_worker)
    if not engine.in_process:
      import jax

      jax.config.update("jax_platforms", "cpu")
    return engine


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
  """Encoding.

  Attributes:
    backend: jax, or onnx, which is faster on CPUs and computes in float32 (default: jax on
      accelerators, onnx on CPUs if ONNX Runtime is installed).
    prompt_name: Prompt of the encoder before every text, such as query or passage (default: that
      of documents in embed, that of queries in search, else the encoder's default).
    prompt: Text before every text.
  """

  backend: Literal["auto", "jax", "onnx"] = "auto"
  prompt_name: Annotated[str, Argument("NAME")] | None = None
  prompt: Annotated[str, Argument("TEXT")] | None = None

  def open(
    self, path: str, *, role: Literal["query", "document"] | None = None, **how: Any
  ) -> tuple[str, Any, Callable[[], tuple[str, Any]]]:
    """Returns an encoder's name, the encoder, and what opens it in another process.

    Args:
      path: Path of the encoder.
      role: What its texts are, whose prompt is used if no other is given.
      **how: Further options of `loading.open_encoder`.
    """
    from vmsst.encoder import loading
    from vmsst.formats import tokenizers

    if self.prompt is not None and self.prompt_name is not None:
      raise errors.InputError("--prompt and --prompt-name are both given; omit one")
    how["backend"], prompt = self.backend, self.prompt
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
    return name, loading.with_prompt(encoder, prompt), load


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches(Backend):
  """Encoding.

  Attributes:
    batch_size: Sentences per batch.
  """

  batch_size: Positive = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computing(Batches):
  """Encoding.

  Attributes:
    compute_dtype: Compute dtype (default: as in training).
  """

  compute_dtype: Literal["float32", "bfloat16"] | None = None

  def open(self, path: str, **how: Any) -> tuple[str, Any, Callable[[], tuple[str, Any]]]:
    """Returns an encoder's name, the encoder, and what opens it in another process."""
    return super().open(path, dtype=self.compute_dtype, **how)


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
  """Yields the path, or for "-" that of a temporary file with the content of standard input."""
  if path != "-":
    yield path
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    kept = pathlib.Path(folder, "standard input")
    with kept.open("wb") as stream:
      shutil.copyfileobj(sys.stdin.buffer, stream)
    with storage.naming(str(kept), kept.name):
      yield str(kept)


def is_streamed(output: str) -> bool:
  """Returns whether an output is standard output, a device or a pipe, which cannot be replaced."""
  return output == outputs.STANDARD or (not storage.is_url(output) and outputs.is_stream(output))


@contextlib.contextmanager
def file_to_write(output: str) -> Iterator[str]:
  """Yields the path of a file; its content goes to the output at the end if that is a stream."""
  if not is_streamed(output):
    yield output
    return
  with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
    yield os.path.join(folder, "output")
    with open(os.path.join(folder, "output"), encoding="utf-8", newline="\n") as lines:
      write_lines((line.removesuffix("\n") for line in lines), output)


def write_lines(lines: Iterable[str], output: str = outputs.STANDARD) -> None:
  """Writes lines to a file, atomically, or prints them in UTF-8, unescaped."""
  if output != outputs.STANDARD:
    with outputs.atomic_text(output) as stream:
      stream.writelines(f"{line}\n" for line in lines)
    return
  for line in lines:
    with outputs.naming("standard output"):
      sys.stdout.buffer.write(f"{line}\n".encode())
  with outputs.naming("standard output"):
    sys.stdout.buffer.flush()
