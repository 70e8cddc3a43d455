"""Runs the units of a build: in processes on this machine, or with Apache Beam.

Either way, the result of a unit is a file (`stages.result`). After an error, finished units are
kept, and the same call resumes.
"""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import process
from typing import Any

import tqdm

from vmsst import errors
from vmsst.tasks.opus import stages

RunUnits = Callable[[str, Sequence[stages.Unit]], None]
"""Runs units, with the name of their stage. Raises InputError if one fails."""
_RESUME = "finished files are kept; fix this and rerun the same command to resume"


def local(workers: int = 1, progress: bool | None = None) -> RunUnits:
  """Returns a function that runs units in processes on this machine.

  They replace those of Beam's DirectRunner, which waits forever for a killed process.

  Args:
    workers: Number of processes; 1 is this process.
    progress: Show a progress bar; None: on a terminal only.
  """

  def run(title: str, units: Sequence[stages.Unit]) -> None:
    todo = [unit for unit in units if stages.result(unit) is None]
    disable = None if progress is None else not progress
    done = len(units) - len(todo)
    with tqdm.tqdm(total=len(units), initial=done, desc=title, disable=disable) as bar:
      if workers == 1:
        for unit in todo:
          _checked(title, unit, functools.partial(stages.run_unit, unit))
          bar.update()
      else:
        _run_in_processes(title, todo, workers, bar)

  return run


def _run_in_processes(
  title: str, units: Sequence[stages.Unit], workers: int, bar: tqdm.tqdm
) -> None:
  # Spawned, because threads of this process do not survive a fork.
  pool = concurrent.futures.ProcessPoolExecutor(
    min(workers, max(len(units), 1)),
    mp_context=multiprocessing.get_context("spawn"),
    initializer=_start_worker,
  )
  try:
    futures = {pool.submit(stages.run_unit, unit): unit for unit in units}
    for future in concurrent.futures.as_completed(futures):
      _checked(title, futures[future], future.result)
      bar.update()
  except process.BrokenProcessPool:
    raise errors.InputError(
      f"{title}: a worker process was killed (if memory ran out, use fewer workers); {_RESUME}"
    ) from None
  finally:
    pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
  """Makes a worker exit silently if it is interrupted or its parent exits."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  parent = multiprocessing.parent_process()
  assert parent is not None

  def watch() -> None:
    parent.join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _checked(title: str, unit: stages.Unit, work: Callable[[], None]) -> None:
  """Turns errors with an outside cause into one that names the unit."""
  try:
    work()
  except (errors.InputError, OSError) as error:
    raise errors.InputError(f"{title} of {unit}: {error}; {_RESUME}") from None
  except MemoryError:
    raise errors.InputError(
      f"{title} of {unit}: out of memory (use fewer workers); {_RESUME}"
    ) from None


def beam(name: Any, options: Any = ()) -> RunUnits:
  """Returns a function that runs units with Apache Beam; its workers must see the same files.

  Args:
    name: "DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner" or the like, or a runner;
      None: the one that the options name.
    options: Flags of Beam, such as ["--direct_num_workers=4"], or its PipelineOptions.

  Raises:
    InputError: Beam is not installed.
  """
  try:
    import apache_beam
    from apache_beam.options import pipeline_options
  except ImportError as error:
    raise errors.InputError(
      f"Beam runners need Apache Beam ({error}); install it: pip install 'vmsst[opus]'"
    ) from None

  if not isinstance(options, pipeline_options.PipelineOptions):
    options = pipeline_options.PipelineOptions(list(options))

  def run(title: str, units: Sequence[stages.Unit]) -> None:
    todo = [unit for unit in units if stages.result(unit) is None]
    if not todo:
      return
    try:
      with apache_beam.Pipeline(runner=name, options=options) as pipeline:
        _ = (
          pipeline
          | "Units" >> apache_beam.Create(todo, reshuffle=False)
          | "Spread" >> apache_beam.Reshuffle()
          | title >> apache_beam.Map(stages.run_unit)
        )
    except Exception as error:
      lines = str(error).strip().splitlines() or [type(error).__name__]
      raise errors.InputError(f"{title} by {name or 'Beam'}: {lines[-1]}; {_RESUME}") from error
    missing = [unit for unit in todo if stages.result(unit) is None]
    if missing:
      raise errors.InputError(
        f"{title} by {name or 'Beam'}: the result of {missing[0]} is missing at {missing[0].path}; "
        "use a file system that its workers share with this process"
      )

  return run
