"""What an engine's rows require a model's widths to be multiples of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

from gacprof.checkpoint.inventory import Inventory
from gacprof.lint.deployment import ConfigDeployment
from gacprof.lint.judge import Judgement

PREFIXES = {"mlp": "", "expert": "expert_", "experts": "expert_", "shared_expert": "shared_"}
"""What stands before the roles of an MLP's products, by the role of its width."""
MLP_ROLES = ("gate_up", "gate", "up", "down")


@dataclass(frozen=True)
class EngineMultiple:
    """What a width has to be a ``multiple`` of, all ranks together, and the row (its id) that
    requires the most; of no row where the engine requires nothing."""

    multiple: int
    row: str = ""


ANY_SIZE = EngineMultiple(1)


def is_of_mlp(judgement: Judgement, *roles: str) -> bool:
    """Whether a product is of MLPs whose widths have one of these roles in an inventory, or any."""
    prefixes = {PREFIXES.get(role, role) for role in roles or PREFIXES}
    role = judgement.product.role
    return any(role.removeprefix(p) in MLP_ROLES and role.startswith(p) for p in prefixes)


def joint_multiple(judgements: Iterable[Judgement]) -> EngineMultiple:
    """What these products require of the width that they share.

    Every row counts: those that refuse a size or answer wrongly, and those that pad it or leave it
    to another kernel, so that the width is served as it is stored.
    """
    rows: dict[str, int] = {}
    for judgement in judgements:
        for row, multiple in judgement.width_multiples.items():
            rows[row] = lcm(rows.get(row, 1), multiple)
    return EngineMultiple(lcm(*rows.values()), max(rows, key=rows.__getitem__, default=""))


def engine_multiples(
    inventory: Inventory, deployment: ConfigDeployment
) -> dict[str, EngineMultiple]:
    """What an engine requires the widths of a checkpoint to be multiples of, by dim name; nothing
    of dims that no product of its rows has (ranks of factors, towers)."""
    judgements = deployment.judgements()
    widths = [dim for dim in inventory.dims if dim.kind == "width"]
    multiples: dict[str, EngineMultiple] = {}
    for role in {dim.role for dim in widths}:
        multiple = joint_multiple(j for j in judgements if is_of_mlp(j, role))
        if multiple.row:
            multiples |= {dim.name: multiple for dim in widths if dim.role == role}
    return multiples
