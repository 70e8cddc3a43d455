import ml_dtypes
import numpy as np
import pytest

from vmsst.search import device_search, exact_search


@pytest.mark.parametrize(("spread", "repeated"), [(1.0, False), (1e-3, True)])
def test_rounded_products_find_what_exact_ones_find(monkeypatch, spread, repeated):
  """Also if the rounding of bfloat16 exceeds the differences between targets."""
  monkeypatch.setattr(device_search, "_SOURCES", 32)
  monkeypatch.setattr(device_search, "_TARGETS", 128)
  rng = np.random.default_rng(1)
  center_D = rng.normal(size=32)
  source_ND, target_ND = (center_D + spread * rng.normal(size=[count, 32]) for count in (50, 400))
  again, compiled = [], device_search._step

  def step(mesh, backward):
    inner = compiled(mesh, backward)
    return lambda *args: again.append(args) or inner(*args)

  monkeypatch.setattr(device_search, "_step", step)
  near = exact_search.nearest_in_blocks(
    source_ND, np.split(target_ND, [150]), 3, engine=device_search.compare
  )
  assert bool(again) == repeated

  unit_ND, unit_MD = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (source_ND, target_ND))
  score_NM = unit_ND @ unit_MD.T
  best_NK = -np.sort(-score_NM, axis=1)[:, :3]
  np.testing.assert_allclose(near.score_NK, best_NK, atol=5e-7)
  np.testing.assert_allclose(np.take_along_axis(score_NM, near.index_NK, 1), best_NK, atol=5e-7)

  rounded_ND, rounded_MD = (x.astype(ml_dtypes.bfloat16).astype(float) for x in (unit_ND, unit_MD))
  place_N = (rounded_ND @ rounded_MD.T).argmax(axis=1)
  loss_N = best_NK[:, 0] - score_NM[np.arange(50), place_N]
  assert (loss_N > 1e-6).any() == repeated  # products in bfloat16 alone find others
