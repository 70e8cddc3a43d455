"""Downloads public data: OPUS releases and evaluation sets of benchmarks.

Downloads use HTTPS, resume after interruption, and are checked before they are renamed into place.
"""
