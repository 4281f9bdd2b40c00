"""Checkpoints and models with other sizes: zeros where a dim grows, a cut where it shrinks, one
weight where factors are merged."""
