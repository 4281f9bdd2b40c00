"""Check that two checkpoints are the same function: weights entry by entry, then logits.

Rounding hides small differences, and a few tokens reach neither every row of an embedding nor every
expert or neuron. So weights are compared first; where they differ, logits can show that the
function differs, and never that it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from gacprof.check.models import Checkpoint, random_ids, torch_device, vocabulary
from gacprof.check.weights import compare_weights
from gacprof.checkpoint.config import config_with_groups
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.configs import width_keys, with_widths
from gacprof.checkpoint.layouts.factors import FACTORS
from gacprof.checkpoint.load import config_of, load_model, one_line_errors, torch_dtype
from gacprof.checkpoint.scan import inventory_of
from gacprof.checkpoint.storage import stated_quantisation
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import CheckpointError, ConfigError, require_one_of
from gacprof.core.results import Result

SEQUENCES = 2
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
"""The type that the rounding of one is measured in."""
NO_FUNCTION = {"architectures", "dtype", "torch_dtype", "transformers_version"}
NO_FUNCTION |= {"compression_config"}  # compared by itself
NO_FUNCTION |= {row.rank_key for row in FACTORS}
NO_FUNCTION |= {"factor_ranks", "layer_heads", "layer_splits", "layer_widths"}
"""Keys of a config that say how weights are stored and by whom; the last four are an export's."""
SAME_WIDTH = 2  # all widths of compared configs; even, since some keys hold twice a dim's size

VerifyVerdict = Literal["same", "different", "undecided"]


@dataclass(frozen=True)
class LogitErrors:
    """The differences of two models' logits on the same tokens; None where nothing was run."""

    positions: int = 0
    """How many tokens have their logits compared."""
    max_error: float | None = None
    """The largest difference of a logit, over the reference's largest logit."""
    rms_error: float | None = None
    """The norm of all differences, over that of the reference's logits."""
    tolerance: float | None = None
    """What rounding may make of ``max_error``: the sum of both models' measured errors."""
    mean_kl: float | None = None
    """Divergence of next-token distributions in nats."""
    same_argmax: float | None = None
    """Share of positions with the same most likely token."""
    agree: bool = True
    """False where ``max_error`` exceeds the tolerance."""


@dataclass(frozen=True, kw_only=True)
class Verification(LogitErrors, Result):
    """A verdict on whether two checkpoints are the same function, and what it rests on.

    They are ``different`` where logits differ by more than rounding; ``undecided`` where they do
    not, but ``differing`` names tensors, or keys of the config that do not follow from sizes.
    ``equal`` tensors have the same values, ``padded`` ones but for what padding adds; ``merged``
    layers' factors are multiplied out in one of them. ``not_run`` says why there are no logits.
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
    not_run: str = ""

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
    """Check that two models compute the same.

    Weights are compared entry by entry, then logits on the same random tokens. These may differ by
    what rounding moves them by, which is measured. Quantised weights are run where the library of
    their tool is installed; else the comparison of all entries stands alone.

    Parameters
    ----------
    checkpoint
        The original model.
    other
        The model to compare with it.
    tokens
        The length of the two sequences that are compared.
    dtype
        The type to compute in; in float32 rounding hides least. One model is in memory at a time,
        also in the next wider type: 8 bytes a parameter for float32, 4 for bfloat16.
    device
        cpu, cuda or cuda:1; in Python None takes the accelerator, where there is one.

    Raises
    ------
    CheckpointError
        A checkpoint is no model, has logits that are not finite, or another vocabulary.
    ConfigError
        The dtype is none of float32, bfloat16 and float16, or there are no tokens.

    Examples
    --------
    >>> model = "tests/fixtures/checkpoints/asvd_mha_r1"
    >>> aligned = gacprof.realign(model, "pad8", "padded")
    >>> verification = gacprof.verify(model, aligned)
    >>> verification.ok, verification.padded  # the tensors that zeros were added to
    (True, 24)
    """
    computed = dtype_name(dtype)
    require_one_of("dtype of verify", computed, WIDER)
    if tokens < 1:
        raise ConfigError(f"tokens is {tokens}: give a number from 1 on")
    where = torch_device(device)
    inventories = inventory_of(checkpoint), inventory_of(other)
    equal, padded, merged, other_tensors = compare_weights(*inventories)
    differing = (*sorted(other_tensors), *differing_settings(*inventories))
    logits, not_run = LogitErrors(), ""
    try:
        logits = compare_logits(
            *inventories, merged=merged, tokens=tokens, dtype=computed, device=where
        )
    except CheckpointError as error:
        if not any(inventory.is_quantised for inventory in inventories):
            raise
        not_run = str(error)
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
        equal=equal,
        padded=padded,
        merged=len(merged),
        differing=differing,
        not_run=not_run,
        **vars(logits),
    )


def differing_settings(inventory: Inventory, other: Inventory) -> list[str]:
    """Return the keys of two configs whose values differ, but for sizes that tensors say anyway."""
    both = []
    for side in (inventory, other):
        settings = config_of(side).to_dict()
        sizes: dict[str, int] = {}
        for key in width_keys(settings, side.dims):
            sizes |= {name: int(SAME_WIDTH * times) for name, times in key.times.items()}
        both.append(with_widths(settings, side.dims, sizes))
    first, second = both
    keys = sorted((first.keys() | second.keys()) - NO_FUNCTION)
    # None, false and no key at all mean the same: another version leaves such keys out
    differing = [key for key in keys if (first.get(key) or None) != (second.get(key) or None)]
    differing += sorted(contradicted_widths(other) - contradicted_widths(inventory))
    sides = [inventory, other]
    configs = [side.config for side in sides]
    if all(side.groups and not side.groups.why for side in sides):  # tensors tell their length
        configs = [config_with_groups(config, 1) for config in configs]
    if stated_quantisation(configs[0]) != stated_quantisation(configs[1]):
        differing.append("quantization_config")
    return [f"config.json: {key}" for key in differing]


def contradicted_widths(inventory: Inventory) -> set[str]:
    """Return the numbers of a config that differ from the width that all of its layers have."""
    keys = width_keys(inventory.config, inventory.dims)
    return {key.name for key in keys if not key.is_true and key.value_at({}) is not None}


def compare_logits(
    inventory: Inventory,
    other: Inventory,
    *,
    merged: Sequence[str],
    tokens: int,
    dtype: str,
    device: torch.device,
) -> LogitErrors:
    """Compare logits on the same tokens; runs in a wider type tell each model's rounding."""
    expected = logits_of(inventory, tokens, dtype, device)
    logits = logits_of(other, tokens, dtype, device)
    if logits.shape != expected.shape:
        raise CheckpointError(
            f"{other.path} cannot be compared with {inventory.path}: its logits are "
            f"{list(logits.shape)}, not {list(expected.shape)}"
        )
    if not expected.numel():
        return LogitErrors()
    # Products of factors may have been rounded to a coarser type than the one computed in
    rounding = {name: torch.finfo(torch_dtype(name)).eps for name in (dtype, *merged)}
    coarsest = max(rounding, key=rounding.__getitem__)
    second_dtype = WIDER[dtype] if coarsest == dtype else coarsest
    # Two models of one function may differ by the sum of both errors (triangle inequality)
    allowed = 0.0
    for side, computed in ((inventory, expected), (other, logits)):
        second = logits_of(side, tokens, second_dtype, device)
        allowed += float((second - computed).abs().max())
    difference = logits - expected
    error = float(difference.abs().max())
    largest = expected.abs().max()
    log_p, log_q = expected.log_softmax(-1), logits.log_softmax(-1)
    # A divergence near zero may come out negative by rounding
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


def logits_of(inventory: Inventory, tokens: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Return a model's logits [sequences, tokens, vocabulary] in float64 on the CPU, for the same
    ids on every run; none for a model that does not read and write text."""
    model: Any = load_model(inventory, dtype=dtype, device=device)
    with one_line_errors(inventory), torch.inference_mode():
        if model.main_input_name != "input_ids" or model.get_output_embeddings() is None:
            return torch.empty(0)
        inputs = {"input_ids": random_ids(vocabulary(model), (SEQUENCES, tokens)).to(device)}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"]
        logits: torch.Tensor = model(**inputs).logits.double().cpu()
    if not logits.isfinite().all():
        raise CheckpointError(f"{inventory.path}: its logits are not all finite in {dtype}")
    return logits
