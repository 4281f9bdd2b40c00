"""Checkpoint × source of sizes → the cost of each dim's size, and the size to pad it to."""
