"""Evaluation of encoders: benchmarks, metrics and reports."""
