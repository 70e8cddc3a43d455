"""Flax modules for EMS and related models. No losses and no I/O."""
