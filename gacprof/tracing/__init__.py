"""Kernels that a profiler recorded on the user's GPU: which ran misaligned, why, what it cost.

``recording`` is what every reader returns; ``kineto`` reads PyTorch's traces, ``summaries`` those
of Nsight Systems and Nsight Compute, which have no shapes; ``runs`` puts equal launches together,
``weights`` are the checkpoint's, ``findings`` say why a product ran misaligned; ``trace`` is the
verb.
"""
