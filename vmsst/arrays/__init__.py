"""Array layouts on devices, and device specifications."""

PAD_ID = 0
"""Token id of padding."""
