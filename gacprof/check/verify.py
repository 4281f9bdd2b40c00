"""Same function? Two checkpoints: weights entry by entry, logits on the same tokens.

Rounding hides small differences, and a few tokens reach neither every row of an embedding nor every
expert or neuron. So weights are compared first: equal ones, zeros where dims have grown, and
factors that are multiplied out. Where weights differ in any other way, logits can show that the
function differs, and never that it does not.

What rounding does to the logits is measured: each model runs again, in the next wider type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from gacprof.check.models import Checkpoint, random_ids, torch_device, vocabulary
from gacprof.check.weights import WeightComparison, compare_weights
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.configs import width_keys, with_widths
from gacprof.checkpoint.layouts.factors import FACTORS
from gacprof.checkpoint.load import config_of, load_model, one_line_errors, torch_dtype
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import CheckpointError, ConfigError, require_one_of

SEQUENCES = 2

WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
"""The type that the rounding of one is measured in."""

NO_FUNCTION = {"architectures", "dtype", "torch_dtype", "transformers_version"}
NO_FUNCTION |= {row.rank_key for row in FACTORS}
NO_FUNCTION |= {"factor_ranks", "layer_heads", "layer_splits", "layer_widths"}
"""Keys of a config that say how weights are stored and by whom; the last four are an export's."""

SAME_WIDTH = 2
"""Put in place of all widths of two configs before these are compared. Even, since some keys hold
twice a dim's size."""

VerifyVerdict = Literal["same", "different", "undecided"]


@dataclass(frozen=True)
class LogitErrors:
    """By how much two models' logits differ on the same tokens; None where nothing was run.

    Attributes
    ----------
    positions
        How many tokens have their logits compared.
    max_error, rms_error
        The largest difference of a logit, over the reference's largest logit; the norm of all
        differences, over that of the reference's logits.
    tolerance
        What rounding may make of ``max_error``: the sum of both models' measured errors.
    mean_kl
        Divergence of next-token distributions in nats.
    same_argmax
        Share of positions with the same most likely token.
    agree
        False where ``max_error`` exceeds the tolerance.
    """

    positions: int = 0
    max_error: float | None = None
    rms_error: float | None = None
    tolerance: float | None = None
    mean_kl: float | None = None
    same_argmax: float | None = None
    agree: bool = True


@dataclass(frozen=True, kw_only=True)
class Verification(LogitErrors):
    """Whether two checkpoints are the same function, and what that rests on.

    Attributes
    ----------
    verdict
        ``different`` where logits differ by more than rounding; ``undecided`` where they do not,
        but ``differing`` is not empty; else ``same``.
    equal, padded, merged
        How many tensors have the same values; the same but for zeros where dims are larger; and how
        many layers' factors are multiplied out in one of them. They need no tokens.
    differing
        All other tensors, and the keys of the config that differ and do not follow from sizes.
    """

    schema: ClassVar[str] = "gacprof.Verification/2"

    checkpoint: str
    other: str
    dtype: str
    device: str
    verdict: VerifyVerdict
    equal: int
    padded: int
    merged: int
    differing: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True where the two are the same function."""
        return self.verdict == "same"


def verify(
    checkpoint: Checkpoint,
    other: Checkpoint,
    *,
    tokens: int = 32,
    dtype: str = "float32",
    device: str | None = "cpu",
) -> Verification:
    """Say whether two models are the same function.

    Weights are compared entry by entry; then both models get the same random tokens. Their logits
    may differ by what rounding moves them by, which is measured.

    Parameters
    ----------
    checkpoint
        The reference.
    other
        The checkpoint to compare with it.
    tokens
        Length of the two sequences that are compared.
    dtype
        What is computed in; in float32 rounding hides least. One model is in memory at a time, also
        in the next wider type: 8 bytes a parameter for float32, 4 for bfloat16.
    device
        "cpu", "cuda" or "cuda:1"; None: the accelerator where there is one.

    Returns
    -------
    Verification
        The verdict, what it rests on, and what nobody looked at.

    Raises
    ------
    CheckpointError
        A checkpoint is no model, has logits that are not finite, or another vocabulary.
    ConfigError
        The dtype is none of float32, bfloat16 and float16, or there are no tokens.
    """
    computed = dtype_name(dtype)
    require_one_of("dtype of verify", computed, WIDER)
    if tokens < 1:
        raise ConfigError(f"tokens is {tokens}: give a number from 1 on")
    where = torch_device(device)
    inventories = inventory_of(checkpoint), inventory_of(other)
    weights = compare_weights(*inventories)
    settings = differing_settings(*inventories)
    differing = (*weights.differing, *settings)
    logits = compare_logits(inventories, weights, tokens, computed, where)
    verdict: VerifyVerdict = "same"
    if not logits.agree:
        verdict = "different"
    elif differing:
        verdict = "undecided"
    return Verification(
        checkpoint=inventories[0].path,
        other=inventories[1].path,
        dtype=computed,
        device=str(where),
        verdict=verdict,
        equal=weights.equal,
        padded=weights.padded,
        merged=len(weights.merged),
        differing=differing,
        **vars(logits),
    )


def differing_settings(inventory: Inventory, other: Inventory) -> list[str]:
    """Return the keys of two configs whose values differ, but for sizes that tensors say anyway.

    What a key says by none, false or nothing at all is the same: another version leaves it out.
    """
    settings = settings_without_widths(inventory)
    others = settings_without_widths(other)
    keys = sorted((settings.keys() | others.keys()) - NO_FUNCTION)
    differing = [key for key in keys if (settings.get(key) or None) != (others.get(key) or None)]
    return [f"config.json: {key}" for key in differing]


def settings_without_widths(inventory: Inventory) -> dict[str, Any]:
    """Return a checkpoint's config, all widths the same."""
    settings = config_of(inventory).to_dict()
    sizes: dict[str, int] = {}
    for key in width_keys(settings, inventory.dims):
        sizes |= {name: int(SAME_WIDTH * times) for name, times in key.times.items()}
    return with_widths(settings, inventory.dims, sizes)


def compare_logits(
    inventories: Sequence[Inventory],
    weights: WeightComparison,
    tokens: int,
    dtype: str,
    device: torch.device,
) -> LogitErrors:
    """Compare the logits of two checkpoints on the same tokens.

    A model's rounding error is measured: its logits in the next wider type, less those in this one.
    Two models of one function may differ by the sum of both errors (the triangle inequality), also
    where rounding sends a token to another expert. Where products of factors were rounded to a type
    coarser than the one that is computed in, the error is that of the coarser type.
    """
    inventory, other = inventories
    expected = logits_of(inventory, tokens, dtype, device)
    logits = logits_of(other, tokens, dtype, device)
    if logits.shape != expected.shape:
        raise CheckpointError(
            f"{other.path} cannot be compared with {inventory.path}: its logits are "
            f"{list(logits.shape)}, not {list(expected.shape)}"
        )
    if not expected.numel():
        return LogitErrors()
    coarser = [stored for stored in weights.merged if rounding(stored) > rounding(dtype)]
    second_dtype = max(coarser, key=rounding, default=WIDER[dtype])
    allowed = 0.0
    for side, computed in zip(inventories, (expected, logits), strict=True):
        second = logits_of(side, tokens, second_dtype, device)
        allowed += float((second - computed).abs().max())
    difference = logits - expected
    error = float(difference.abs().max())
    largest = expected.abs().max()
    log_p, log_q = expected.log_softmax(-1), logits.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)
    return LogitErrors(
        positions=kl.numel(),
        max_error=float(error / largest),
        rms_error=float(difference.norm() / expected.norm()),
        tolerance=float(allowed / largest),
        mean_kl=float(kl.mean()),
        same_argmax=float((expected.argmax(-1) == logits.argmax(-1)).double().mean()),
        agree=error <= allowed,
    )


def rounding(dtype: str) -> float:
    """Return the distance from 1 to the next larger number of a type."""
    return torch.finfo(torch_dtype(dtype)).eps


def logits_of(inventory: Inventory, tokens: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Return a model's logits [sequences, tokens, vocabulary] in float64 on the CPU; none for a
    model that does not read and write text."""
    model = load_model(inventory, dtype=dtype, device=device)
    with one_line_errors(inventory), torch.inference_mode():
        logits = run(model, tokens, device).double().cpu()
    if not logits.isfinite().all():
        raise CheckpointError(f"{inventory.path}: its logits are not all finite in {dtype}")
    return logits


def run(model: Any, tokens: int, device: torch.device) -> torch.Tensor:
    """Return the logits for the token ids that all models get; an encoder-decoder gets them on both
    sides. None for a model that does not read and write text."""
    if model.main_input_name != "input_ids" or model.get_output_embeddings() is None:
        return torch.empty(0)
    ids = random_ids(vocabulary(model), (SEQUENCES, tokens)).to(device)
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    logits: torch.Tensor = model(**inputs).logits
    return logits
