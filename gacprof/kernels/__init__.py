"""Kernels by name, and the rules made of what they ask of sizes.

``names`` reads a kernel's name, ``dispatch`` what a PyTorch launches on a GPU, ``flash`` how
FlashAttention-2 splits keys, ``attention`` which kernel serves a head_dim; ``rules`` is the
:class:`~gacprof.core.sizes.SizeSource` of a GPU that is not at hand; ``requirements`` are those of
engines.
"""
