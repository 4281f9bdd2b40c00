"""Sweeps on many devices at once."""
