"""Writes encoders as folders that other programs open."""
