"""Models: EMS networks wired to losses behind the T5X model interface."""
