"""Former name of `outputs`, until every user has moved."""

from vmsst.jobs.outputs import *  # noqa: F403
