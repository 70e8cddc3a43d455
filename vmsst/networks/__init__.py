"""Flax modules: encoders, pooling and heads. No losses and no I/O."""
