"""Checkpoints and models with other sizes: padded with zeros, cut, or factors merged."""
