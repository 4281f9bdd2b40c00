"""What to do about findings: every remedy is tried by judging the model anew, and only what helps
is offered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from re import escape

from gacprof.demands.configs import Config
from gacprof.demands.evaluate import Judged
from gacprof.demands.quantisation import GROUPED
from gacprof.demands.table import SHIPPED, Outcome
from gacprof.linting.judging import Degree, overall, tiers, weight, worst_tier
from gacprof.linting.moved import Remedy, again, rank, sizes
from gacprof.linting.request import LintRequest, Target, target_of


def remedies(
    config: Config, request: LintRequest, target: Target, judged: Sequence[Judged],
    table: Sequence[Degree],
) -> list[Remedy]:  # fmt: skip
    """What makes the outcome or the worst tier better, the cheapest kinds first. What leaves a
    worse tier than another remedy is not offered."""
    tier = worst_tier(judged, tiers(target.gpu))
    now = rank(overall(judged), tier)
    found = [
        one
        for one in _tried(config, request, target, judged, table, tier)
        if one.outcome != "unknown" and rank(one.outcome, one.tier) < now
    ]
    best = min((one.tier or 1 for one in found), default=1)
    return [one for one in found if (one.tier or 1) <= best]


def _tried(
    config: Config, request: LintRequest, target: Target, judged: Sequence[Judged],
    table: Sequence[Degree], tier: int | None,
) -> Iterator[Remedy]:  # fmt: skip
    now = overall(judged)
    broken = [one for one in judged if one.findings]
    if broken or (tier or 1) > 1:
        yield from _degrees(request, table, now, tier)
    for one in (_ignoring, _groups, _versions, _engines) if broken else ():
        yield from (replace(r, tier=tier) for r in one(config, request, target, broken))
    yield from sizes(config, request, target, judged)


def _degrees(
    request: LintRequest, table: Sequence[Degree], now: Outcome, tier: int | None
) -> Iterator[Remedy]:
    """Expert parallelism, and the next degrees below and above that are better."""
    better = [d for d in table if d.outcome != "unknown"
              and rank(d.outcome, d.worst_tier) < rank(now, tier)]  # fmt: skip
    same = [d for d in better if d.tp == request.tp and d.ep != request.ep]
    for found in same:
        turn = "--ep" if found.ep else "without --ep"
        yield Remedy(
            "ep",
            f"expert parallelism: experts stay whole ({turn})",
            turn,
            found.outcome,
            tier=found.worst_tier,
        )
    rows = [d for d in better if d.ep == request.ep]
    best = min((d.worst_tier or 1 for d in rows), default=1)
    rows = [d for d in rows if (d.worst_tier or 1) == best]
    below = [d for d in rows if d.tp < request.tp]
    above = [d for d in rows if d.tp > request.tp]
    for found in ([max(below, key=lambda d: d.tp)] if below else []) + above[:1]:
        ranks = f"{found.tp} tensor-parallel rank{'s' * (found.tp > 1)}"
        yield Remedy("tp", ranks, f"--tp {found.tp}", found.outcome, tier=found.worst_tier)


def _ignoring(
    config: Config, request: LintRequest, target: Target, broken: Sequence[Judged]
) -> Iterator[Remedy]:
    """Leave the modules of broken products unquantised."""
    scheme = target.scheme
    quantised = [
        one for one in broken if one.scheme.kind not in ("none", "gguf") and one.product.modules
    ]
    if not quantised or scheme.kind == "gguf":
        return
    short = sorted(
        {
            m.split("{}.")[-1].replace("experts.0", "experts")
            for one in quantised
            for m in one.product.modules
        }
    )
    patterns = tuple(
        f"re:.*[.]{escape(m.split('{}.')[-1])}$" for one in quantised for m in one.product.modules
    )
    made = replace(target, scheme=replace(scheme, ignored=(*scheme.ignored, *patterns)))
    after = again(config, request, made)
    before = _bytes(again(config, request, target))
    more = _bytes(after)
    share = more / before - 1 if more and before else None
    yield Remedy(
        "ignore",
        f"leave {', '.join(short)} in bf16: quantise again with them ignored",
        f"ignore: {', '.join(short)}",
        overall(after),
        bytes_per_rank=share,
    )


def _bytes(judged: Iterable[Judged]) -> float | None:
    weights = [weight(one) for one in judged]
    return sum(w[1] for w in weights if w) if all(w is not None for w in weights) else None


def _groups(
    config: Config, request: LintRequest, target: Target, broken: Sequence[Judged]
) -> Iterator[Remedy]:
    scheme = target.scheme
    if scheme.kind not in GROUPED:
        return
    for group in (64, 32):
        if scheme.group and group < scheme.group:
            made = replace(target, scheme=replace(scheme, group=group))
            outcome = overall(again(config, request, made))
            yield Remedy(
                "group",
                f"groups of {group} weights: quantise again",
                f"group_size {group}",
                outcome,
            )


def _versions(
    config: Config, request: LintRequest, target: Target, broken: Sequence[Judged]
) -> Iterator[Remedy]:
    """The newest version that was read, where an older one was asked about."""
    name = target.engine.name
    newest = target_of(replace(request, engine=name, version=""), config)
    if newest.engine.at == target.engine.at:
        return
    outcome = overall(again(config, request, newest))
    yield Remedy(
        "version", f"{name} {newest.engine.read}", f"--engine {name}=={newest.engine.read}", outcome
    )


def _engines(
    config: Config, request: LintRequest, target: Target, broken: Sequence[Judged]
) -> Iterator[Remedy]:
    if overall(broken) not in ("refused", "wrong"):
        return
    for name in SHIPPED:
        if name in (target.engine.name, "llama.cpp", "transformers"):
            continue
        other = target_of(replace(request, engine=name, version="", demands=()), config)
        outcome = overall(again(config, request, other))
        if outcome == "ok":
            yield Remedy("engine", f"{name} {other.engine.read}", f"--engine {name}", outcome)
