"""Exports encoders for other programs: sentence-transformers, safetensors, ONNX."""
