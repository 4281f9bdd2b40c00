"""Changes that make an outcome better, each tried by judging the model anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gacprof.checkpoint.storage import GROUPED
from gacprof.core.errors import ConfigError
from gacprof.lint.deployment import ConfigDeployment
from gacprof.lint.judge import OUTCOMES, SERVED, Judgement, Outcome, overall
from gacprof.lint.multiples import is_of_mlp, joint_multiple

TP_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
USUAL_TP = (2, 4, 8)
"""Degrees of which a remedy of stored weights says whether it serves them, too."""
MAX_WIDTH_MULTIPLE = 1 << 16
REALIGN = "gacprof realign CHECKPOINT {} OUT"
LEAST_GROUP = 32
"""The smallest group that every kernel of grouped formats takes."""
MAY_REFINE = (*GROUPED, "int8_w8a16")


@dataclass(frozen=True)
class Remedy:
    """A change (the command that serves it so, ``moe_intermediate_size 2048``) with the outcome
    that it was judged to have.

    ``kind`` is ep, tp, size or groups. ``mended`` are the products that become ok, ``config`` the
    changed fields, ``launches`` the kernels that the engine took for them, where it was asked;
    ``ranks`` are the degrees then. ``bytes`` is the share by which the weights grow; None where the
    config doesn't say theirs. Of weights that are stored quantised ``tps`` are the usual TP degrees
    at which all is ok then, and ``command`` makes the change without dequantising; empty for
    others.
    """

    kind: str
    change: str
    outcome: Outcome = "ok"
    mended: tuple[str, ...] = ()
    config: Mapping[str, int] = field(default_factory=dict)
    launches: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    bytes: float | None = 0.0
    tps: tuple[int, ...] = ()
    command: str = ""

    @property
    def is_of_serving(self) -> bool:
        """Whether who serves a published model can make it: the checkpoint stays as it is."""
        return self.kind in ("ep", "tp")


Change = tuple[ConfigDeployment, Remedy]
"""A deployment to judge, and the remedy that it is where it is better."""


def find_remedies(deployment: ConfigDeployment, judgements: Sequence[Judgement]) -> list[Remedy]:
    """The changes that leave a better outcome: those of serving first, then the best, then those
    that add the fewest bytes. Of TP degrees the nearest two, of finer groups the largest."""
    if not any(judgement.findings for judgement in judgements):
        return []
    remedies: list[Remedy] = []
    degrees: dict[int, Remedy] = {}
    for changed, change in _changes(deployment, judgements):
        if change.kind == "groups" and any(remedy.kind == "groups" for remedy in remedies):
            continue
        remedy = _tried(deployment, judgements, changed, change)
        if remedy is not None and change.kind == "tp":
            degrees[changed.tp] = remedy
        elif remedy is not None:
            remedies.append(remedy)
    best = min((r.outcome for r in degrees.values()), key=OUTCOMES.index, default="ok")
    equal = [tp for tp, remedy in degrees.items() if remedy.outcome == best]
    below = [degrees[tp] for tp in equal if tp < deployment.tp]
    above = [degrees[tp] for tp in equal if tp > deployment.tp]
    remedies.sort(key=lambda remedy: max(remedy.bytes or 0.0, 0.0))
    remedies += below[-1:] + above[:1]
    remedies.sort(key=lambda remedy: OUTCOMES.index(remedy.outcome))
    return sorted(remedies, key=lambda remedy: not remedy.is_of_serving)


def _tried(
    deployment: ConfigDeployment,
    judgements: Sequence[Judgement],
    changed: ConfigDeployment,
    change: Remedy,
) -> Remedy | None:
    """A change with what it was judged to do; None where that is no better."""
    try:
        after = changed.judgements()
    except ConfigError:
        return None  # such a config is none
    outcome = overall(after)
    is_better = OUTCOMES.index(outcome) < OUTCOMES.index(overall(judgements))
    if outcome not in SERVED or not is_better:
        return None
    fine = {judgement.product.name for judgement in after if judgement.outcome == "ok"}
    broken = [judgement.product.name for judgement in judgements if judgement.findings]
    mended = tuple(name for name in broken if name in fine)
    kernels = changed.engine_answer(after)[1]
    launches = {name: kernels[name] for name in mended if name in kernels}
    ranks = {"tp": changed.tp, "ep": changed.ep}
    remedy = replace(change, outcome=outcome, mended=mended, launches=launches, ranks=ranks)
    if not change.config:
        return remedy
    stored, grown = (replace(d, tp=1, ep=1, dp=1).weight_bytes for d in (deployment, changed))
    growth = grown / stored - 1 if stored and grown else None
    tps = [tp for tp in USUAL_TP if overall(_at_degree(changed, tp).judgements()) == "ok"]
    return replace(remedy, bytes=growth, tps=tuple(tps) if _is_packed(changed) else ())


def _is_packed(deployment: ConfigDeployment) -> bool:
    """Whether the checkpoint's own weights are quantised: then nobody knows what a cut loses."""
    return deployment.storage.stored and deployment.storage.form != "none"


def _at_degree(deployment: ConfigDeployment, tp: int) -> ConfigDeployment:
    """The deployment on other ranks, which share out experts if they did before."""
    changed = replace(deployment, tp=tp, ep=1)
    return with_whole_experts(changed) if deployment.ep > 1 else changed


def with_whole_experts(deployment: ConfigDeployment) -> ConfigDeployment:
    """The deployment with experts that all ranks which its engine has for them share out."""
    several = replace(deployment, ep=deployment.tp * deployment.dp)
    return replace(deployment, ep=several.ranks["expert_total"])


def _changes(deployment: ConfigDeployment, judgements: Sequence[Judgement]) -> Iterator[Change]:
    """The changes to try, those of sizes last."""
    tp = deployment.tp
    if deployment.sizes.has_experts and max(deployment.ep, tp, deployment.dp) > 1:
        shared_out = with_whole_experts(deployment).ep
        for ep in sorted({shared_out, 1} - {deployment.ep}, reverse=True):
            changed = replace(deployment, ep=ep)
            yield changed, Remedy("ep", changed.serve_command)
    if deployment.engine.splits == "tensors":
        for degree in TP_DEGREES:
            if degree != tp:
                changed = _at_degree(deployment, degree)
                yield changed, Remedy("tp", changed.serve_command)
    storage = deployment.storage
    may_refine = _is_packed(deployment) and storage.form in MAY_REFINE and not storage.desc_act
    group = storage.group // 2
    while may_refine and group >= LEAST_GROUP:
        changed = replace(deployment, storage=replace(storage, group=group))
        size, command = {"group_size": group}, REALIGN.format(f"groups{group}")
        yield changed, Remedy("groups", f"groups of {group}", config=size, command=command)
        group //= 2
    yield from _size_changes(deployment, judgements)


def _broken_fields(
    deployment: ConfigDeployment, judgements: Sequence[Judgement]
) -> dict[str, list[Judgement]]:
    """The config's sizes that break a requirement, with all judgements on products of theirs."""
    sharing = [judgement for judgement in judgements if not judgement.product.is_by_heads]
    broken = {judgement.product.field for judgement in sharing if judgement.findings}
    by_field: dict[str, list[Judgement]] = {}
    for judgement in sharing:
        name = judgement.product.field
        if name in broken and isinstance(deployment.sizes.values.get(name), int):
            by_field.setdefault(name, []).append(judgement)
    return by_field


def _size_changes(
    deployment: ConfigDeployment, judgements: Sequence[Judgement]
) -> Iterator[Change]:
    """Sizes at the multiples that are needed: each alone, then all widths of MLPs together."""
    widths: dict[str, int] = {}
    changes: list[dict[str, int]] = []
    for name, of_field in _broken_fields(deployment, judgements).items():
        size, multiple = deployment.sizes.values[name], joint_multiple(of_field).multiple
        below = size // multiple * multiple
        if size == below or multiple >= MAX_WIDTH_MULTIPLE:
            continue
        if below and not _is_packed(deployment):
            changes.append({name: below})
        changes.append({name: below + multiple})
        if any(map(is_of_mlp, of_field)):
            widths[name] = below + multiple
    if widths and widths not in changes:
        changes.append(widths)
    for config in changes:
        values = deployment.config
        for name, size in config.items():
            values = with_field(values, name, size)
        words = ", ".join(f"{name} {size}" for name, size in config.items())
        command = ""
        if config == widths and _is_packed(deployment) and deployment.storage.form != "gguf":
            parts = ["for", deployment.engine.name, f"tp{deployment.tp}"]
            parts += [f"ep{deployment.ep}"] if deployment.ep > 1 else []
            parts += [deployment.gpu.key] if deployment.gpu.key != "any" else []
            command = REALIGN.format(":".join(parts))
        remedy = Remedy("size", words, config=config, command=command)
        yield replace(deployment, config=values), remedy


def with_field(config: Mapping[str, Any], name: str, value: int) -> dict[str, Any]:
    """A config with a field changed where it has it: at the top or in its text part."""
    for part, values in config.items():
        if name not in config and isinstance(values, Mapping) and name in values:
            return {**config, part: {**values, name: value}}
    return {**config, name: value}
