"""One module for each foreign format, with its reader and its writer."""
