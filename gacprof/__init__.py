"""gacprof: which tensor dimensions your GPU serves well, why, and how to move a model onto them."""

__version__ = "0.3.0"
