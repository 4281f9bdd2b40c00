"""Kernels by name, alignment tiers by GPU, and the rules made of them.

``names`` reads a kernel's name; ``tiers`` says what each architecture's kernels ask of a row;
``rules`` is the :class:`~gacprof.core.sizes.SizeSource` of a GPU that is not at hand.
"""
