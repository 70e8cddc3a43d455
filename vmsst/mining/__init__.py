"""Jobs over text files: bitext mining, hard-negative mining, text search and pair scoring."""
