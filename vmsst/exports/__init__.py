"""Exports encoders for other programs: sentence-transformers, plain safetensors, StableHLO."""
