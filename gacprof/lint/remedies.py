"""Changes that make an outcome better, each tried by judging the model anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from gacprof.core.errors import ConfigError
from gacprof.lint.deployment import ConfigDeployment
from gacprof.lint.judge import OUTCOMES, SERVED, Judgement, Outcome, overall

TP_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MAX_WIDTH_MULTIPLE = 1 << 16


@dataclass(frozen=True)
class Remedy:
    """A change (``--tp 4``, ``moe_intermediate_size 2048``) with the outcome that it was judged to
    have; ``mended`` are the products that become ok, ``config`` the changed fields, ``launches``
    the kernels that the engine took for them, where it was asked."""

    kind: str
    change: str
    outcome: Outcome
    mended: tuple[str, ...]
    config: Mapping[str, int]
    launches: Mapping[str, str]


def find_remedies(deployment: ConfigDeployment, judgements: Sequence[Judgement]) -> list[Remedy]:
    """The changes that leave a better outcome, the best first; of TP degrees the nearest two."""
    broken = [judgement for judgement in judgements if judgement.findings]
    if not broken:
        return []
    before = OUTCOMES.index(overall(judgements))
    remedies: list[Remedy] = []
    degrees: dict[int, Remedy] = {}
    for kind, change, config, changed in _changes(deployment, broken):
        try:
            after = changed.judgements()
        except ConfigError:
            continue  # such a config is none
        outcome = overall(after)
        if outcome not in SERVED or OUTCOMES.index(outcome) >= before:
            continue
        fine = {judgement.product.name for judgement in after if judgement.outcome == "ok"}
        mended = tuple(j.product.name for j in broken if j.product.name in fine)
        kernels = changed.engine_answer(after)[1]
        launches = {name: kernels[name] for name in mended if name in kernels}
        remedy = Remedy(kind, change, outcome, mended, config, launches)
        if kind == "tp":
            degrees[changed.tp] = remedy
        else:
            remedies.append(remedy)
    best = min((r.outcome for r in degrees.values()), key=OUTCOMES.index, default="ok")
    equal = [tp for tp, remedy in degrees.items() if remedy.outcome == best]
    below = [degrees[tp] for tp in equal if tp < deployment.tp]
    above = [degrees[tp] for tp in equal if tp > deployment.tp]
    remedies += below[-1:] + above[:1]
    return sorted(remedies, key=lambda remedy: OUTCOMES.index(remedy.outcome))


def _changes(
    deployment: ConfigDeployment, broken: Sequence[Judgement]
) -> Iterator[tuple[str, str, dict[str, int], ConfigDeployment]]:
    """Changes to try: kind, words, changed fields, and the deployment that is then judged."""
    tp = deployment.tp
    if deployment.sizes.has_experts and max(deployment.ep, tp) > 1:
        ep = 1 if deployment.ep > 1 else tp
        yield "ep", f"--ep {ep}", {}, replace(deployment, ep=ep)
    if deployment.engine.splits == "tensors":
        for degree in TP_DEGREES:
            if degree != tp:
                ep = degree if deployment.ep > 1 else 1
                yield "tp", f"--tp {degree}", {}, replace(deployment, tp=degree, ep=ep)
    for name, multiple in _needed_multiples(deployment, broken).items():
        size = deployment.sizes.values[name]
        below = size // multiple * multiple
        for new in (below, below + multiple):
            if new and size != below:
                config = with_field(deployment.config, name, new)
                yield "size", f"{name} {new}", {name: new}, replace(deployment, config=config)


def _needed_multiples(deployment: ConfigDeployment, broken: Sequence[Judgement]) -> dict[str, int]:
    """What the config's widths that break a requirement have to be multiples of."""
    needed: dict[str, int] = {}
    for judgement in broken:
        product = judgement.product
        axis = {"row": "K", "column": "N"}.get(product.split, "")
        multiple = judgement.multiples.get(axis, 1) * product.ranks
        if product.kind == "vocab":
            multiple = judgement.multiples.get("global", 1)
        is_width = isinstance(deployment.sizes.values.get(product.field), int)
        if is_width and not product.is_by_heads and multiple > 1:
            needed[product.field] = lcm(needed.get(product.field, 1), multiple)
    return {name: multiple for name, multiple in needed.items() if multiple < MAX_WIDTH_MULTIPLE}


def with_field(config: Mapping[str, Any], name: str, value: int) -> dict[str, Any]:
    """A config with a field changed where it has it: at the top or in its text part."""
    for part, values in config.items():
        if name not in config and isinstance(values, Mapping) and name in values:
            return {**config, part: {**values, name: value}}
    return {**config, name: value}
