"""Nearest neighbors and margins of sentence vectors: arrays in, arrays out."""
