"""Checkpoint × source of sizes → the cost of each dim's size, and the size to pad it to.

``source`` opens a map or a GPU's rules; ``diagnosis``, ``explain`` and ``safe_ranks`` ask it, by
the verdicts beside padded coupled dims that ``sizes`` collects.
"""
