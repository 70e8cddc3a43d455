"""Bitext files: finding, parsing and tokenizing them, and batches of their pairs."""
