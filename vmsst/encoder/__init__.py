"""Loads encoders, computes sentence vectors, and generates text from them."""
