"""Exports encoders for other programs: sentence-transformers, safetensors, StableHLO, ONNX."""
