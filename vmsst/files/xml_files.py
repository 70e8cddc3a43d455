"""Errors of parsing XML."""

from xml.parsers import expat

PARSE_ERRORS = (expat.ExpatError, LookupError, ValueError)
"""The errors of expat: `ExpatError`; the others for encodings that it does not support."""
