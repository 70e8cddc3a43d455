"""Sentence vectors on disk, and how to compute them for whole files."""
