"""Cleans OPUS releases on disk, removes duplicates, and combines them in one training dataset."""
