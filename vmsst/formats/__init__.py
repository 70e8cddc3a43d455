"""Readers and writers for file formats. Each module handles one format."""
