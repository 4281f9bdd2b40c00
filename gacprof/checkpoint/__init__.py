"""Checkpoints: read from headers, recognised by structure, described by an inventory."""
