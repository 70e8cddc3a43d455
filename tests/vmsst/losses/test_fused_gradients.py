import pytest

from vmsst.arrays import devices
from vmsst.losses import fused_gradients

MT5 = 250112


@pytest.mark.parametrize("device", devices.DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("columns", [60000, MT5 // 8, MT5])
def test_a_chunk_leaves_time_to_the_matmuls_unless_the_memory_is_too_small(device, columns):
  chunk = fused_gradients.default_chunk(columns, device)
  logits = 6 * chunk * columns / device.memory
  assert logits <= 1 / 12 or chunk == 512
  # Per element of the kernel: 12 bytes, and 6 FLOPs per row.
  share = (12 / device.bandwidth) / (6 * chunk / device.flops)
  assert share <= 0.1 or logits > 1 / 24  # twice as many rows would not fit
