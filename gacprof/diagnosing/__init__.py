"""Judge each size of a checkpoint by a source of sizes, and find the size to pad it to.

``source`` opens a map or a GPU's rules; ``sizes`` collects its verdicts on dims beside their padded
coupled dims; ``diagnosis`` reports them. ``explain`` and ``safe_ranks`` are for one size or layer.
"""
