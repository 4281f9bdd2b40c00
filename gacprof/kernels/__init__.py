"""Kernels by their names, and the rules on sizes that follow from them.

``names`` reads a kernel's name, ``dispatch`` what a PyTorch launches on a GPU, ``flash`` how
FlashAttention-2 splits keys, ``attention`` which kernel serves a head_dim; ``rules`` is the
:class:`~gacprof.core.sizes.SizeSource` of a GPU that is not at hand; ``requirements`` holds what
engines require.
"""
