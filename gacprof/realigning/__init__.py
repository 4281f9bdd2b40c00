"""Checkpoints and models with other sizes: zeros where a dim grows, a cut where it shrinks.

``changes`` says what may change and how, ``values`` makes the new tensors, ``realign`` writes them,
``in_memory`` does so for a loaded model.
"""
