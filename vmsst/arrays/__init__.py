"""Array layouts on devices, and device specifications."""

PAD_ID = 0  # token id of padding
