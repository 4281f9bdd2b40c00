"""What to do about findings: every remedy is tried by judging the model anew, and only what helps
is offered."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import lcm
from re import escape
from typing import Any

from gacprof.core.errors import LintError
from gacprof.core.files import Record
from gacprof.demands.configs import ALIASES
from gacprof.demands.evaluate import JudgedProduct
from gacprof.demands.products import Ranks, Sizes
from gacprof.demands.quantisation import GROUPED
from gacprof.demands.table import OUTCOMES, SHIPPED, Outcome
from gacprof.linting.judging import Degree, LintCase, case_of, held, overall, parameters, rank

MOST_CHANGED = 0.1
"""A fixed config has as many parameters as before, but for this share."""
MOST_FIXED = 5
"""Sizes that are moved together."""
ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""What a rank's width is tried to be a multiple of, for its tier: powers of two to 128 elements,
the widest tile that libraries align to."""
SERVED = ("ok", "pads", "falls_back")
"""Outcomes that may be offered: nothing else serves right answers for sure."""
WIDTHS = (
    *ALIASES["intermediate_size"], *ALIASES["moe_intermediate_size"], "share_expert_dim",
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
    "shared_intermediate_size", "intermediate_size_mlp", "expert_ffn_hidden_size",
)  # fmt: skip
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


def remedies(case: LintCase, table: Sequence[Degree]) -> list[Remedy]:
    """What makes the outcome or the worst tier better: what is ok then first, of these the cheapest
    kinds. What leaves a worse tier than another remedy is not offered."""
    found = [
        one
        for one in _tried(case, table)
        if one.outcome in SERVED and rank(one.outcome, one.tier) < case.rank
    ]
    best = min((one.tier or 1 for one in found), default=1)
    kept = [one for one in found if (one.tier or 1) <= best]
    return sorted(kept, key=lambda one: OUTCOMES.index(one.outcome))


def _tried(case: LintCase, table: Sequence[Degree]) -> Iterator[Remedy]:
    broken = [one for one in case.judged if one.findings]
    if broken or (case.worst_tier or 1) > 1:
        yield from _degrees(case, table)
    for tried in (_ignoring, _groups, _versions, _engines) if broken else ():
        yield from tried(case, broken)
    yield from _sizes(case)


def _degrees(case: LintCase, table: Sequence[Degree]) -> Iterator[Remedy]:
    """Expert parallelism, and the next degrees below and above that are better."""
    request = case.request
    better = [d for d in table if d.outcome in SERVED and rank(d.outcome, d.worst_tier) < case.rank]
    for found in (d for d in better if d.tp == request.tp and d.ep != request.ep):
        turn = "--ep" if found.ep else "without --ep"
        what = f"expert parallelism: experts stay whole ({turn})"
        yield Remedy("ep", what, turn, found.outcome, tier=found.worst_tier)
    rows = [d for d in better if d.ep == request.ep]
    best = min((d.worst_tier or 1 for d in rows), default=1)
    rows = [d for d in rows if (d.worst_tier or 1) == best]
    memory = (case.gpu.memory_gib or 0) * 2**30
    rows = [d for d in rows if not memory or (d.bytes_per_rank or 0) <= memory]
    below = [d for d in rows if d.tp < request.tp]
    above = [d for d in rows if d.tp > request.tp]
    for found in ([max(below, key=lambda d: d.tp)] if below else []) + above[:1]:
        ranks = f"{found.tp} tensor-parallel rank{'s' * (found.tp > 1)}"
        yield Remedy("tp", ranks, f"--tp {found.tp}", found.outcome, tier=found.worst_tier)


def _ignoring(case: LintCase, broken: Sequence[JudgedProduct]) -> Iterator[Remedy]:
    """Leave the modules of broken products unquantised."""
    if case.scheme.kind == "gguf":
        return
    of = (one for one in broken if one.scheme.kind not in ("none", "gguf"))
    ends = [module.split("{}.")[-1] for one in of for module in one.product.modules]
    if not ends:
        return
    short = ", ".join(sorted({end.replace("experts.0", "experts") for end in ends}))
    patterns = tuple(f"re:.*[.]{escape(end)}$" for end in ends)
    ignored = (*case.scheme.ignored, *patterns)
    after = replace(case, scheme=replace(case.scheme, ignored=ignored))
    (_, before, said), (_, more, still) = held(case.judged), held(after.judged)
    yield Remedy(
        "ignore",
        f"leave {short} in bf16: quantise again with them ignored",
        f"ignore: {short}",
        after.outcome,
        bytes_per_rank=more / before - 1 if said and still and more and before else None,
        tier=after.worst_tier,
    )


def _groups(case: LintCase, broken: Sequence[JudgedProduct]) -> Iterator[Remedy]:
    scheme = case.scheme
    for group in (64, 32) if scheme.kind in GROUPED else ():
        if scheme.group and group < scheme.group:
            after = replace(case, scheme=replace(scheme, group=group))
            what, option = f"groups of {group} weights: quantise again", f"group_size {group}"
            yield Remedy("group", what, option, after.outcome, tier=after.worst_tier)


def _versions(case: LintCase, broken: Sequence[JudgedProduct]) -> Iterator[Remedy]:
    """The newest version that was read, where an older one was asked about."""
    name = case.engine.name
    newest = case_of(replace(case.request, engine=name, version=""), case.config)
    if newest.engine.at != case.engine.at:
        read = newest.engine.read
        option = f"--engine {name}=={read}"
        yield Remedy("version", f"{name} {read}", option, newest.outcome, tier=newest.worst_tier)


def _engines(case: LintCase, broken: Sequence[JudgedProduct]) -> Iterator[Remedy]:
    if overall(broken) not in ("refused", "wrong"):
        return
    for name in SHIPPED:
        if name not in (case.engine.name, "llama.cpp", "transformers"):
            asked = replace(case.request, engine=name, version="", demands=())
            other = case_of(asked, case.config)
            if other.outcome == "ok":
                what, option = f"{name} {other.engine.read}", f"--engine {name}"
                yield Remedy("engine", what, option, "ok", tier=other.worst_tier)


def _sizes(case: LintCase) -> Iterator[Remedy]:
    """The nearest sizes below and above that are good, one remedy each; for experts also with a
    count of experts that keeps the parameters."""
    before = parameters(case.config)
    for one in case.judged:
        if one.product.role == "head_groups" and one.findings:
            heads, given = one.product.n.whole or 1, one.product.n.parts
            good = [n for n in range(1, heads + 1) if heads % n == 0]
            near = (
                max(n for n in good if n <= given),
                min(n for n in good if n >= min(given, heads)),
            )
            for new in dict.fromkeys(near):
                yield from _changed(case, {one.product.fields[0]: new}, before)
    for key, multiple in _to_move(case):
        for changes in _near(case, key, multiple):
            yield from _changed(case, changes, before)


def _near(case: LintCase, key: str, multiple: int) -> list[dict[str, int]]:
    """A size moved to the multiples below and above; or wider experts, and as many fewer of them
    as keep the parameters."""
    config, size = case.config, case.config.get(key) or 0
    low, high = size // multiple * multiple, -(-size // multiple) * multiple
    made = [{key: new} for new in (low, high) if new]
    experts, field = config.get("experts"), config.spelling("experts")
    if key == config.spelling(config.meaning.expert or "-") and experts:
        count = round(experts * size / high / 8) * 8
        made += [{key: high, field: count}] if 8 <= count < experts else []
    return made


def _to_move(case: LintCase) -> Iterator[tuple[str, int]]:
    """(field, the multiple that it is to be): what demands ask, and on a named GPU the least
    multiple of that whose neighbours have the best tier."""
    needed, tier = _needed(case.judged), case.tier
    for one in case.judged if not case.gpu.is_open else ():
        if one.product.kind == "dense" and (tier(one) or 1) > 1:
            needed |= {key: needed.get(key, 1) for key in one.product.fields if key in WIDTHS}
    for key, multiple in needed.items():
        size = case.config.get(key)
        if size is None:
            continue
        if key in WIDTHS and not case.gpu.is_open:
            multiple = _aligned(case, key, size, multiple)
        if size % multiple:
            yield key, multiple


def _aligned(case: LintCase, key: str, size: int, multiple: int) -> int:
    """The least multiple of ``multiple`` at which the products of a width have their best tier."""

    def worst(new: int) -> int:
        made = case.with_sizes({key: new}).judged
        return max((case.tier(one) or 1 for one in made if key in one.product.fields), default=1)

    found = {}
    for unit in dict.fromkeys(lcm(multiple, case.request.tp * n) for n in ALIGNMENTS):
        near = [n for n in (size // unit * unit, -(-size // unit) * unit) if n]
        found[unit] = max(map(worst, near))
        if found[unit] == 1:
            break
    return min(found, key=lambda unit: (found[unit], unit))


def _needed(judged: Iterable[JudgedProduct]) -> dict[str, int]:
    """Field → what its unsplit size has to be a multiple of, by all demands on it."""
    needed: dict[str, int] = {}
    for one in judged:
        product = one.product
        if product.role in ("head_groups", "head_dim"):
            continue
        axis, size = ("K", product.k) if product.split == "row" else ("N", product.n)
        for key in product.fields:
            units = []
            if product.kind == "count" and one.findings:
                found = (f for f in one.findings if f.demand.relation != "one_of")
                units = [f.multiple for f in found if f.multiple]
            elif product.kind == "vocab":
                units = [one.asked.get("global", 1)]
            elif key in WIDTHS:
                units = [one.asked.get(axis, 1) * size.parts]
            needed[key] = lcm(needed.get(key, 1), *units)
    return {key: multiple for key, multiple in needed.items() if 1 < multiple < 1 << 24}


def _changed(case: LintCase, changes: Mapping[str, int], before: float | None) -> Iterator[Remedy]:
    own = case.config.get("head_dim") or case.config.meaning.mixer
    try:
        made = case.with_sizes(changes)
        old, new = (Sizes(one.config, Ranks()).get("head_dim") for one in (case, made))
        if old and new != old and not own:  # it was hidden over heads
            changes = {**changes, "head_dim": old}
            made = case.with_sizes(changes)
        outcome, count = made.outcome, parameters(made.config)
    except LintError:
        return
    share = count / before - 1 if count and before else None
    change = ", ".join(f"{key} {value}" for key, value in changes.items())
    yield Remedy("size", change, change, outcome, dict(changes), share, tier=made.worst_tier)


def fixed(case: LintCase) -> tuple[dict[str, Any], Remedy] | None:
    """The config with every size that can be mended moved to the nearest good one, and what that
    costs; None where no size is to be moved. Raises :class:`LintError` where every good config has
    other parameters by more than a tenth."""
    choices = [_near(case, key, multiple) for key, multiple in _to_move(case)]
    before = parameters(case.config)
    tried = [
        one
        for chosen in (combinations(*choices[:MOST_FIXED]) if choices else ())
        for one in _changed(case, dict(ChainMap(*chosen)), before)
    ]
    if not tried:
        return None
    found = min(tried, key=lambda r: (*rank(r.outcome, r.tier), abs(r.parameters or 0)))
    if rank(found.outcome, found.tier) >= case.rank or abs(found.parameters or 0) > MOST_CHANGED:
        raise LintError(
            f"no config of about equal parameters is better on {case.request.tp} ranks: "
            "try expert parallelism (--ep) or other degrees (--tp)"
        )
    return _placed(case.config.whole, found.config or {}), found


def _placed(whole: Mapping[str, Any], changes: Mapping[str, int]) -> dict[str, Any]:
    """A config with the changes where it keeps those fields: at the top or in its text part."""
    made = dict(whole)
    for key, value in changes.items():
        inside = (n for n, part in whole.items() if isinstance(part, dict) and key in part)
        inner = None if key in whole else next(inside, None)
        made |= {key: value} if inner is None else {inner: {**made[inner], key: value}}
    return made
