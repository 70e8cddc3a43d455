"""Imports weights of other libraries as checkpoints; each format is a table of rules."""
