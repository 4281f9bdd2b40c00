"""Values, files and words that every package uses. Imports nothing of gacprof."""
