"""Jobs, outputs and locks. No other package locks outputs, resumes jobs or records inputs."""
