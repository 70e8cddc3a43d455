"""The token id of padding."""

PAD_ID = 0
