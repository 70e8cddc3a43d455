"""The evaluation sets (`catalog.json`), and lists of files: path, size, id of the blob in Git."""
