"""Evaluation metrics as pure NumPy functions of embeddings."""
