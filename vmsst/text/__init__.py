"""Text to token ids: vocabularies, their training, word splitting and long texts."""
