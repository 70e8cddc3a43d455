"""Losses as pure functions of arrays."""
