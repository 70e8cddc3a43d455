"""Reports on evaluations: an HTML page, with figures and published numbers, and Markdown."""
