"""Does the units of a build: in processes of this machine, or by Apache Beam wherever it runs.

Either way a unit's result is a file (`stages.result`), so that all there is to know of a run is
whether it went well. Where it did not, what is done stays done, and the same call goes on.
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

Run = Callable[[str, Sequence[stages.Unit]], None]
"""Does units; the text says what is done to them. Raises InputError when one fails."""
_GOES_ON = "what is done is kept: the same command goes on from there"


def local(workers: int = 1, progress: bool | None = None) -> Run:
  """Does units in processes of this machine.

  These are not processes of Beam's DirectRunner, which waits for ever for a killed one.

  Args:
    workers: How many processes; 1 is this one.
    progress: Show a progress bar; None: on a terminal only.
  """

  def run(title: str, units: Sequence[stages.Unit]) -> None:
    todo = [unit for unit in units if stages.result(unit) is None]
    disable = None if progress is None else not progress
    done = len(units) - len(todo)
    with tqdm.tqdm(total=len(units), initial=done, desc=title, disable=disable) as bar:
      if workers == 1:
        for unit in todo:
          _checked(title, unit, functools.partial(stages.run, unit))
          bar.update()
      else:
        _run_in_processes(title, todo, workers, bar)

  return run


def _run_in_processes(
  title: str, units: Sequence[stages.Unit], workers: int, bar: tqdm.tqdm
) -> None:
  # Spawned, because this process may have threads, which forks do not survive.
  pool = concurrent.futures.ProcessPoolExecutor(
    min(workers, max(len(units), 1)),
    mp_context=multiprocessing.get_context("spawn"),
    initializer=_start_worker,
  )
  try:
    futures = {pool.submit(stages.run, unit): unit for unit in units}
    for future in concurrent.futures.as_completed(futures):
      _checked(title, futures[future], future.result)
      bar.update()
  except process.BrokenProcessPool:
    raise errors.InputError(
      f"{title}: a worker process was killed (by the system, if memory ran out: use fewer workers "
      f"then); {_GOES_ON}"
    ) from None
  finally:
    pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
  """Makes a worker end, silently, when it is interrupted or its parent is gone."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  parent = multiprocessing.parent_process()
  assert parent is not None

  def watch() -> None:
    parent.join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _checked(title: str, unit: stages.Unit, work: Callable[[], None]) -> None:
  """Turns errors that have their cause outside into one that names the unit."""
  try:
    work()
  except (errors.InputError, OSError) as error:
    raise errors.InputError(f"{title} of {unit}: {error}; {_GOES_ON}") from None
  except MemoryError:
    raise errors.InputError(
      f"{title} of {unit}: out of memory: use fewer workers; {_GOES_ON}"
    ) from None


def beam(name: Any, options: Any = ()) -> Run:
  """Does units by a runner of Apache Beam, whose workers must see the same files.

  Args:
    name: Such as "DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner", or a runner; None:
      the one that the options name.
    options: Beam's own flags, such as ["--direct_num_workers=4"], or its PipelineOptions.

  Raises:
    InputError: Beam is not installed.
  """
  try:
    import apache_beam
    from apache_beam.options import pipeline_options
  except ImportError as error:
    raise errors.InputError(
      f"Beam runners need Apache Beam ({error}): pip install 'vmsst[opus]'"
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
          | title >> apache_beam.Map(stages.run)
        )
    except Exception as error:
      lines = str(error).strip().splitlines() or [type(error).__name__]
      raise errors.InputError(f"{title} by {name or 'Beam'}: {lines[-1]}; {_GOES_ON}") from error
    missing = [unit for unit in todo if stages.result(unit) is None]
    if missing:
      raise errors.InputError(
        f"{title} by {name or 'Beam'}: no result of {missing[0]} is at {missing[0].path}: its "
        "workers must see the same files as this process (a shared file system)"
      )

  return run
