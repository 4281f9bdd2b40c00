"""Stage ``shapes``: the models to compare, ours among them, and every product of theirs measured.

A plan needs a map, and a prediction needs the plan's own shapes in the map: so the plan is made
on the map of the candidates, and what it chose is then swept at every token count.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import GacprofError, MeasurementError
from gacprof.core.files import write_json
from gacprof.survey.setting import MAP, Setting
from gacprof.survey.shapes import (
    Shape,
    inventory_of,
    padded,
    rounded,
    unaligned_ranks,
    unaligned_widths,
)
from gacprof.survey.state import NotYetError, Outcome
from gacprof.survey.sweep import PLAN_TOKENS, TIMING, publish, sweep_into
from gacprof.sweeping import Suite, load_suite
from gacprof.sweeping.suite import parse_suite

FILE = "variants.json"
EXACT = "shapes"
DENSE, UNALIGNED, ROUNDED, PADDED, PLANNED = (
    "dense", "unaligned", "rounded to 8", "padded to 8", "planned",
)  # fmt: skip
GROUPS = {"low rank": "rank", "pruned width": "width"}
"""Group → kind of the dims that are compressed in it."""


@dataclass(frozen=True)
class Variant:
    """One model of a group; ``sizes`` are the dims that differ from the dense model's."""

    group: str
    name: str
    sizes: Mapping[str, int]
    parameters: int

    def inventory(self, shape: Shape) -> Inventory:
        kept = {n: s for n, s in self.sizes.items() if _layer(n) < shape.layers}
        return inventory_of(shape, kept, f"<{self.group}, {self.name}>")


def make(setting: Setting) -> Outcome:
    """Plan, write ``variants.json``, sweep the variants' exact shapes, build the map anew."""
    cliff_map, shape = setting.cliff_map(), setting.machine.shape
    variants, notes = all_variants(shape, cliff_map)
    _save(setting, variants, notes)
    summary = sweep_into(setting, EXACT, exact_suite(setting, variants), setting.left_s())
    publish(setting, load_suite(setting.suite))
    unplanned = [note for note in notes if "no plan" in note]
    thin = "; ".join(unplanned)
    if summary.unfinished:
        thin = f"{summary.unfinished} curves of the variants' own shapes are not finished"
    return Outcome(artefacts=(FILE, MAP), notes=tuple(notes), thin=thin)


def all_variants(shape: Shape, cliff_map: CliffMap) -> tuple[list[Variant], list[str]]:
    """Every group's variants, and notes on a plan that could not be made."""
    found: list[Variant] = []
    notes: list[str] = []
    for group, kind in GROUPS.items():
        sizes = unaligned_ranks(shape) if kind == "rank" else unaligned_widths(shape)
        listed = {DENSE: {}, UNALIGNED: sizes, ROUNDED: rounded(sizes), PADDED: padded(sizes)}
        try:
            listed[PLANNED] = planned(shape, sizes, kind, cliff_map)
        except GacprofError as error:
            notes.append(f"{group}: no plan: {error}")
        found += [
            Variant(group, name, chosen, inventory_of(shape, chosen).parameters)
            for name, chosen in listed.items()
        ]
    return found, notes


def planned(
    shape: Shape, sizes: Mapping[str, int], kind: str, cliff_map: CliffMap
) -> dict[str, int]:
    """Ours: the plan's sizes, in no more parameters than the unaligned model has.

    The objective is the paper's Eq. 4 with equal scores: random weights have no spectra worth
    keeping. Raises :class:`GacprofError` where the map cannot carry a plan.
    """
    from gacprof.planning import Constraints, plan

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
    stuck = [c.dim for c in made.choices if c.kind == kind and not c.candidates]
    if len(stuck) == len(sizes):
        raise MeasurementError(
            "the map knows no safe size near any dim: it is too thin yet (--resume deepens it)"
        )
    return {c.dim: c.after for c in made.choices if c.kind == kind and c.after is not None}


def exact_suite(setting: Setting, variants: Sequence[Variant]) -> Suite:
    """Every product and attention of the variants at every workload's token count."""
    shape = setting.machine.shape
    bodies: dict[int, set[int]] = defaultdict(set)
    for variant in variants:
        for module in variant.inventory(shape).modules:
            if module.role not in ("embedding", "head"):
                for gemm in module.gemms:
                    bodies[gemm.K].add(gemm.N)
    tables = [_linear(shape, k, sorted(sizes), shape.tokens) for k, sizes in sorted(bodies.items())]
    tables.append(_linear(shape, shape.hidden, [shape.vocabulary], shape.decode_batches))
    tables += _attention(shape)
    data = {"name": "survey-shapes", "timing": TIMING, "sweep": tables}
    return parse_suite(data, "the suite of the variants' shapes")


def load(setting: Setting) -> list[Variant]:
    """The variants as written. Raises :class:`NotYetError` where there are none."""
    try:
        data = json.loads((setting.folder / FILE).read_text(encoding="utf-8"))
        return [Variant(**variant) for variant in data["variants"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotYetError(f"{FILE} is not there or not readable: {error}") from None


def _linear(shape: Shape, k: int, sizes: list[int], tokens: Iterable[int]) -> dict[str, Any]:
    return {
        "operator": "linear",
        "axis": "N",
        "values": sizes,
        "dims": {"M": sorted(tokens), "K": k},
        "dtype": shape.dtype,
        "flags": {"bias": False, "cache": "cold"},
    }


def _attention(shape: Shape) -> list[dict[str, Any]]:
    """Prefill of each length, and decode in the middle of its steps."""
    heads = {"heads": shape.heads, "kv_heads": shape.kv_heads}
    cached = shape.prompt + shape.decode_steps // 2
    lengths: dict[str, Any] = {"q_len": list(shape.prefill)}
    decode = {"batch": list(shape.decode_batches), "q_len": 1, "kv_len": cached}
    common = {
        "operator": "attention",
        "axis": "head_dim",
        "values": [shape.head_dim],
        "dtype": shape.dtype,
    }
    return [
        common | {"dims": heads | lengths, "flags": {"causal": True}},
        common | {"dims": heads | decode, "flags": {"causal": False}},
    ]


def _save(setting: Setting, variants: Sequence[Variant], notes: Sequence[str]) -> None:
    write_json(
        setting.folder / FILE,
        {
            "shape": setting.machine.shape.as_dict(),
            "variants": [asdict(variant) for variant in variants],
            "notes": list(notes),
        },
    )


def _layer(dim: str) -> int:
    """``model.layers.3.mlp:width`` → 3."""
    return int(dim.split(".")[2])
