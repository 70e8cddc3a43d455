"""Sentence vectors: computes them for whole files and stores them on disk."""
