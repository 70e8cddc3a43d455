"""Finds, parses and tokenizes bitext files, and batches their sentence pairs."""
