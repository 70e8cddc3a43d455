"""Metrics that are computed from vectors, scores or alignments."""
