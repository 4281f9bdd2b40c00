"""Plans on planted staircases, beside what enumeration finds.

A device's steps are planted: of 8, 16, 24, 32 or 48, and either a staircase (work is rounded up to
the step) or teeth (what is off the step is 40 % slower). What is right follows from that function
and from a list of the checkpoint's products alone; the map only says which points were measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from checkpoint_making import checkpoint
from planted import planted_map_of
from safetensors.numpy import save_file

from gacprof.checkpoint import Inventory, scan
from gacprof.cliffmap import CliffMap
from gacprof.core.points import Point
from gacprof.planning import Constraints, Plan, plan
from gacprof.planning.costs import footprint
from gacprof.resizing import realign

TOKENS = {1: 1.0, 64: 1.0}
TOLERANCE = 0.02
MLP, ATTENTION = "model.layers.{}.mlp", "model.layers.{}.self_attn"
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Planted:
    """A device: what one product of M × N × K takes, in µs."""

    step: int
    teeth: bool

    def __call__(self, m: int, n: int, k: int) -> float:
        if self.teeth:
            return 2.0 + m * n * k / 1e6 * (1.4 if n % self.step or k % self.step else 1.0)
        up = [ceil(size / self.step) * self.step for size in (n, k)]
        return 2.0 + m * up[0] * up[1] / 1e6

    def point(self, point: Point) -> float:
        return self(*(point.dim[axis] for axis in "MNK")) if point.operator == "linear" else 50.0


def _widths(rng: Random, layers: int = 2) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        at, width = MLP.format(layer), rng.randrange(150, 400)
        shapes |= {f"{at}.{part}_proj.weight": (width, 192) for part in ("gate", "up")}
        shapes[f"{at}.down_proj.weight"] = (192, width)
    return shapes


def _pairs(rng: Random) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for part in "qk":
        at, rank = f"{ATTENTION.format(0)}.{part}_proj", rng.randrange(40, 120)
        shapes |= {f"{at}.BLinear.weight": (rank, 192), f"{at}.ALinear.weight": (192, rank)}
    return shapes


def _pairs_at_a_width(rng: Random) -> dict[str, tuple[int, ...]]:
    at, width = MLP.format(0), rng.randrange(200, 500)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in ("gate", "up", "down"):
        out, deep = (192, width) if part == "down" else (width, 192)
        rank = rng.randrange(60, 130)
        shapes |= {
            f"{at}.{part}_proj.BLinear.weight": (rank, deep),
            f"{at}.{part}_proj.ALinear.weight": (out, rank),
        }
    return shapes


def _groups(rng: Random, heads: int = 2) -> dict[str, tuple[int, ...]]:
    at, ranks = f"{ATTENTION.format(0)}.k_proj", [rng.randrange(20, 90) for _ in range(heads)]
    shapes = {f"{at}.VT.weight": (sum(ranks), 256)}
    return shapes | {f"{at}.U.{i}.weight": (96, rank) for i, rank in enumerate(ranks)}


def _sliced(rng: Random) -> dict[str, tuple[int, ...]]:
    hidden, at = rng.randrange(180, 250), "model.layers.0"
    return {
        "model.embed_tokens.weight": (64, hidden),
        **{f"{at}.self_attn.{x}_proj.weight": (64, hidden) for x in "qkv"},
        f"{at}.attn_shortcut_Q": (hidden, 256),
        f"{at}.self_attn.o_proj.weight": (256, 64),
        f"{at}.mlp.gate_proj.weight": (64, 256),
        f"{at}.mlp.up_proj.weight": (64, 256),
        f"{at}.mlp.down_proj.weight": (256, 64),
        f"{at}.mlp_shortcut_Q": (256, 256),
        "lm_head.weight": (64, 256),
    }


def _heads_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    ranks = [shape[1] for name, shape in shapes.items() if ".U." in name]
    return {"head_wise_ranks": {f"{ATTENTION.format(0)}.k_proj": ranks}} if ranks else {}


FAMILIES: Mapping[str, tuple[Callable[[Random], dict[str, tuple[int, ...]]], str]] = {
    "widths": (_widths, "none"),
    "one width": (_widths, "*:width"),
    "pairs": (_pairs, "none"),
    "pairs at a width": (_pairs_at_a_width, "none"),
    "two groups": (_groups, "none"),
    "three groups": (lambda rng: _groups(rng, 3), "none"),
    "sliced": (_sliced, "none"),
}
"""Family → what makes its shapes, and which of its dims share a size."""


@dataclass(frozen=True)
class Case:
    family: str
    device: Planted
    seed: int

    def __str__(self) -> str:
        kind = "teeth" if self.device.teeth else "stairs"
        return f"{self.family}, {kind} of {self.device.step}, {self.seed}"


@dataclass(frozen=True)
class Products:
    """The products of a checkpoint's planned weights: (N, K) as they are, and the dims on each.

    ``together`` are names of dims that share one size.
    """

    sizes: Mapping[str, int]
    most: Mapping[str, float]
    each: Sequence[tuple[int, int, tuple[str, ...], tuple[str, ...]]]
    together: Sequence[tuple[str, ...]]

    def shape(self, index: int, sizes: Sizes) -> tuple[int, int]:
        n, k, on_n, on_k = self.each[index]
        grown = [
            sum(sizes.get(d, self.sizes[d]) - self.sizes[d] for d in on) for on in (on_n, on_k)
        ]
        return n + grown[0], k + grown[1]

    def of(self, names: Sequence[str] | None = None) -> list[int]:
        """The places of all products, or of those that any of these dims takes part in."""
        return [
            i for i, (_, _, on_n, on_k) in enumerate(self.each)
            if names is None or {*on_n, *on_k} & {*names}
        ]  # fmt: skip


def products_of(inventory: Inventory, uniform: str) -> Products:
    each = []
    for module in inventory.modules:
        for gemm in module.gemms if module.dims else ():
            feeds = [
                (dim.name, feed.axis)
                for dim in inventory.dims for feed in dim.feeds if feed.weight == gemm.weight
            ]  # fmt: skip
            on = [tuple(name for name, axis in feeds if axis == a) for a in "NK"]
            each.append((gemm.N, gemm.K, *on))
    names = [dim.name for dim in inventory.dims]
    return Products(
        {dim.name: dim.size for dim in inventory.dims},
        {dim.name: dim.most or inf for dim in inventory.dims},
        each,
        [tuple(names)] if uniform != "none" else [(name,) for name in names],
    )


@dataclass
class Setting:
    """A case with its checkpoint, its map and what was measured: (N, K) at all token counts."""

    case: Case
    inventory: Inventory
    map: CliffMap
    products: Products
    measured: set[tuple[int, int]] = field(default_factory=set)

    def time(self, sizes: Sizes, where: Sequence[int] | None = None) -> float:
        """What these products truly take in all."""
        shapes = [self.products.shape(i, sizes) for i in (where or self.products.of())]
        return sum(w * self.case.device(m, *shape) for shape in shapes for m, w in TOKENS.items())

    def is_measured(self, sizes: Sizes, where: Sequence[int]) -> bool:
        return all(self.products.shape(i, sizes) in self.measured for i in where)


def setting(case: Case, folder: Path) -> Setting:
    make, uniform = FAMILIES[case.family]
    rng = Random(f"{case.family} {case.seed}")
    shapes = make(rng)
    source = checkpoint(folder / "source", shapes, _heads_of(shapes))
    data = np.random.default_rng(rng.randrange(2**32))  # zeros would have no energy to lose
    tensors = {name: data.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, source / "model.safetensors")
    inventory = scan(source)
    return _with_map(case, inventory, uniform)


def _with_map(case: Case, inventory: Inventory, uniform: str) -> Setting:
    found = planted_map_of(inventory, TOKENS, case.device.point, dtype="float32")
    points: dict[tuple[int, int], set[int]] = {}
    for curve in found.curves:
        for d in curve.points.d if curve.operator == "linear" else ():
            dims = {**curve.fixed, curve.axis: d}
            points.setdefault((dims["N"], dims["K"]), set()).add(dims["M"])
    measured = {shape for shape, at in points.items() if at >= set(TOKENS)}
    return Setting(case, inventory, found, products_of(inventory, uniform), measured)


def planned(at: Setting, objective: str) -> Plan:
    _, uniform = FAMILIES[at.case.family]
    return plan(
        at.inventory, at.map, objective=objective, tokens=TOKENS,
        constraints=Constraints(uniform, fuse=False),
    )  # fmt: skip


def wrong(at: Setting, made: Plan) -> Iterator[str]:
    """What is wrong with a plan of objective pad or latency; nothing is cut in either."""
    sizes = {choice.dim: choice.after or choice.before for choice in made.choices}
    now, then = at.time({}), at.time(sizes)
    forced = any(len({at.products.sizes[n] for n in group}) > 1 for group in at.products.together)
    if then > now * (1 + 1e-9) and not forced:
        yield f"slower: {now:.2f} becomes {then:.2f} µs"
    if made.predicted_after_us is not None and abs(made.predicted_after_us / then - 1) > 0.01:
        yield f"{made.predicted_after_us:.2f} µs predicted where {then:.2f} are right"
    for choice in made.choices:
        penalty = worst_penalty(at, sizes, choice.dim)
        if choice.verdict == "safe" and penalty > TOLERANCE + 1e-3:
            yield f"{choice.dim} at {choice.after} is called safe and loses {penalty:.1%}"
    if made.certificate.proved:
        best = least(at, made)
        reached = then if made.objective == "latency" else cost(at, sizes)
        if best < reached * (1 - 1e-9):
            yield f"proved at {reached:.2f} where {best:.2f} is possible"


def worst_penalty(at: Setting, sizes: Sizes, name: str) -> float:
    """What padding the dims that share this one's size would save, by what was measured."""
    group = next(group for group in at.products.together if name in group)
    where = at.products.of(group)
    own = at.time(sizes, where)
    larger = [
        {**sizes, **dict.fromkeys(group, size)}
        for size in range(sizes[name] + 1, 2 * sizes[name] + 130)
        if size <= min(at.products.most[each] for each in group)
    ]
    return max((own / at.time(x, where) - 1 for x in larger if at.is_measured(x, where)), default=0)


def cost(at: Setting, sizes: Sizes) -> float:
    """Parameters of the whole checkpoint with these sizes."""
    return float(footprint(at.inventory, sizes).parameters)


def least(at: Setting, made: Plan) -> float:
    """The least of what the objective counts over all sizes on offer, together measured: for
    latency any; for pad those no slower than as it is, of which none is misaligned, alone or
    together with others."""
    choices = {choice.dim: choice for choice in made.choices}
    offered = {}
    for group in at.products.together:  # nothing is cut
        own = {choices[name].before for name in group}
        most, sizes = max(own), {*choices[group[0]].candidates}
        if len(own) == 1:
            sizes |= own
        offered[group[0]] = sorted(size for size in sizes if size >= most)
    found = list(_combinations(at, offered))
    if made.objective == "latency":
        return min(at.time(sizes) for sizes in found)
    times = [at.time(sizes) for sizes in found]
    costs = [cost(at, sizes) for sizes in found]
    forced = any(len({at.products.sizes[n] for n in group}) > 1 for group in at.products.together)
    most = inf if forced else at.time({}) * (1 + 1e-9)
    for _, sizes, time in sorted(zip(costs, found, times, strict=True), key=lambda row: row[0]):
        if time > most:
            continue
        groups = [group[0] for group in at.products.together]
        if any(worst_penalty(at, sizes, name) > TOLERANCE / 2 for name in groups):
            continue
        larger = (
            t for x, t in zip(found, times, strict=True) if all(x[n] >= sizes[n] for n in sizes)
        )
        if time <= min(larger) * (1 + TOLERANCE / 2):
            return cost(at, sizes)
    return inf


def _combinations(at: Setting, offered: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """All sizes on offer whose products were all measured, or are as they are."""

    def extend(
        groups: Sequence[tuple[str, ...]], sizes: dict[str, int]
    ) -> Iterator[dict[str, int]]:
        if not groups:
            yield sizes
            return
        for size in offered[groups[0][0]]:
            more = {**sizes, **dict.fromkeys(groups[0], size)}
            placed = [
                i for i in at.products.of(groups[0])
                if {*at.products.each[i][2], *at.products.each[i][3]} <= more.keys()
            ]  # fmt: skip
            if at.is_measured(more, placed):
                yield from extend(groups[1:], more)

    return extend(at.products.together, {})


def defects(case: Case, folder: Path) -> list[str]:
    """What is wrong with the plans of a case, and with planning their outputs again."""
    at, found = setting(case, folder), []
    for objective in ("pad", "latency"):
        made = planned(at, objective)
        found += [f"{objective}: {what}" for what in wrong(at, made)]
        out = folder / f"{objective}-out"
        if not made.changes:
            continue
        realign(at.inventory, made, out)
        again = planned(Setting(case, scan(out), at.map, at.products), objective)
        if again.changes:
            found.append(f"{objective}: planning again changes {dict(again.changes)}")
    return found
