"""Metrics, computed from vectors, scores or alignments."""
