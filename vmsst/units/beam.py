"""Does units with Apache Beam."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from vmsst import errors
from vmsst.units import base, engines
from vmsst.units.base import Unit

_WORKERS = 64  # An estimate: runners do not report it.


@dataclasses.dataclass(frozen=True)
class Beam(engines.Engine):
  """A Beam runner, whose workers must see the same files as this process.

  Attributes:
    runner: "DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner" or the like, or a runner;
      None: the one that the options name.
    options: Flags of Beam, such as ["--direct_num_workers=4"], or its PipelineOptions.
  """

  runner: Any = None
  options: Any = ()

  in_process = False

  @property
  def this_machine(self) -> bool:  # type: ignore[override]
    """Whether units are made on this machine only."""
    return self.runner == "DirectRunner"

  def work(self, title: str, units: Sequence[Unit]) -> Iterator[Unit]:
    """See `engines.Engine`; yields the units when all are done."""
    with errors.requires("opus", "a Beam runner"):
      import apache_beam
      from apache_beam.options import pipeline_options
    options = self.options
    if not isinstance(options, pipeline_options.PipelineOptions):
      options = pipeline_options.PipelineOptions(list(options))
    try:
      with apache_beam.Pipeline(runner=self.runner, options=options) as pipeline:
        _ = (
          pipeline
          | "Tasks" >> apache_beam.Create(engines.tasks(units, _WORKERS), reshuffle=False)
          | "Spread" >> apache_beam.Reshuffle()
          | title >> apache_beam.Map(functools.partial(engines.do_task, title))
        )
    except Exception as error:
      lines = str(error).strip().splitlines() or [type(error).__name__]
      raise errors.InputError(
        f"{title} by {self.runner or 'Beam'}: {lines[-1]}; {base.RESUME}"
      ) from error
    yield from units
