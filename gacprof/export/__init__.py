"""Checkpoints as folders that transformers and vLLM load, with factors and widths by layer."""
