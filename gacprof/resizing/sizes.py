"""What may be asked of :func:`gacprof.realign`, as sizes by dim name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layouts.declared import width_keys
from gacprof.core.errors import CheckpointError, PlanError, short
from gacprof.planning import Plan
from gacprof.planning.costs import Footprint, footprint
from gacprof.resizing.workspace import digest

AGAIN = "the plan was edited: plan again (--pin holds a size)"


@dataclass(frozen=True)
class Requested:
    """New sizes by dim name, None where factors are merged; ``origin`` says who asked."""

    sizes: NewSizes
    origin: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Padding:
    """Every dim that zeros may pad becomes a multiple; the result's notes name those left alone.

    Widths that follow from one number of the config are padded together or not at all, so that a
    plain model stays one.
    """

    multiple: int = 8

    def request(self, inventory: Inventory) -> Requested:
        _refuse_multiple(self.multiple)
        sizes: dict[str, int] = {}
        why = {dim.name: dim.why for dim in inventory.dims if dim.padding == "refused"}
        for key in width_keys(inventory.config, inventory.dims):
            names = [dim.name for dims in key.dims.values() for dim in dims]
            if key.value_with({}) is None or key.value not in (None, key.value_with({})):
                continue  # layers differ: no number says their widths now
            frozen = next((name for name in names if name in why), None)
            if frozen is None:
                sizes |= key.padded(self.multiple)
            else:
                why |= {name: why.get(name, f"{frozen} stays as it is") for name in names}
        odd = [dim for dim in inventory.dims if dim.size % self.multiple]
        left = [f"{dim.name} stays {dim.size}: {why[dim.name]}" for dim in odd if dim.name in why]
        rounded = {d.name: round_up(d.size, self.multiple) for d in odd if d.name not in why}
        before = {dim.name: dim.size for dim in inventory.dims}
        sizes = {name: n for name, n in (rounded | sizes).items() if n != before[name]}
        return Requested(sizes, {"padding": self.multiple}, tuple(left))


@dataclass(frozen=True)
class Uniform:
    """All widths of one kind at their largest, rounded up: a plain config that any server loads.

    Every width is named, so that the config is rewritten even where one needs no padding.
    :class:`CheckpointError` is raised where the result would still not be a plain model.
    """

    multiple: int = 8

    def request(self, inventory: Inventory) -> Requested:
        _refuse_multiple(self.multiple)
        factored = [m.name for m in inventory.modules if m.kind in ("factored", "grouped")]
        attentions = {(a.heads, a.kv_heads, a.head_dim) for a in inventory.attentions}
        widths = [dim for dim in inventory.dims if dim.kind == "width"]
        reason = ""
        if factored:
            reason = (
                f"has factored layers ({factored[0]} and {len(factored) - 1} more): no plain "
                "config describes those; 'gacprof export --to transformers' can"
            )
        elif any(dim.kind == "hidden" for dim in inventory.dims):
            reason = (
                "has a sliced hidden size and shortcut matrices, which no plain config describes; "
                "realign it by a plan"
            )
        elif len(attentions) > 1:
            reason = (
                f"has {len(attentions)} different attention shapes: heads cannot be padded, so no "
                "plain config describes it"
            )
        elif not widths:
            reason = "has no width that differs between layers"
        if reason:
            raise CheckpointError(f"{inventory.path} {reason}")
        largest: dict[str, int] = {}
        for dim in widths:
            largest[dim.role] = max(largest.get(dim.role, 0), dim.size)
        sizes = {dim.name: round_up(largest[dim.role], self.multiple) for dim in widths}
        for key in width_keys(inventory.config, widths):
            sizes |= key.padded(self.multiple)
        return Requested(sizes, {"uniform": self.multiple})


@dataclass(frozen=True)
class Fuse:
    """Factor pairs multiplied out into dense weights: all, or those of the named ``modules``. The
    product is computed in float64 and rounded once to the stored dtype."""

    modules: tuple[str, ...] | None = None

    def request(self, inventory: Inventory) -> Requested:
        ranks = {
            module.name: [rank.name for rank in inventory.ranks_of(module)]
            for module in inventory.modules
            if module.kind in ("factored", "grouped")
        }
        unknown = sorted(set(self.modules or ()) - ranks.keys())
        if unknown:
            raise PlanError(f"{inventory.path}: '{unknown[0]}' is not a factored module")
        if not ranks:
            raise PlanError(f"{inventory.path} has no factored modules to fuse")
        chosen = ranks if self.modules is None else self.modules
        sizes = {dim: None for name in chosen for dim in ranks[name]}
        return Requested(sizes, {"fuse": sorted(self.modules) if self.modules else "all"})


Asked = Plan | str | Path | Mapping[str, int | None] | Padding | Uniform | Fuse
"""A plan, its file, sizes by dim name (None: merge the factors), a word, or what it stands for."""

WORDS: Mapping[str, Padding | Uniform | Fuse] = MappingProxyType(
    {"minimal": Padding(8), "optimal": Padding(16), "uniform": Uniform(), "fuse": Fuse()}
)
"""``minimal`` and ``optimal`` are the zero-padding repairs of "When Smaller Is Slower"."""


def requested(inventory: Inventory, asked: Asked) -> Requested:
    """What was asked for, as sizes. A plan's fingerprint is that of files, so a model in memory
    is held to the plan's dims only.

    Raises :class:`PlanError` for a plan that was not made for this checkpoint.
    """
    if isinstance(asked, str):
        asked = WORDS.get(asked, asked)
    if isinstance(asked, Mapping):
        return Requested(dict(asked), {"sizes": dict(asked)})
    if isinstance(asked, Padding | Uniform | Fuse):
        return asked.request(inventory)
    if not isinstance(asked, Plan | str | Path):
        raise PlanError(
            f"{asked!r:.60} is nothing to realign to: give a plan, its file, sizes by dim name, or "
            f"one of {', '.join(WORDS)}"
        )
    plan = asked if isinstance(asked, Plan) else Plan.load(asked)
    in_memory = inventory.container == "memory"
    if not in_memory and plan.fingerprint != inventory.fingerprint:
        raise PlanError(
            f"the plan was made for another checkpoint ({plan.checkpoint}, fingerprint "
            f"{plan.fingerprint[:12]}); {inventory.path} has {inventory.fingerprint[:12]}"
        )
    _check(plan, inventory, priced=not in_memory and plan.budget.checkpoint_after is not None)
    origin: dict[str, Any] = {"plan": digest(plan.as_dict())}
    if any(phase.steps for phase in plan.phases):
        origin["phases"] = [phase.model_dump() for phase in plan.phases]
    return Requested(plan.changes, origin)


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _refuse_multiple(multiple: int) -> None:
    if type(multiple) is not int or multiple < 1:
        raise PlanError(f"a multiple of {multiple!r:.40} makes no sense; use 8")


def _check(plan: Plan, inventory: Inventory, priced: bool) -> None:
    """Raise :class:`PlanError` for a choice that is not one of a dim as it is here, and where sizes
    were edited and what they cost was not.

    A plan is a file that people edit. Its sizes may be changed by hand; but where it is ``priced``,
    still says what they cost, sizes and costs have to agree.
    """
    if not plan.choices:
        raise PlanError(f"the plan for {plan.checkpoint} has no choices: plan again")
    dims = {dim.name: dim for dim in inventory.dims}
    for choice in plan.choices:
        name, after, dim = choice.dim, choice.after, dims.get(choice.dim)
        if dim is None or (choice.kind, choice.before) != (dim.kind, dim.size):
            here = f"here it is a {dim.kind} of {dim.size}" if dim else "there is none here"
            raise PlanError(
                f"the plan for {plan.checkpoint} does not fit the {inventory.path}: it says that "
                f"'{name}' is a {choice.kind} of {short(choice.before)}, {here}"
            )
        if after is None:
            continue
        if dim.most is not None and after > dim.most:
            raise PlanError(
                f"the plan gives '{name}' the rank {short(after)}: the dense weight's "
                f"rank is {dim.dense_size}"
            )
        cost = after * dim.params_per_unit
        if priced and choice.cost != cost:
            raise PlanError(
                f"the plan gives '{name}' the size {short(after)} at {short(choice.cost)} "
                f"parameters, it takes {short(cost)}; {AGAIN}"
            )
        if priced and after != choice.before and after not in choice.candidates:
            raise PlanError(
                f"the plan gives '{name}' the size {short(after)}, which was not on offer; {AGAIN}"
            )
    if priced:
        _check_totals(plan, footprint(inventory, plan.changes))


def _check_totals(plan: Plan, then: Footprint) -> None:
    for what, stated, found in (
        ("parameters", plan.budget.checkpoint_after, then.parameters),
        ("bytes of weights", plan.memory and plan.memory.after, then.nbytes),
    ):
        if stated is not None and stated != found:
            raise PlanError(
                f"the plan says {short(stated)} {what}, its sizes give {short(found)}; {AGAIN}"
            )
