"""Same function? Two checkpoints: weights entry by entry, logits on the same tokens.

Rounding hides small differences, and a few tokens reach neither every row of an embedding nor every
expert. So weights are compared first: equal ones, zeros where dims have grown, and factors that are
multiplied out need no tokens. What differs in any other way has to be reached by them, in float32.

What rounding does to the logits is measured: each model runs again, in the next wider type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gacprof.check.models import Checkpoint, random_ids, torch_device, vocabulary
from gacprof.check.weights import WeightComparison, compare_weights
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layers import parameter_names
from gacprof.checkpoint.layouts.configs import width_keys, with_widths
from gacprof.checkpoint.layouts.factors import FACTORS
from gacprof.checkpoint.load import config_of, load_model, one_line_errors, torch_dtype
from gacprof.checkpoint.scan import inventory_of
from gacprof.checkpoint.tensors import read_tensor
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import CheckpointError, ConfigError

SCHEMA = "gacprof.Verification/2"

SEQUENCES = 2

WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
"""The type that the rounding of one is measured in."""

NO_FUNCTION = {"architectures", "dtype", "torch_dtype", "transformers_version"}
NO_FUNCTION |= {row.rank_key for row in FACTORS}
"""Keys of a config that say how weights are stored and by whom."""

SAME_WIDTH = 2
"""What two configs are made to say where they say widths; a multiple of those that say double."""

VerifyVerdict = Literal["same", "different", "undecided"]


@dataclass(frozen=True)
class LogitErrors:
    """By how much two models' logits differ on the same tokens.

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
    overtaken
        At how many positions another token is the most likely although the reference's leads by
        more than the tolerance.
    """

    positions: int
    max_error: float
    rms_error: float
    tolerance: float
    mean_kl: float
    same_argmax: float
    overtaken: int

    @property
    def agree(self) -> bool:
        """True where they differ by no more than rounding."""
        return self.max_error <= self.tolerance and not self.overtaken


@dataclass(frozen=True)
class Verification:
    """Whether two checkpoints are the same function.

    Attributes
    ----------
    verdict
        ``different`` where logits differ by more than rounding; ``undecided`` where they do not,
        but ``unreached`` is not empty; else ``same``.
    equal, padded, merged
        How many tensors have the same values; the same but for zeros where dims are larger; and how
        many layers' factors are multiplied out in one of them. They need no tokens.
    differing
        All other tensors, and the keys of the config that differ and do not follow from sizes.
    unreached
        Those of ``differing`` that the tokens say nothing of.
    positions, max_error, rms_error, tolerance, mean_kl, same_argmax, overtaken
        Those of :class:`LogitErrors`; 0 and None where nothing is run,
        as the models do not read and write text.
    """

    checkpoint: str
    other: str
    dtype: str
    device: str
    verdict: VerifyVerdict
    equal: int
    padded: int
    merged: int
    differing: tuple[str, ...]
    unreached: tuple[str, ...]
    positions: int = 0
    max_error: float | None = None
    rms_error: float | None = None
    tolerance: float | None = None
    mean_kl: float | None = None
    same_argmax: float | None = None
    overtaken: int | None = None

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
        The dtype is none of float32, bfloat16 and float16.
    """
    computed = dtype_name(dtype)
    if computed not in WIDER:
        raise ConfigError(f"verify does not compute in '{dtype}': use {', '.join(WIDER)}")
    where = torch_device(device)
    inventories = inventory_of(checkpoint), inventory_of(other)
    weights = compare_weights(*inventories)
    differing = (*weights.differing, *differing_settings(*inventories))
    logits = compare_logits(inventories, weights, tokens, computed, where)
    verdict: VerifyVerdict = "same"
    unreached = differing
    if logits and not logits.agree:
        verdict = "different"
    elif differing:
        # In a narrower type, or beside rounded products, small differences of weights do not show
        if logits and not weights.merged and computed == "float32":
            unreached = unreached_by_tokens(inventories, differing, tokens, where)
        verdict = "undecided" if unreached else "same"
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
        unreached=unreached,
        **(vars(logits) if logits else {}),
    )


def differing_settings(*inventories: Inventory) -> list[str]:
    """Return the keys of two configs whose values differ, but for sizes that tensors say anyway."""
    configs: list[dict[str, Any]] = []
    for inventory in inventories:
        with one_line_errors(inventory):
            settings = config_of(inventory).to_dict()
        sizes: dict[str, int] = {}
        for key in width_keys(settings, inventory.dims):
            sizes |= {name: int(SAME_WIDTH * times) for name, times in key.times.items()}
        settings = with_widths(settings, inventory.dims, sizes)
        configs.append({key: settings[key] for key in settings.keys() - NO_FUNCTION})
    first, second = configs
    keys = sorted(first.keys() | second.keys())
    return [f"config.json: {key}" for key in keys if first.get(key) != second.get(key)]


def compare_logits(
    inventories: Sequence[Inventory],
    weights: WeightComparison,
    tokens: int,
    dtype: str,
    device: torch.device,
) -> LogitErrors | None:
    """Compare the logits of two checkpoints on the same tokens; None where nothing is run.

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
        return None
    coarser = [stored for stored in weights.merged if rounding(stored) > rounding(dtype)]
    second_type = max(coarser, key=rounding, default=WIDER[dtype])
    largest = float(expected.abs().max())
    tolerance = 0.0
    for side, computed in zip(inventories, (expected, logits), strict=True):
        second = logits_of(side, tokens, second_type, device)
        tolerance += float((second - computed).abs().max()) / largest
    difference = logits - expected
    log_p, log_q = expected.log_softmax(-1), logits.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)
    leads = expected.topk(2).values.diff(dim=-1)[..., 0].abs()
    is_same = expected.argmax(-1) == logits.argmax(-1)
    return LogitErrors(
        positions=kl.numel(),
        max_error=float(difference.abs().max()) / largest,
        rms_error=float(difference.norm() / expected.norm()),
        mean_kl=float(kl.mean()),
        same_argmax=float(is_same.double().mean()),
        overtaken=int((~is_same & (leads > tolerance * largest)).sum()),
        tolerance=tolerance,
    )


def rounding(dtype: str) -> float:
    """Return the distance from 1 to the next larger number of a type."""
    return torch.finfo(torch_dtype(dtype)).eps


def logits_of(inventory: Inventory, tokens: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Return a model's logits [sequences, tokens, vocabulary] in float64 on the CPU; none for a
    model that does not read and write text."""
    model = load_model(inventory, dtype=dtype, device=device)
    with torch.inference_mode():
        logits = run(model, inventory, tokens, device).double().cpu()
    if not logits.isfinite().all():
        raise CheckpointError(f"{inventory.path}: its logits are not all finite in {dtype}")
    return logits


def run(model: Any, inventory: Inventory, tokens: int, device: torch.device) -> torch.Tensor:
    """Return the logits for the token ids that all models get; an encoder-decoder gets them on both
    sides. None for a model that does not read and write text."""
    if model.main_input_name != "input_ids" or model.get_output_embeddings() is None:
        return torch.empty(0)
    with one_line_errors(inventory):
        ids = random_ids(vocabulary(model), (SEQUENCES, tokens)).to(device)
        inputs = {"input_ids": ids}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids
        logits: torch.Tensor = model(**inputs).logits
    return logits


def unreached_by_tokens(
    inventories: Sequence[Inventory], names: Sequence[str], tokens: int, device: torch.device
) -> tuple[str, ...]:
    """Return those of the differing tensors and settings that the tokens say nothing of."""
    unreached = {name for name in names if not any(name in i.tensors for i in inventories)}
    for inventory, other in (inventories, inventories[::-1]):
        stored = [name for name in names if name in inventory.tensors]
        unreached |= unreached_weights(inventory, other, stored, tokens, device)
    return tuple(name for name in names if name in unreached)


def unreached_weights(
    inventory: Inventory,
    other: Inventory,
    names: Sequence[str],
    tokens: int,
    device: torch.device,
) -> set[str]:
    """Return the tensors that the logits are not shown to depend on in every entry that differs.

    An entry that matters has a gradient. Rows of an embedding that are not looked up have none, nor
    experts that no token is routed to, nor towers that read no text. A tensor that transformers
    renames or joins as it loads is not found, and counts as not reached.
    """
    model: Any = load_model(inventory, dtype="float32", device=device)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    own_names = parameter_names(inventory)
    weights = {name: parameters.get(own_names.get(name, name)) for name in names}
    for weight in filter(torch.is_tensor, weights.values()):
        weight.requires_grad_(True)
    logits = run(model, inventory, tokens, device)
    if logits.requires_grad:
        with one_line_errors(inventory):
            logits.square().sum().backward()
    unreached = set()
    for name, weight in weights.items():
        gradient = getattr(weight, "grad", None)
        tensor = read_tensor(inventory, name).double()
        is_other = torch.ones_like(tensor, dtype=torch.bool)
        if name in other.tensors and other.shape(name) == inventory.shape(name):
            is_other = tensor != read_tensor(other, name).double()
        if gradient is None or not gradient.cpu()[is_other].all():
            unreached.add(name)
    return unreached
