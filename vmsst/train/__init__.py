"""A small training runtime that uses T5X's gin names, model interface and checkpoint format."""
