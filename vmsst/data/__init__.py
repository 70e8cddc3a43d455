"""Bitext files: finding, parsing and tokenizing them, and files derived from them."""
