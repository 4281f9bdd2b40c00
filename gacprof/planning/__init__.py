"""A size for every dim: the most quality, or the least padding, within limits."""
