"""Checkpoint × source of sizes → the cost of each dim's size, and the size to pad it to.

``source`` opens a map or a GPU's rules; ``diagnosis`` asks it of a checkpoint's dims, by the
verdicts beside padded coupled dims that ``sizes`` collects; ``explain`` and ``safe_ranks`` of one.
"""
