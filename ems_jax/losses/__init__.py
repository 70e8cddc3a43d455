"""Losses for EMS and related models, as pure functions of arrays."""
