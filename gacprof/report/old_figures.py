"""Figures that an earlier report or survey left in the folder, and that this one did not draw."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from gacprof.operators import OPERATORS

_AXIS = "|".join(f"{name}-(?:{'|'.join(op.dims)})" for name, op in OPERATORS.items())
_OURS = re.compile(
    rf"(?:bench|figure-\d+-[a-z0-9-]+|gemm-8k-[A-Z]|\d+-(?:{_AXIS}))\.(?:svg|png)", re.ASCII
)
"""Every name that :mod:`.page` and :mod:`gacprof.survey.exhibits` give a figure."""


def remove_old(folder: Path, drawn: Collection[str]) -> None:
    """Remove figures under names of ours whose stem is not in ``drawn``; leave anything else."""
    if not folder.is_dir():
        return
    for file in sorted(folder.iterdir()):
        if _OURS.fullmatch(file.name) and file.stem not in drawn:
            file.unlink()
