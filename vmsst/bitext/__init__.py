"""Bitext files: readers of every format, and files derived from them."""
