"""A small training runtime with the gin names, the model interface and the checkpoints of T5X."""
