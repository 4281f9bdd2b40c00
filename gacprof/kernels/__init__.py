"""Which kernel ran, and why.

:func:`parse` reads a kernel's name, :func:`attach` groups the kernels of one call;
``tiers.py`` says what alignment each architecture needs, :mod:`sdpa` which attention backend
serves a shape, :mod:`fa2` which templates a PyTorch build holds, :mod:`evidence` what counters saw,
:mod:`onednn` which CPU implementation serves. Nothing here needs a GPU, and nothing imports torch
until a live question is asked. :mod:`gacprof.explaining` turns all of it into causes.
"""

from gacprof.kernels.names import Kernel, KernelGroup, attach, parse

__all__ = ["Kernel", "KernelGroup", "attach", "parse"]
