"""EMS: cross-lingual token reconstruction with contrastive learning, and related models."""
