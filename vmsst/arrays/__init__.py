"""Arrays on devices: padding, layouts, and device specifications."""

PAD_ID = 0
"""Token id of padding."""
