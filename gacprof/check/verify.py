"""Same function? Two checkpoints: weights entry by entry, logits on the same tokens.

Rounding hides small differences, and a few tokens reach neither every row of an embedding nor every
expert. So weights are compared first: equal ones, zeros where dims have grown, and factors that are
multiplied out need no tokens. What differs in any other way has to be reached by them, in float32.

What rounding may do to a logit is measured: the reference runs again, in the next wider type.
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
from gacprof.checkpoint.layouts.configs import with_widths
from gacprof.checkpoint.layouts.factors import FACTORS
from gacprof.checkpoint.load import config_of, load_model, one_line_errors, torch_dtype
from gacprof.checkpoint.scan import inventory_of
from gacprof.checkpoint.tensors import read_tensor
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import CheckpointError

SCHEMA = "gacprof.Verification/2"

SEQUENCES = 2

NOISES = 2.0
"""Two runs of one function may differ by this many measured rounding errors, since each lies about
one from exact arithmetic. Padded models of 13 families differed by 0 to 1.0 in each type (CPU)."""

NO_FUNCTION = {"architectures", "dtype", "torch_dtype", "transformers_version"}
NO_FUNCTION |= {row.rank_key for row in FACTORS}
"""Keys of a config that say how weights are stored and by whom."""

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
        What rounding may make of ``max_error``.
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
        Those of :class:`LogitErrors`; 0 and None where a model reads no text.
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
    may differ by what rounding moves those of the first model by, which is measured.

    Parameters
    ----------
    checkpoint
        The reference.
    other
        The checkpoint to compare with it.
    tokens
        Length of the two sequences that are compared.
    dtype
        What is computed in; in float32 rounding hides least. One model is in memory at a time, the
        reference in the next wider type too: 8 bytes a parameter for float32.
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
        Models are not computed in this dtype.
    """
    where = torch_device(device)
    inventories = inventory_of(checkpoint), inventory_of(other)
    weights = compare_weights(*inventories)
    differing = (*weights.differing, *differing_settings(*inventories))
    logits = compare_logits(inventories, weights, tokens, dtype, where)
    verdict: VerifyVerdict = "same"
    unreached = differing
    if logits and not logits.agree:
        verdict = "different"
    elif differing:
        # In a narrower type, or beside rounded products, small differences of weights do not show
        if logits and not weights.merged and dtype_name(dtype) == "float32":
            unreached = unreached_by_tokens(inventories, differing, tokens, where)
        verdict = "undecided" if unreached else "same"
    return Verification(
        checkpoint=inventories[0].path,
        other=inventories[1].path,
        dtype=dtype_name(dtype),
        device=str(where),
        verdict=verdict,
        equal=weights.equal,
        padded=weights.padded,
        merged=len(weights.merged),
        differing=differing,
        unreached=unreached,
        **(vars(logits) if logits else {}),
    )


def differing_settings(inventory: Inventory, other: Inventory) -> list[str]:
    """Return the keys of the two configs whose values differ and do not follow from sizes."""
    sizes = {dim.name: dim.size for dim in other.dims}
    configs: list[dict[str, Any]] = []
    for side in (inventory, other):
        with one_line_errors(side):
            settings = with_widths(config_of(side).to_dict(), side.dims, sizes)
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
    """Compare the logits of two checkpoints on the same tokens, with what rounding makes of them;
    None for models that read no text.

    Where products of factors were rounded to a type coarser than the one that is computed in, the
    reference's rounding error is that of the coarser type.
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
    second_type = max([dtype, *weights.merged], key=rounding)
    if rounding(second_type) == rounding(dtype):
        second_type = wider(dtype)
    second = logits_of(inventory, tokens, second_type, device)
    largest = float(expected.abs().max())
    tolerance = NOISES * float((second - expected).abs().max()) / largest
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


def wider(dtype: str) -> str:
    """Return the next wider type that models are computed in."""
    return "float64" if rounding(dtype) <= rounding("float32") else "float32"


def rounding(dtype: str) -> float:
    """Return the distance from 1 to the next larger number of a type."""
    return torch.finfo(torch_dtype(dtype)).eps


def logits_of(inventory: Inventory, tokens: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Return a model's logits [sequences, tokens, vocabulary] in float64 on the CPU; none for a
    model that reads no text."""
    model = load_model(inventory, dtype=dtype, device=device)
    with torch.inference_mode():
        logits = run(model, inventory, tokens, device).double().cpu()
    if not logits.isfinite().all():
        raise CheckpointError(f"{inventory.path}: its logits are not all finite in {dtype}")
    return logits


def run(model: Any, inventory: Inventory, tokens: int, device: torch.device) -> torch.Tensor:
    """Return the logits for the token ids that all models get; an encoder-decoder gets them on both
    sides."""
    if model.main_input_name != "input_ids":
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
