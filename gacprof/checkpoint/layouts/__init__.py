"""Meaning of names and shapes. No tensor data is read, and nothing depends on a folder's name."""
