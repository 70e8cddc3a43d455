"""Arrays on devices: padding, layouts, and the rates of devices."""

PAD_ID = 0
"""The token id of padding."""
