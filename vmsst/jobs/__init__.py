"""Jobs, outputs and locks. No other package locks, resumes or records provenance."""
