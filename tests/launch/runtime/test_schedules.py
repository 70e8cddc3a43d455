import math

import jax
import numpy as np
import pytest

from vmsst.errors import InputError
from vmsst.launch.runtime.schedules import create_learning_rate_scheduler

STEPS = [0, 1, 10, 3999, 4000, 4001, 16000, 100000]


def rates(steps, **settings):
  schedule = jax.jit(create_learning_rate_scheduler(**settings))
  return np.array([schedule(step) for step in steps])


def test_the_papers_schedule():
  actual = rates(
    STEPS,
    factors="constant * linear_warmup * rsqrt_normalized_decay",
    base_learning_rate=1e-3,
    warmup_steps=4000,
  )
  expected = [1e-8] + [1e-3 * min(t / 4000, math.sqrt(4000 / t)) for t in STEPS[1:]]
  np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_noam_schedule():
  actual = rates([0, 19, 20, 100], base_learning_rate=0.1, warmup_steps=20)
  expected = [1e-8, 0.1 * (19 / 20) / math.sqrt(20), 0.1 / math.sqrt(20), 0.01]
  np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("factors", "expected"),
  [
    ("constant", lambda t: 0.5),
    ("linear_decay", lambda t: 0.5 * min(t / 40, 1 + 0.01 * (40 - t))),
    ("constant * decay_every", lambda t: 0.5 * 0.01 ** (t // 30)),
    (
      "constant*cosine_decay",
      lambda t: 0.5 * (1 + math.cos(math.pi * (max(0, (t - 40) / 80) % 1))) / 2,
    ),
  ],
)
def test_factors_with_an_offset(factors, expected):
  steps = [0, 1000, 1001, 1029, 1030, 1039, 1040, 1041, 1075, 1119, 1120, 1135, 5000]
  actual = rates(
    steps,
    factors=factors,
    warmup_steps=40,
    decay_factor=0.01,
    steps_per_decay=30,
    steps_per_cycle=80,
    step_offset=1000,
  )
  floored = [max(expected(max(0, step - 1000)), 1e-8) for step in steps]
  np.testing.assert_allclose(actual, floored, rtol=1e-5, atol=1e-7)


def test_a_schedule_that_cannot_work_is_refused_at_once():
  with pytest.raises(InputError, match=r"unknown factor 'linear_warmpu'.*linear_warmup"):
    create_learning_rate_scheduler(factors="constant * linear_warmpu")
  with pytest.raises(InputError, match="warmup_steps = 0"):
    create_learning_rate_scheduler(warmup_steps=0)
