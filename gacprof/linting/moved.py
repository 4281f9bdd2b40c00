"""Sizes of a config moved to good ones, each tried by judging the model anew."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import lcm
from typing import Any

from gacprof.core.errors import LintError
from gacprof.core.files import Record
from gacprof.demands.configs import ALIASES, Config
from gacprof.demands.evaluate import Judged
from gacprof.demands.model import products
from gacprof.demands.products import Ranks
from gacprof.demands.table import OUTCOMES, Outcome
from gacprof.linting.judging import Tiers, extras, judge_all, overall, tiers, worst_tier
from gacprof.linting.request import LintRequest, Target

MOST_CHANGED = 0.1
"""A fixed config has as many parameters as before, but for this share."""
MOST_FIXED = 5
"""Sizes that are moved together."""

WIDTHS = (
    *ALIASES["intermediate_size"],
    *ALIASES["moe_intermediate_size"],
    "share_expert_dim",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "intermediate_size_mlp",
    "expert_ffn_hidden_size",
)
"""Fields that hold one width, which a designer may change by itself."""


@dataclass(frozen=True)
class Remedy(Record):
    """``kind`` is tp, ep, group, ignore, version, engine or size; ``option`` what to pass or to
    change, ``outcome`` what then comes of it. ``config`` are changed fields, ``parameters`` and
    ``bytes_per_rank`` what it costs as a share, None where the config does not say."""

    kind: str
    what: str
    option: str
    outcome: Outcome
    config: Mapping[str, int] | None = None
    parameters: float | None = None
    bytes_per_rank: float | None = None
    tier: int | None = None


def rank(outcome: Outcome, tier: int | None) -> tuple[int, int]:
    return OUTCOMES.index(outcome), tier or 1


def again(config: Config, request: LintRequest, target: Target) -> list[Judged]:
    return judge_all(config, request, target, extra=extras(request, config))


def sizes(
    config: Config, request: LintRequest, target: Target, judged: Sequence[Judged]
) -> Iterator[Remedy]:
    """The nearest sizes below and above that are good, one remedy each; for experts also with a
    count of experts that keeps the parameters."""
    before = parameters(config)
    for one in judged:
        if one.product.role == "head_groups" and one.findings:
            heads, given = one.product.n.whole or 1, one.product.n.parts
            good = [n for n in range(1, heads + 1) if heads % n == 0]
            near = [
                max(n for n in good if n <= given),
                min(n for n in good if n >= min(given, heads)),
            ]
            for new in dict.fromkeys(near):
                yield from _changed(config, request, target, {one.product.fields[0]: new}, before)
    for key, multiple in _to_move(config, request, target, judged):
        size = config.get(key) or 0
        for new in (size // multiple * multiple, -(-size // multiple) * multiple):
            if new:
                yield from _changed(config, request, target, {key: new}, before)
        yield from _equal_experts(config, request, target, key, size, multiple, before)


ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""What a rank's width is tried to be a multiple of, for its tier: powers of two to 128 elements,
the widest tile that libraries align to."""


def _to_move(
    config: Config, request: LintRequest, target: Target, judged: Sequence[Judged]
) -> Iterator[tuple[str, int]]:
    """(field, the multiple that it is to be): what demands ask, and on a named GPU the least
    multiple of that whose neighbours have the best tier."""
    tier = tiers(target.gpu)
    needed = _needed(config, judged)
    if not target.gpu.is_open:
        for one in judged:
            if one.product.kind == "dense" and (tier(one) or 1) > 1:
                needed |= {key: needed.get(key, 1) for key in one.product.fields if key in WIDTHS}
    for key, multiple in needed.items():
        size = config.get(key)
        if size is None:
            continue
        if key in WIDTHS and not target.gpu.is_open:
            multiple = _aligned(config, request, target, key, size, multiple, tier)
        if size % multiple:
            yield key, multiple


def _aligned(
    config: Config, request: LintRequest, target: Target, key: str, size: int, multiple: int,
    tier: Tiers,
) -> int:  # fmt: skip
    def worst(new: int) -> int:
        made = judge_all(_with(config, {key: new}), request, target)
        return max((tier(one) or 1 for one in made if key in one.product.fields), default=1)

    found = {}
    for unit in dict.fromkeys(lcm(multiple, request.tp * n) for n in ALIGNMENTS):
        near = [n for n in (size // unit * unit, -(-size // unit) * unit) if n]
        found[unit] = max(map(worst, near))
        if found[unit] == 1:
            break
    return min(found, key=lambda unit: (found[unit], unit))


def _needed(config: Config, judged: Sequence[Judged]) -> dict[str, int]:
    """Field → what its unsplit size has to be a multiple of, by all demands on it."""
    needed: dict[str, int] = {}
    for one in judged:
        product = one.product
        split_axis = "K" if product.split == "row" else "N"
        size = product.k if product.split == "row" else product.n
        for key in product.fields:
            if product.role in ("head_groups", "head_dim"):
                continue
            if product.kind == "count" and one.findings:
                found = [
                    f.multiple for f in one.findings if f.multiple and f.demand.relation != "one_of"
                ]
                needed[key] = lcm(needed.get(key, 1), *found)
            elif product.kind == "vocab":
                needed[key] = lcm(needed.get(key, 1), one.asked.get("global", 1))
            elif key in WIDTHS:
                unit = one.asked.get(split_axis, 1) * size.parts
                needed[key] = lcm(needed.get(key, 1), unit)
    return {key: multiple for key, multiple in needed.items() if 1 < multiple < 1 << 24}


def _with(config: Config, changes: Mapping[str, int]) -> Config:
    return Config({**config.values, **changes}, config.whole)


def _changed(
    config: Config, request: LintRequest, target: Target, changes: Mapping[str, int],
    before: float | None,
) -> Iterator[Remedy]:  # fmt: skip
    try:
        made = _with(config, changes)
        judged, after = again(made, request, target), parameters(made)
    except LintError:
        return
    share = after / before - 1 if after and before else None
    change = ", ".join(f"{key} {value}" for key, value in changes.items())
    tier = worst_tier(judged, tiers(target.gpu))
    yield Remedy("size", change, change, overall(judged), dict(changes), share, tier=tier)


def _equal_experts(
    config: Config, request: LintRequest, target: Target, key: str, size: int, multiple: int,
    before: float | None,
) -> Iterator[Remedy]:  # fmt: skip
    for changes in _fewer_experts(config, key, size, -(-size // multiple) * multiple):
        yield from _changed(config, request, target, changes, before)


def _fewer_experts(config: Config, key: str, size: int, new: int) -> list[dict[str, int]]:
    """Wider experts, and as many fewer of them as keep the parameters."""
    experts, field = config.get("experts"), config.spelling("experts")
    if key != config.spelling(config.meaning.expert or "-") or not experts:
        return []
    count = round(experts * size / new / 8) * 8
    return [{key: new, field: count}] if count >= 8 else []


def parameters(config: Config) -> float | None:
    """Weights in all products; None where the config does not say."""
    total = 0.0
    for product in products(config, Ranks()):
        if product.kind == "count" or product.layers == 0:
            continue
        n = product.n.whole if product.kind == "vocab" else product.n.value
        if not n or not product.k.value or product.layers is None or product.copies is None:
            return None
        gate = 2 if product.role == "expert_gate_up" else 1
        total += n * product.k.value * gate * product.layers * product.copies
    return total or None


def fixed(
    config: Config, request: LintRequest, target: Target, judged: Sequence[Judged]
) -> tuple[dict[str, Any], Remedy] | None:
    """The config with every size that can be mended moved to the nearest good one, and what that
    costs; None where no size is to be moved. Raises :class:`LintError` where every good config has
    other parameters by more than a tenth."""
    choices = []
    for key, multiple in _to_move(config, request, target, judged):
        size = config.get(key) or 0
        low, high = size // multiple * multiple, -(-size // multiple) * multiple
        choices.append(
            [{key: n} for n in (low, high) if n] + _fewer_experts(config, key, size, high)
        )
    if not choices:
        return None
    before = parameters(config)
    tried = [
        one
        for chosen in combinations(*choices[:MOST_FIXED])
        for one in _changed(config, request, target, dict(ChainMap(*chosen)), before)
    ]
    if not tried:
        return None
    now = rank(overall(judged), worst_tier(judged, tiers(target.gpu)))
    found = min(tried, key=lambda r: (*rank(r.outcome, r.tier), abs(r.parameters or 0)))
    if rank(found.outcome, found.tier) >= now or abs(found.parameters or 0) > MOST_CHANGED:
        raise LintError(
            f"no config of about equal parameters is better on {request.tp} ranks: "
            "try expert parallelism (--ep) or other degrees (--tp)"
        )
    changes = dict(found.config or {})
    return {**config.whole, **_placed(config, changes)}, found


def _placed(config: Config, changes: Mapping[str, int]) -> dict[str, Any]:
    """The changes where the config keeps those fields: at the top or in its text part."""
    placed: dict[str, Any] = {}
    for key, value in changes.items():
        inner = next(
            (
                n
                for n, part in config.whole.items()
                if isinstance(part, dict) and key in part and key not in config.whole
            ),
            None,
        )
        if inner is None:
            placed[key] = value
        else:
            placed[inner] = {**config.whole[inner], **placed.get(inner, {}), key: value}
    return placed
