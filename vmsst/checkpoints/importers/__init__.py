"""Importers: weights of other libraries and releases become encoders of this one."""
