"""Outputs, locks and resumption: the only package that persists."""
