"""Metrics: vectors or scores in, numbers out."""
