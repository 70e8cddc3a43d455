"""Training data from OPUS releases on disk: read, cleaned, without duplicates, in one dataset."""
