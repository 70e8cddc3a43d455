"""EMS, cross-lingual token reconstruction with contrastive learning: still to come."""
