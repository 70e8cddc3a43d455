"""What a trainer calls: networks wired to losses behind the T5X model interface."""
