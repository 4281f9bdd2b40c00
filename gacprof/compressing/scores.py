"""Importance of a weight: four scores of the field, each of a group of a weight's rows.

=========== ==========================================================================
magnitude   ‖W‖_F
activation  ‖X‖_F of the layer's inputs over the calibration text
gradient    Σ |∂L/∂h · h| of its outputs h, mean over windows
fisher      √(mean over windows of (∂L/∂W)²), mean over entries
=========== ==========================================================================

The first needs no text, the second a forward pass, the others a backward pass (``activations.py``).
PaLU averages the Fisher information as above; as Eq. 4 only weighs dims against each other, no
scale matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gacprof.compressors.method import Target
from gacprof.core.errors import CompressionError

if TYPE_CHECKING:
    import torch

SCORES = ("magnitude", "activation", "gradient", "fisher")
BACKWARD = ("gradient", "fisher")


def check_score(name: str | None) -> None:
    if name is not None and name not in SCORES:
        raise CompressionError(f"the score is '{name}': it must be one of {', '.join(SCORES)}")


def scores_of(
    name: str, targets: Iterable[Target], rows: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """Importance by dim name. ``rows`` are by target: of each row of its weight the sum of squares
    (magnitude), the square of the one score (activation), or its sum (gradient, fisher)."""
    found = {}
    for target in targets:
        for i, dim in enumerate(target.dims):
            part = rows[target.name].double()
            if name == "activation":
                found[dim] = float(part.sum().sqrt())
                continue
            part = part[i * target.rows : (i + 1) * target.rows]
            total = float(part.sum())
            found[dim] = {
                "magnitude": total**0.5,
                "gradient": total,
                "fisher": total / (target.rows * target.in_features),
            }[name]
    return found
