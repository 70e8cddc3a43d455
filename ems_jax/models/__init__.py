"""EMS models, which combine a network and its losses behind T5X's model interface."""
