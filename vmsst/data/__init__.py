"""Finds, parses and tokenizes bitext files, and makes batches of their pairs."""
