"""Learning rates, against closed forms."""

import math

import jax
import numpy as np
import pytest

from vmsst.errors import InputError
from vmsst.train import schedules
from vmsst.train.utils import create_learning_rate_scheduler


def rates(steps, **settings):
  schedule = jax.jit(create_learning_rate_scheduler(**settings))
  return np.array([schedule(step) for step in steps])


@pytest.mark.parametrize(
  ("factors", "expected"),
  [
    ("constant * linear_warmup * rsqrt_decay", lambda t: 0.5 * min(1, t / 40) / max(t, 40) ** 0.5),
    (
      "constant * linear_warmup * rsqrt_normalized_decay",
      lambda t: 0.5 * min(t / 40, (40 / max(t, 40)) ** 0.5),
    ),
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


LINEAR = {"factors": "linear_decay", "warmup_steps": 10}


@pytest.mark.parametrize("steps", [0, 1, 5, 10, 11, 200])
def test_a_slope_to_zero_ends_at_the_last_step_after_the_warm_up(steps):
  slope = schedules.slope_to_zero(steps, warmup_steps=10)
  last, end = rates([max(steps - 1, 10), max(steps, 11)], **LINEAR, decay_factor=slope)
  assert last == pytest.approx(0.5 / max(1, steps - 10), rel=1e-4)
  assert end == pytest.approx(1e-8)


def test_an_unknown_factor_is_refused_and_a_warm_up_may_have_no_steps():
  assert rates([0, 1, 100], warmup_steps=0).tolist() == pytest.approx([1e-8, 0.5, 0.05])
  with pytest.raises(InputError, match=r"unknown factor 'linear_warmpu'.*linear_warmup"):
    create_learning_rate_scheduler(factors="constant * linear_warmpu")
