import contextlib
import signal

import pytest

from vmsst.process import interrupts


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def interrupt(request, monkeypatch):
  """Returns a function that sends this process a signal, which raises KeyboardInterrupt."""

  def stop(number, frame):
    raise KeyboardInterrupt

  former = signal.signal(request.param, stop)
  yield lambda: signal.raise_signal(request.param)
  signal.signal(request.param, former)


def test_what_is_made_and_removed_as_a_whole_is_not_interrupted(interrupt):
  done = []

  @contextlib.contextmanager
  def made():
    with interrupts.Uninterrupted() as stack:
      interrupt()
      done.append("made")
      stack.callback(lambda: (interrupt(), done.append("removed")))
      with stack.outside():
        yield

  def work():
    with interrupts.Uninterrupted() as stack:
      stack.enter_context(made())  # The signal waits for `outside`.
      done.append("entered")
      with stack.outside():
        done.append("not reached")

  with pytest.raises(KeyboardInterrupt):
    work()
  assert done == ["made", "entered", "removed"]
  with pytest.raises(KeyboardInterrupt):
    interrupt()  # It has its handler again.


def test_long_work_lets_waiting_signals_interrupt(interrupt):
  with interrupts.Uninterrupted():
    interrupts.check()
    interrupt()
    with pytest.raises(KeyboardInterrupt):
      interrupts.check()
