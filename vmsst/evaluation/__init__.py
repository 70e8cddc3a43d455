"""Encoder evaluation: benchmarks, metrics and reports."""
