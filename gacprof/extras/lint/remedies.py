"""Changes that make an outcome better, each tried by judging the model anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

from gacprof.checkpoint.from_config import ConfigSizes
from gacprof.core.errors import ConfigError
from gacprof.extras.lint.deployment import Deployment
from gacprof.extras.lint.judge import OUTCOMES, Judgement, Outcome, overall

TP_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SERVED = ("ok", "pads", "falls back")
"""Outcomes that may be offered: nothing else serves right answers for sure."""
MAX_MULTIPLE = 1 << 16


@dataclass(frozen=True)
class Remedy:
    """A change (``--tp 4``, ``moe_intermediate_size 2048``) with the outcome that it was judged to
    have; ``mended`` are the products that become ok, ``config`` the changed fields, ``launches``
    the kernels that the engine took for them, where it was asked."""

    kind: str
    change: str
    outcome: Outcome
    mended: tuple[str, ...]
    config: Mapping[str, int] = field(default_factory=dict)
    launches: Mapping[str, str] = field(default_factory=dict)


def find_remedies(deployment: Deployment, judgements: Sequence[Judgement]) -> list[Remedy]:
    """The changes that leave a better outcome, the best first."""
    broken = [judgement for judgement in judgements if judgement.findings]
    if not broken:
        return []
    before = OUTCOMES.index(overall(judgements))
    remedies = []
    for kind, change, config, changed in _changes(deployment, broken):
        try:
            after = changed.judgements()
        except ConfigError:
            continue  # such a config is none
        outcome = overall(after)
        if outcome in SERVED and OUTCOMES.index(outcome) < before:
            fine = {judgement.product.name for judgement in after if judgement.outcome == "ok"}
            mended = tuple(j.product.name for j in broken if j.product.name in fine)
            _, kernels = changed.engine_answer(after)
            launches = {name: kernels[name] for name in mended if name in kernels}
            remedies.append(Remedy(kind, change, outcome, mended, config, launches))
    return _nearest(remedies, deployment.tp)


def _nearest(remedies: Sequence[Remedy], tp: int) -> list[Remedy]:
    """The best outcomes first; of TP degrees the next below and above that are best."""
    degrees = [remedy for remedy in remedies if remedy.kind == "tp"]
    best = min((OUTCOMES.index(remedy.outcome) for remedy in degrees), default=0)
    degrees = [remedy for remedy in degrees if OUTCOMES.index(remedy.outcome) == best]
    below = [remedy for remedy in degrees if int(remedy.change.split()[1]) < tp]
    above = [remedy for remedy in degrees if int(remedy.change.split()[1]) > tp]
    others = [remedy for remedy in remedies if remedy.kind != "tp"]
    chosen = [*others, *below[-1:], *above[:1]]
    return sorted(chosen, key=lambda remedy: OUTCOMES.index(remedy.outcome))


Change = tuple[str, str, Mapping[str, int], Deployment]
"""Kind, change in words, changed fields, and the deployment that is then judged."""


def _changes(deployment: Deployment, broken: Sequence[Judgement]) -> Iterator[Change]:
    has_experts = ConfigSizes(deployment.config).has_experts
    if has_experts and deployment.ep > 1:
        yield "ep", "--ep 1", {}, replace(deployment, ep=1)
    elif has_experts and deployment.tp > 1:
        yield "ep", f"--ep {deployment.tp}", {}, replace(deployment, ep=deployment.tp)
    if deployment.engine.splits == "tensors":
        for tp in TP_DEGREES:
            if tp != deployment.tp:
                ep = tp if deployment.ep > 1 else 1
                yield "tp", f"--tp {tp}", {}, replace(deployment, tp=tp, ep=ep)
    for name, size, multiple in _uneven_fields(deployment, broken):
        for new in (size // multiple * multiple, -(-size // multiple) * multiple):
            if new:
                values = with_field(deployment.config, name, new)
                yield "size", f"{name} {new}", {name: new}, replace(deployment, config=values)


def _uneven_fields(
    deployment: Deployment, broken: Sequence[Judgement]
) -> list[tuple[str, int, int]]:
    """(field, size, multiple) of the config's widths that break a requirement."""
    sizes = ConfigSizes(deployment.config)
    needed: dict[str, int] = {}
    for judgement in broken:
        product = judgement.product
        axis = {"row": "K", "column": "N"}.get(product.split, "")
        if product.kind == "vocab":
            axis = "global"
        multiple = judgement.multiples.get(axis, 1)
        if product.kind != "vocab":
            multiple *= product.ranks
        is_width = isinstance(sizes.values.get(product.field), int) and not product.is_by_heads
        if is_width and multiple > 1:
            needed[product.field] = lcm(needed.get(product.field, 1), multiple)
    return [
        (name, sizes.values[name], multiple)
        for name, multiple in needed.items()
        if multiple < MAX_MULTIPLE and sizes.values[name] % multiple
    ]


def with_field(config: Mapping[str, Any], name: str, value: int) -> dict[str, Any]:
    """A config with a field changed where it has it: at the top or in its text part."""
    changed = dict(config)
    if name not in config:
        for part, values in config.items():
            if isinstance(values, Mapping) and name in values:
                changed[part] = {**values, name: value}
                return changed
    changed[name] = value
    return changed
