"""Finds texts by their vectors: bitext and hard-negative mining, alignment and text search."""
