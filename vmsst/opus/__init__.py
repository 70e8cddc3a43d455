"""Cleans and deduplicates OPUS releases on disk, and combines them into a training dataset."""
