"""A small runtime that speaks T5X: the same gin names, model interface and checkpoints."""
