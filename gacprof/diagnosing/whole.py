"""Whole-model times: a step measured once, and what other sizes change of it.

A map knows products. What else a step holds (attention, norms, Python) no size changes, so that one
short bench of this model, or of the uncompressed one, tells it. Besides the products' own times a
change of sizes changes how many calls there are and how many distinct shapes: a factor pair is two
calls in place of one, and where layers differ in shape each finds less of its code and plans in
caches than a product that is measured again and again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, isfinite
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Gemm, Inventory
from gacprof.checkpoint.scanning import scan
from gacprof.cliffmap.estimate import NOTHING, Interval
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.files import read_json
from gacprof.diagnosing.predict import Predictor

OUTSIDE = 0.02
"""Of a whole step: by how much sums of products were off beside the step itself, twice the root
mean square of -0.6, +1.3 and +0.5 % (a prefill of two models and a decode step of one, SmolLM2-135M
on two CPU threads), and of +0.9 % for the other decode step once its shapes are counted."""


@dataclass(frozen=True)
class StepCosts:
    """What every further call takes, in µs, and in µs for each row of x, and every further distinct
    shape, as a share of the step: within 0 and these, the middle being what is expected."""

    call_us: float
    row_us: float
    shape: float


COSTS = {"cpu": StepCosts(6.0, 0.3, 0.0023), "cuda": StepCosts(2.0, 0.0, 0.0)}
"""By kind of device. CPU: a call of ``nn.Linear`` takes 3 µs longer than the ``F.linear`` that a
sweep times (5.0 and 2.2 µs, PyTorch 2.11, one thread of an EPYC); with 256 rows 70 factor pairs
took 44 and 32 µs more a further call than their products alone tell against 70 dense weights
(benchmarks/prediction.py); 16 more shapes cost a decode step of SmolLM2-135M 0.77 of 42 ms, 0.115 %
each. CUDA: the gap between kernels of a graph, assumed."""


@dataclass(frozen=True)
class Whole:
    """A model that was benched: its steps (low, middle, high µs) by the rows of its products.
    ``disturbed``: other programs had the cores meanwhile. A step takes longer then than the short
    calls of a sweep tell, so that its products' share is between what the bench says and all."""

    name: str
    inventory: Inventory
    kind: str
    steps: Mapping[int, tuple[float, float, float]]
    disturbed: bool = False

    def products(self, names: Sequence[str]) -> list[Gemm]:
        """Those of the modules of these names."""
        wanted = set(names)
        return [g for m in self.inventory.modules if m.name in wanted for g in m.gemms]

    def step_us(self, at: Predictor, products: Sequence[Gemm]) -> float | None:
        """The step with these products in place of its own, at the predictor's one token count;
        None where the bench or the map lacks it."""
        (tokens,) = at.tokens
        if tokens not in self.steps:
            return None
        own = self.products([m.name for m in at.inventory.modules if m.dims])
        step = self.steps[tokens]
        moved = self._moved(at, own, products, step[1])
        return None if moved is None else step[1] + moved[0]

    def change(
        self, at: Predictor, before: Sequence[Gemm], after: Sequence[Gemm]
    ) -> Interval | None:
        """What a step gains or loses where products change, as a share, within its bounds in 95 %
        of cases; None where that is not known."""
        base = self.step_us(at, before)
        if base is None or base <= 0:
            return None
        moved = self._moved(at, before, after, base)
        if moved is None:
            return None
        if Counter(map(_shape, before)) == Counter(map(_shape, after)):
            return Interval(0.0, 0.0, 0.0)
        low, middle, high = self.steps[next(iter(at.tokens))]
        value = moved[0] / base
        half = hypot(moved[1] / base, OUTSIDE, value * (high - low) / 2 / middle)
        found = [value - half, value + half]
        if self.disturbed:
            rest = [g for m in at.inventory.modules if not m.dims for g in m.gemms]
            least = at.gemms([*before, *rest]).latency_us
            if least is None:
                return None
            share, least = moved[0] / min(least, base), min(least, base)
            half = hypot(moved[1] / least, OUTSIDE)
            found += [share - half, share + half]
        return Interval(min(found), value, max(found))

    def _moved(
        self, at: Predictor, before: Sequence[Gemm], after: Sequence[Gemm], step_us: float
    ) -> tuple[float, float] | None:
        """µs more of a step, and half the width of their interval. Equal products share the error
        of one measurement, and those that stay cost nothing."""
        counts = Counter(map(_shape, after))
        counts.subtract(Counter(map(_shape, before)))
        one = {_shape(gemm): gemm for gemm in (*before, *after)}
        moved = NOTHING
        for shape, count in counts.items():
            if not count:
                continue
            time = at.gemms([one[shape]])
            if time.latency_us is None or not isfinite(time.variance or 0.0):
                return None
            moved += time.times(count)
        others = {_shape(g) for m in at.inventory.modules if not m.dims for g in m.gemms}
        shapes = [len(others | set(map(_shape, each))) for each in (before, after)]
        costs = COSTS.get(self.kind, COSTS["cpu"])
        (rows,) = at.tokens
        calls = (len(after) - len(before)) * (costs.call_us + costs.row_us * rows) / 2
        distinct = (shapes[1] - shapes[0]) * costs.shape * step_us / 2
        us, half = moved.latency_us or 0.0, moved.half_width(0.025)
        return us + calls + distinct, hypot(half, calls, distinct)


def _shape(gemm: Gemm) -> tuple[int, int, bool]:
    return gemm.N, gemm.K, gemm.bias


def benched(path: str | Path, models: Sequence[Inventory], predictor: Predictor) -> Whole:
    """What ``bench --json`` printed, of the first model in it that is one of ``models``, or has the
    same modules as the first of these: the uncompressed model.

    Raises :class:`PlanError` for a file that is none, a bench of another device or dtype than the
    map's, and one of other models.
    """
    data = _read(Path(path))
    place = predictor.source.environment
    device = data["environment"].get("name")
    if device != place.name or data["dtype"] != predictor.dtype:
        raise PlanError(
            f"{path} was timed on {device} in {data['dtype']}, the map is of {place.name} in "
            f"{predictor.dtype}: bench the model there"
        )
    inventory, known = models[0], {model.fingerprint for model in models}
    if any(m.role.startswith("expert_") for m in inventory.modules if m.dims):
        raise PlanError(f"{path}: how many tokens each expert gets is not known to a bench")
    found = [_scanned(name) for name in data["sources"]]
    same = [i for i, each in enumerate(found) if each and each.fingerprint in known]
    like = [i for i, each in enumerate(found) if each and _alike(each, inventory)]
    if not (same or like):
        raise PlanError(f"{path} times none of {inventory.path} and its uncompressed model")
    first = (same or like)[0]
    model = found[first]
    assert model is not None
    steps = {
        data["batch"] * (t["tokens"] if t["kind"] == "prefill" else 1): (
            t["low_us"], t["latency_us"], t["high_us"],
        )
        for t in data["timings"]
        if t["model"] == data["models"][first]
    }  # fmt: skip
    busy = any("machine is busy" in str(note) for note in data.get("notes") or ())
    return Whole(data["models"][first], model, place.kind, steps, busy)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_json(path)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        if str(data.get("schema", "")).startswith("gacprof.error/"):
            raise PlanError(
                f"{path} is of a bench that failed ({data.get('message')}): run it again"
            )
        for name in ("environment", "dtype", "batch", "models", "sources", "timings"):
            if name not in data:
                raise ValueError(f"it has no '{name}'")
        for timing in data["timings"]:
            known = [timing[name] for name in ("low_us", "latency_us", "high_us", "tokens")]
            if not all(isinstance(each, int | float) and each > 0 for each in known):
                raise ValueError("a timing is no positive number")
        return dict(data)
    except (OSError, ValueError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise PlanError(f"{path} is not what 'gacprof bench --json' prints: {error}") from None


def _scanned(name: str) -> Inventory | None:
    try:
        return scan(name)
    except CheckpointError:
        return None


def _alike(one: Inventory, other: Inventory) -> bool:
    """Whether they have the same modules, of the same sides but for what compression changes."""
    sides = [
        {m.name: (m.out_features, m.in_features) for m in each.modules} for each in (one, other)
    ]
    return sides[0] == sides[1]
