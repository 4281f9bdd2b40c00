"""Where Nsight Compute is: on PATH, or where its installers put it."""

from __future__ import annotations

import shutil
from pathlib import Path

USUAL_PLACES = ("usr/local/cuda/bin/ncu", "opt/nvidia/nsight-compute/*/ncu")
"""Of the CUDA toolkit, and of NVIDIA's package ``nsight-compute``; below the root."""


def find_ncu() -> str | None:
    """The ``ncu`` program, or None."""
    if found := shutil.which("ncu"):
        return found
    for pattern in USUAL_PLACES:
        if listed := sorted(Path("/").glob(pattern)):
            return str(listed[-1])
    return None
