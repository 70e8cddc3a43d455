"""EMS: cross-lingual token reconstruction and sentence contrastive learning (room reserved; empty so far)."""
