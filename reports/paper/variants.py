"""The models to compare: dense, unaligned, naive repairs, ours; and the suites that measure them.

A plan needs a map, and a prediction needs the plan's own shapes in the map: the sizes near the
unaligned ones are swept first, the plan is made on that map, and what it chose is swept then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama import Shape, inventory_of, padded, rounded, unaligned_ranks, unaligned_widths

from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import GacprofError, MeasurementError
from gacprof.planning import Constraints, plan
from gacprof.sweeping import Suite
from gacprof.sweeping.for_checkpoint import suite_for
from gacprof.sweeping.suite import parse_suite

DENSE, UNALIGNED, ROUNDED, PADDED, PLANNED = (
    "dense", "unaligned", "rounded to 8", "padded to 8", "planned",
)  # fmt: skip
GROUPS = {"low rank": "rank", "pruned width": "width"}
"""Group → kind of the dims that are compressed in it."""
PLAN_TOKENS = (1, 1024)
"""What the plan is made for: decoding, and the papers' prompt length."""
TIMING = {"processes": 2, "blocks": 12, "most_blocks": 100, "replicates": 0.15}
"""Of these sweeps: many short curves, of whose dims only a few are chosen; starting a process on
a GPU takes seconds."""


@dataclass(frozen=True)
class Variant:
    """One model of a group; ``sizes`` are the dims that differ from the dense model's."""

    group: str
    name: str
    sizes: Mapping[str, int]
    parameters: int = 0

    def inventory(self, shape: Shape) -> Inventory:
        """Of as many layers as the shape has: ``model.layers.3.mlp:width`` is of the fourth."""
        kept = {n: s for n, s in self.sizes.items() if int(n.split(".")[2]) < shape.layers}
        return inventory_of(shape, kept, f"<{self.group}, {self.name}>")


def candidate_suite(shape: Shape) -> Suite:
    """What the unaligned ranks and widths could become, at the tokens that the plan is for."""
    tables = []
    for sizes in (unaligned_ranks(shape), unaligned_widths(shape)):
        made = suite_for(inventory_of(shape, sizes), PLAN_TOKENS, dtype=shape.dtype, timing=TIMING)
        tables += made.plain()["sweep"]
    data = {"name": "candidates", "timing": TIMING, "sweep": tables}
    return parse_suite(data, f"the suite of sizes near those of {shape.scale}")


def all_variants(shape: Shape, cliff_map: CliffMap) -> tuple[list[Variant], list[str]]:
    """Every group's variants, and why a plan could not be made where there is none."""
    found: list[Variant] = []
    unplanned: list[str] = []
    for group, kind in GROUPS.items():
        sizes = unaligned_ranks(shape) if kind == "rank" else unaligned_widths(shape)
        listed = {DENSE: {}, UNALIGNED: sizes, ROUNDED: rounded(sizes), PADDED: padded(sizes)}
        try:
            listed[PLANNED] = planned(shape, sizes, kind, cliff_map)
        except GacprofError as error:
            unplanned.append(f"{group}: no plan: {error}")
        found += [
            Variant(group, name, chosen, inventory_of(shape, chosen).parameters)
            for name, chosen in listed.items()
        ]
    return found, unplanned


def planned(
    shape: Shape, sizes: Mapping[str, int], kind: str, cliff_map: CliffMap
) -> dict[str, int]:
    """Ours: the plan's sizes, in no more parameters than the unaligned model has.

    The objective is the paper's Eq. 4 with equal scores: random weights have no spectra worth
    keeping. Raises :class:`GacprofError` where the map cannot carry a plan.
    """
    inventory = inventory_of(shape, sizes)
    other = {d.name: d.size for d in inventory.dims if d.kind != kind}
    made = plan(
        inventory,
        cliff_map,
        objective="gac",
        budget_parameters=inventory.parameters,
        tokens=dict.fromkeys(PLAN_TOKENS, 1.0),
        dtype=shape.dtype,
        constraints=Constraints(pinned=other),
    )
    ours = [choice for choice in made.choices if choice.kind == kind]
    if not any(choice.candidates for choice in ours):
        raise MeasurementError(
            "the map knows no safe size near any dim: it is too thin yet (--resume deepens it)"
        )
    return {choice.dim: choice.after for choice in ours if choice.after is not None}


def shapes_suite(shape: Shape, variants: Sequence[Variant]) -> Suite:
    """Every product and attention of the variants at every workload's token count."""
    widths: dict[int, set[int]] = defaultdict(set)
    for variant in variants:
        for module in variant.inventory(shape).modules:
            if module.role not in ("embedding", "head"):
                for gemm in module.gemms:
                    widths[gemm.K].add(gemm.N)
    tables = [_linear(shape, k, sorted(sizes), shape.tokens) for k, sizes in sorted(widths.items())]
    tables.append(_linear(shape, shape.hidden, [shape.vocabulary], sorted(shape.decode_batches)))
    data = {"name": "shapes", "timing": TIMING, "sweep": [*tables, *_attention(shape)]}
    return parse_suite(data, "the suite of the variants' shapes")


def _linear(shape: Shape, k: int, sizes: list[int], tokens: list[int]) -> dict[str, Any]:
    return {
        "operator": "linear",
        "axis": "N",
        "values": sizes,
        "dims": {"M": tokens, "K": k},
        "dtype": shape.dtype,
        "flags": {"bias": False, "cache": "cold"},
    }


def _attention(shape: Shape) -> list[dict[str, Any]]:
    """Prefill of each length, and decode in the middle of its steps."""
    heads = {"heads": shape.heads, "kv_heads": shape.kv_heads}
    prefill = {"q_len": list(shape.prefill)}
    cached = shape.prompt + shape.decode_steps // 2
    decode = {"batch": list(shape.decode_batches), "q_len": 1, "kv_len": cached}
    common = {"operator": "attention", "axis": "head_dim", "values": [shape.head_dim]}
    return [
        common | {"dims": heads | dims, "dtype": shape.dtype, "flags": {"causal": causal}}
        for dims, causal in ((prefill, True), (decode, False))
    ]
