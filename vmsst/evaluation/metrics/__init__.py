"""Metrics: functions from vectors or scores to numbers."""
