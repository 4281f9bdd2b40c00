"""Changes that make an outcome better, each tried by judging the model anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

from gacprof.core.errors import ConfigError
from gacprof.lint.deployment import ConfigDeployment
from gacprof.lint.judge import OUTCOMES, Judgement, Outcome, overall

TP_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SERVED = ("ok", "pads", "falls back")
"""Outcomes that may be offered: nothing else serves right answers for sure."""
MAX_WIDTH_MULTIPLE = 1 << 16


@dataclass(frozen=True)
class Remedy:
    """A change (``--tp 4``, ``moe_intermediate_size 2048``) with the outcome that it was judged to
    have; ``mended`` are the products that become ok, ``config`` the changed fields, ``launches``
    the kernels that the engine took for them, where it was asked."""

    kind: str
    change: str
    outcome: Outcome = "unknown"
    mended: tuple[str, ...] = ()
    config: Mapping[str, int] = field(default_factory=dict)
    launches: Mapping[str, str] = field(default_factory=dict)


def find_remedies(deployment: ConfigDeployment, judgements: Sequence[Judgement]) -> list[Remedy]:
    """The changes that leave a better outcome, the best first; of TP degrees the next below and
    above that are best."""
    broken = [judgement for judgement in judgements if judgement.findings]
    if not broken:
        return []
    before = OUTCOMES.index(overall(judgements))
    remedies: list[Remedy] = []
    degrees: dict[int, Remedy] = {}
    for remedy, changed in _changes(deployment, broken):
        try:
            after = changed.judgements()
        except ConfigError:
            continue  # such a config is none
        outcome = overall(after)
        if outcome not in SERVED or OUTCOMES.index(outcome) >= before:
            continue
        fine = {judgement.product.name for judgement in after if judgement.outcome == "ok"}
        mended = tuple(j.product.name for j in broken if j.product.name in fine)
        _, kernels = changed.engine_answer(after)
        launches = {name: kernels[name] for name in mended if name in kernels}
        remedy = replace(remedy, outcome=outcome, mended=mended, launches=launches)
        if remedy.kind == "tp":
            degrees[changed.tp] = remedy
        else:
            remedies.append(remedy)
    best = min((OUTCOMES.index(remedy.outcome) for remedy in degrees.values()), default=0)
    best_degrees = [tp for tp, remedy in degrees.items() if remedy.outcome == OUTCOMES[best]]
    below = [tp for tp in best_degrees if tp < deployment.tp]
    above = [tp for tp in best_degrees if tp > deployment.tp]
    remedies += [degrees[tp] for tp in (*below[-1:], *above[:1])]
    return sorted(remedies, key=lambda remedy: OUTCOMES.index(remedy.outcome))


def _changes(
    deployment: ConfigDeployment, broken: Sequence[Judgement]
) -> Iterator[tuple[Remedy, ConfigDeployment]]:
    """Changes to try, each with the deployment that is then judged."""
    config, tp = deployment.config, deployment.tp
    if deployment.sizes.has_experts and max(deployment.ep, tp) > 1:
        ep = 1 if deployment.ep > 1 else tp
        yield Remedy("ep", f"--ep {ep}"), replace(deployment, ep=ep)
    if deployment.engine.splits == "tensors":
        for degree in TP_DEGREES:
            if degree != tp:
                ep = degree if deployment.ep > 1 else 1
                yield Remedy("tp", f"--tp {degree}"), replace(deployment, tp=degree, ep=ep)
    for name, multiple in _needed_multiples(deployment, broken).items():
        size = deployment.sizes.values[name]
        for new in (size // multiple * multiple, -(-size // multiple) * multiple):
            if new != size and new:
                changed = replace(deployment, config=with_field(config, name, new))
                yield Remedy("size", f"{name} {new}", config={name: new}), changed


def _needed_multiples(deployment: ConfigDeployment, broken: Sequence[Judgement]) -> dict[str, int]:
    """What the config's widths that break a requirement have to be multiples of."""
    values = deployment.sizes.values
    needed: dict[str, int] = {}
    for judgement in broken:
        product = judgement.product
        axis = {"row": "K", "column": "N"}.get(product.split, "")
        ranks = product.ranks
        if product.kind == "vocab":
            axis, ranks = "global", 1
        multiple = judgement.multiples.get(axis, 1) * ranks
        is_width = isinstance(values.get(product.field), int) and not product.is_by_heads
        if is_width and multiple > 1:
            needed[product.field] = lcm(needed.get(product.field, 1), multiple)
    return {name: multiple for name, multiple in needed.items() if multiple < MAX_WIDTH_MULTIPLE}


def with_field(config: Mapping[str, Any], name: str, value: int) -> dict[str, Any]:
    """A config with a field changed where it has it: at the top or in its text part."""
    for part, values in config.items():
        if name not in config and isinstance(values, Mapping) and name in values:
            return {**config, part: {**values, name: value}}
    return {**config, name: value}
