"""EMS and related models: each combines a network with its losses and has T5X's model interface."""
