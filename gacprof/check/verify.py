"""Same function? Two checkpoints, the same inputs, and by how much their logits differ.

Zero padding changes nothing in real arithmetic but may change the order in which a matrix product
is summed, hence its rounding. What one operation may differ by is what
``torch.testing.assert_close`` allows it by default; a model rounds its residual stream a few times
a layer, and independent roundings add up like the square root of their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gacprof.check.models import (
    Checkpoint,
    loaded,
    random_ids,
    text_config,
    torch_device,
    vocabulary,
)
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import CheckpointError

SEQUENCES = 2

ONE_OPERATION = {"float64": 1e-7, "float32": 1.3e-6, "bfloat16": 1.6e-2, "float16": 1e-3}
"""Relative tolerance of one operation computed in a dtype: torch.testing.assert_close's."""

ROUNDINGS_PER_LAYER = 8
"""Norm, q·k, softmax·v, o, add, norm, gate·up, down-and-add: what a decoder layer rounds."""

ONE_ROUNDING = {"float64": 2**-53, "float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11}
"""The largest relative error of a value that is rounded to a dtype (half its epsilon)."""


@dataclass(frozen=True)
class Verification:
    """By how much the logits of ``other`` differ from those of ``checkpoint``.

    ``max_error`` is the largest difference of a logit and ``rms_error`` that of all logits, both
    as a share of the same measure of the first model's logits. ``mean_kl`` is the divergence of
    next-token distributions in nats, ``same_argmax`` the share of positions with the same most
    likely token. ``merged`` counts layers that are factored in one model and dense in the other:
    rounding their products is in the ``tolerance``. ``ok``: ``max_error`` is within it.
    """

    checkpoint: str
    other: str
    dtype: str
    device: str
    positions: int
    max_error: float
    rms_error: float
    mean_kl: float
    same_argmax: float
    merged: int
    tolerance: float
    ok: bool


def verify(
    checkpoint: Checkpoint,
    other: Checkpoint,
    *,
    tokens: int = 32,
    dtype: str = "float32",
    device: str | None = "cpu",
) -> Verification:
    """Say whether two models are the same function.

    Both models get the same random tokens. That two outputs are equal to the bit is never claimed;
    the error is compared with what another order of summing, and the rounding of merged factors,
    may move a logit by.

    Parameters
    ----------
    checkpoint
        The reference.
    other
        The checkpoint to compare with it.
    tokens
        Length of the two sequences that are compared.
    dtype
        What is computed in; in float32 rounding hides least.
    device
        "cpu", "cuda" or "cuda:1"; None: the accelerator where there is one.

    Returns
    -------
    Verification
        The errors, the tolerance, and whether they are within it.

    Raises
    ------
    CheckpointError
        A checkpoint is no model, has logits that are not finite, or another vocabulary.
    """
    where = torch_device(device)
    expected, layers = logits_of(checkpoint, tokens, dtype, where)
    logits, _ = logits_of(other, tokens, dtype, where)
    if logits.shape != expected.shape:
        raise CheckpointError(
            f"{other} cannot be compared with {checkpoint}: its logits are "
            f"{list(logits.shape)}, not {list(expected.shape)}"
        )
    log_p, log_q = expected.log_softmax(-1), logits.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)
    difference = logits - expected
    inventories = inventory_of(checkpoint), inventory_of(other)
    merged = merged_dtypes(*inventories)
    tolerance = math.hypot(tolerance_of_computing(dtype, layers), tolerance_of_merging(merged))
    max_error = float(difference.abs().max() / expected.abs().max())
    return Verification(
        checkpoint=inventories[0].path,
        other=inventories[1].path,
        dtype=dtype_name(dtype),
        device=str(where),
        positions=kl.numel(),
        max_error=max_error,
        rms_error=float(difference.norm() / expected.norm()),
        mean_kl=float(kl.mean()),
        same_argmax=float((expected.argmax(-1) == logits.argmax(-1)).double().mean()),
        merged=len(merged),
        tolerance=tolerance,
        ok=max_error <= tolerance,
    )


def logits_of(
    checkpoint: Checkpoint, tokens: int, dtype: str, device: torch.device
) -> tuple[torch.Tensor, int]:
    """A model's logits [sequences, tokens, vocabulary] in float64 on the CPU, and its layers."""
    model = loaded(checkpoint, dtype, device)
    ids = random_ids(vocabulary(model), (SEQUENCES, tokens))
    with torch.inference_mode():
        logits = model(input_ids=ids.to(device), use_cache=False).logits.double().cpu()
    if not logits.isfinite().all():
        raise CheckpointError(f"{checkpoint}: its logits are not all finite in {dtype}")
    return logits, int(text_config(model).num_hidden_layers)


def tolerance_of_computing(dtype: str, layers: int) -> float:
    """What another order of summing may move a logit by, as a share of the largest logit."""
    return ONE_OPERATION[dtype_name(dtype)] * math.sqrt(ROUNDINGS_PER_LAYER * layers)


def tolerance_of_merging(dtypes: list[str]) -> float:
    """What rounding the products of merged factors may move a logit by: one rounding to its stored
    dtype for every weight that was merged."""
    return math.hypot(*(ONE_ROUNDING.get(dtype, ONE_ROUNDING["bfloat16"]) for dtype in dtypes))


def merged_dtypes(inventory: Inventory, other: Inventory) -> list[str]:
    """The stored dtypes of layers that are factored in one checkpoint and dense in the other, with
    the same sides."""
    others = {module.name: module for module in other.modules if module.gemms}
    dtypes = []
    for module in inventory.modules:
        match = others.get(module.name, module)
        sides = (module.out_features, module.in_features)
        if (match.out_features, match.in_features) != sides:
            continue
        if (module.kind == "dense") != (match.kind == "dense"):
            dtypes.append(module.dtype if module.kind == "dense" else match.dtype)
    return dtypes
