"""What a compression is asked for, and what it did: values, a record, a model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gacprof
from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layouts.tools import PerLayerWidths
from gacprof.cliffmap.source import SizeSource
from gacprof.core.files import read_json
from gacprof.core.formatting import counted, microseconds, percent
from gacprof.diagnosing.predict import Estimate, Predictor
from gacprof.extras.compress.calibration import Calibration
from gacprof.extras.compress.request import CompressRequest
from gacprof.planning import Plan
from gacprof.planning.warnings import CUT
from gacprof.reporting.wording import change_of
from gacprof.resizing.output import PROVENANCE

SCHEMA = "gacprof.compressed/1"
NO_TIMES = "no times: "
NOISE = 1e-9
"""Losses (nats) below this are of rounding: of sums of doubles that ought to cancel."""


@dataclass(frozen=True)
class PhaseTime:
    """Predicted time (µs) of ``tokens`` tokens once through the products of the compressed layers:
    in the uncompressed model, at the method's own sizes, and as written. None where the map does
    not know a product. ``saved_us`` is (low, value, high) of what the written ones save of the
    uncompressed, where times are estimates with errors of their own."""

    tokens: int
    uncompressed_us: float | None
    own_us: float | None
    written_us: float | None
    saved_us: tuple[float, float, float] | None = None


def times(
    source: SizeSource, plan: Plan, dense: Inventory, own: Inventory, written: Inventory
) -> tuple[PhaseTime, ...]:
    """What the source predicts of the layers that were changed, a token count by itself."""
    if not source.timed:
        return ()
    shapes = [
        {m.name: tuple((g.N, g.K, g.bias) for g in m.gemms) for m in each.modules if m.gemms}
        for each in (dense, own, written)
    ]
    changed = {
        name for name, shape in shapes[0].items() if any(s.get(name) != shape for s in shapes)
    }

    def predicted(inventory: Inventory, count: int) -> Estimate:
        by = Predictor(source, inventory, {count: 1.0}, plan.workload.dtype)
        return by.gemms([g for m in inventory.modules if m.name in changed for g in m.gemms])

    found = []
    for count in sorted(plan.workload.tokens):
        before, as_requested, after = (predicted(each, count) for each in (dense, own, written))
        saved = before.saved(after) if source.estimated else None
        bounds = None if saved is None else (saved.low, saved.value, saved.high)
        us = before.latency_us, as_requested.latency_us, after.latency_us
        found.append(PhaseTime(count, us[0], us[1], us[2], bounds))
    return tuple(found)


@dataclass(frozen=True)
class CompressResult:
    """``requested`` are the method's own sizes by dim name, ``sizes`` those written (None: dense).

    ``compressed_before`` are the dense parameters of the layers that the method compresses.
    ``energy_kept`` is the mean share over dims of what the method ranks by (squared singular
    values, or importance) that ``sizes`` keep, ``energy_of_requested`` that of ``requested``.
    ``loss_added`` is the second-order estimate of what the cuts add to the loss of a token (nats),
    where it was made, ``loss_of_requested`` that of the method's own sizes: it predicts the
    loss of small cuts only. Where whole layers go, whose size is then 0, both are measured.
    ``objective`` is what chose the sizes, None where they are the method's own or its rounding;
    ``thin`` a note on a text that is short for the model, ``recompressed`` whether the model given
    has factor pairs already: by a ratio of 0 ``requested`` are their ranks. ``cache`` is what a
    cache of keys and values holds of a token, before and after, where the ratio counts that.
    ``left`` names the layers that stay as
    they are, with the reason. ``predicted`` is by the map, each count of tokens by itself.
    """

    source: str
    out: str
    method: str
    layout: str
    ratio: float
    parameters_before: int
    parameters_after: int
    compressed_before: int
    requested: NewSizes
    sizes: NewSizes
    energy_kept: float
    energy_of_requested: float
    left: dict[str, str]
    plan: Plan | None = None
    predicted: tuple[PhaseTime, ...] = ()
    objective: str | None = None
    loss_added: float | None = None
    loss_of_requested: float | None = None
    thin: str = ""
    recompressed: bool = False
    cache: tuple[int, int] | None = None

    @property
    def compressed_after(self) -> int:
        return self.compressed_before - (self.parameters_before - self.parameters_after)

    @property
    def dropped(self) -> list[str]:
        """The layers that are gone as a whole."""
        return [name for name, size in self.sizes.items() if size == 0]

    @property
    def removed(self) -> float:
        """The share of the compressed layers' parameters that is gone."""
        return 1 - self.compressed_after / self.compressed_before

    @property
    def own(self) -> str:
        """Whose sizes ``requested`` are."""
        return "the method's own" if self.ratio else "the given"

    @property
    def became(self) -> dict[str, str]:
        """What became of what the ratio counts, and of the parameters, by label."""
        rows = {"parameters": f"{self.parameters_before:,} → {self.parameters_after:,}"}
        if self.cache is not None:
            before, after = self.cache
            change = percent(after / before - 1, signed=True)
            rows["cache entries a token"] = f"{before:,} → {after:,}, {change}"
        return rows

    @property
    def lost(self) -> dict[str, str]:
        """What the sizes lose of the model, by label; by too short a text less than the truth."""
        if self.dropped:
            return {"loss added to the calibration text": f"{self.loss_added:.4g} nats a token"}
        rows = {}
        if self.loss_added is not None:
            against = " against the model given" if self.recompressed else ""
            low = " too low (short text)" if self.thin else ""
            rows[f"loss added{against}, estimated{low}"] = (
                f"{nats(self.loss_added)} nats a token ({nats(self.loss_of_requested)} at "
                f"{self.own} sizes)"
            )
        energy = f"{self.energy_kept:.6f} ({self.energy_of_requested:.6f} at {self.own} sizes)"
        return rows | {f"energy kept, mean over {counted(len(self.sizes), 'dim')}": energy}

    @property
    def aligned(self) -> int | None:
        """How many dims the map calls safe; None without a map."""
        return None if self.plan is None else self._count("safe")

    @property
    def undecided(self) -> int:
        return self._count("undecided")

    def _count(self, verdict: str) -> int:
        return sum(c.verdict == verdict for c in self.plan.choices) if self.plan else 0

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        notes = []
        if self.plan is None and not self.dropped:
            notes.append(
                "no map was given: no size is known to be served well (--map; 'gacprof sweep --for "
                f"{self.out}' measures what one needs)"
            )
        elif self.plan is not None:
            # Every compression changes the function.
            notes += [w for w in self.plan.warnings if not w.endswith(CUT)]
            notes += self.plan.certificate.notes
            why = next((n for n in notes if n.startswith(NO_TIMES)), "").removeprefix(NO_TIMES)
            notes = [n if n.startswith(NO_TIMES) else n.removesuffix(f": {why}") for n in notes]
        if self.thin:
            notes.append(self.thin)
        slower = [t.tokens for t in self.predicted if _no_gain(t)]
        if slower:
            notes.append(
                "by the map the uncompressed model is as fast or faster for "
                f"{' and '.join(counted(n, 'token') for n in slower)}: memory is saved there, no "
                "time"
            )
        elif not self.predicted or any(t.uncompressed_us is None for t in self.predicted):
            notes.append(
                f"whether it is faster than the {'given' if self.recompressed else 'uncompressed'} "
                f"model is not predicted: 'gacprof bench {self.source} {self.out}' measures it"
            )
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name)
        for reason, (name, *more) in reasons.items():
            others = f" and {len(more)} more" if more else ""
            notes.append(f"left uncompressed, {reason}: {name}{others}")
        if self.layout != "plain":
            alone = (
                "builds all layers with the widths of the config"
                if self.layout == PerLayerWidths.name
                else "does not know factor pairs and leaves these weights random"
            )
            notes.append(
                f"transformers alone {alone}: load the checkpoint by gacprof.load_model, or write "
                f"it for transformers ('gacprof export {self.out} --to transformers')"
            )
        one = self.removed / max(len(self.dropped), 1)
        if len(self.dropped) > 1 and self.ratio - (self.removed - one) < self.removed - self.ratio:
            notes.append(
                f"{counted(len(self.dropped) - 1, 'layer')} would be {percent(self.removed - one)},"
                f" nearer to the {percent(self.ratio)} that were asked for: a smaller --ratio"
            )
        if self.parameters_after > self.parameters_before:
            rows = "; ".join(f"{label} {change}" for label, change in self.became.items())
            notes.append(
                f"the result has more parameters than the model ({rows}): a larger --ratio"
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        names = "source out method layout ratio removed energy_kept energy_of_requested objective "
        names += "loss_added loss_of_requested aligned undecided left notes"
        return {name: getattr(self, name) for name in names.split()} | {
            "parameters": _change(self.parameters_before, self.parameters_after),
            "compressed": _change(self.compressed_before, self.compressed_after),
            "cache_entries": None if self.cache is None else _change(*self.cache),
            "dims": len(self.sizes),
            "left_dense": sum(size is None for size in self.sizes.values()),
            "requested": dict(self.requested),
            "sizes": dict(self.sizes),
            "predicted": [vars(time) for time in self.predicted],
            "plan": None if self.plan is None else self.plan.as_dict(),
        }


def _change(before: int, after: int) -> dict[str, int]:
    return {"before": before, "after": after}


def nats(loss: float | None) -> str:
    """``0.0241``; what is of rounding alone is 0."""
    return f"{0 if loss is None or abs(loss) < NOISE else loss:.4g}"


def _no_gain(time: PhaseTime) -> bool:
    dense, written = time.uncompressed_us, time.written_us
    if time.saved_us is not None:
        return time.saved_us[2] <= 0
    return dense is not None and written is not None and dense <= written


def record_of(
    result: CompressResult,
    request: CompressRequest,
    calibration: Calibration | None,
    source: Inventory,
) -> dict[str, Any]:
    """``gacprof.json``: what was done, to what, and by which measurements."""
    data = result.as_dict()
    for key in ("source", "out", "plan"):
        del data[key]
    try:  # the record that the model itself came with, if any
        earlier = read_json(Path(source.folder) / PROVENANCE)
    except (OSError, ValueError):
        earlier = None
    return {
        "schema": SCHEMA,
        "gacprof": gacprof.__version__,
        "source": {"name": Path(source.path).name, "fingerprint": source.fingerprint},
        "earlier": earlier,
        "request": request.recorded(),
        "calibration": None if calibration is None else calibration.as_dict(),
        "map": None if result.plan is None else result.plan.map,
        "device": None if result.plan is None else result.plan.device,
        **data,
    }


def card_of(
    result: CompressResult, request: CompressRequest, calibration: Calibration | None
) -> str:
    """A short model card in Markdown."""
    of = "cache entries" if result.cache else "the layers that the method compresses"
    rows = {
        "base model": Path(result.source).name,
        "method": result.method,
        "ratio asked for": f"{result.ratio:g} of {of}",
        **result.became,
        "of the compressed layers": f"{result.compressed_before:,} → {result.compressed_after:,} "
        f"({percent(-result.removed, signed=True)})",
    }
    if result.dropped:
        rows["layers removed"] = ", ".join(result.dropped)
    rows |= result.lost
    if calibration is not None:
        windows, length = calibration.ids.shape
        rows["calibration"] = f"{windows} × {length} tokens of {calibration.source}"
    plan = result.plan
    if plan is None:
        rows["rounding"] = f"to multiples of {request.round_to}" if request.round_to else "none"
    else:
        best = "sizes of the best tier" if plan.by_tier else "sizes that the map calls safe"
        rows |= {
            "map": ", ".join(filter(None, (f"{plan.map} ({plan.device})", plan.basis))),
            best: f"{result.aligned} of {len(plan.choices)}, {result.undecided} undecided",
            "chosen by": str(result.objective),
        }
        rows |= {f"time predicted, {counted(t.tokens, 'token')}": times_of(t, result.own)
                 for t in result.predicted}  # fmt: skip
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    notes = "\n".join(f"- {note}" for note in result.notes)
    return (
        f"# {Path(result.out).name}\n\n"
        f"{Path(result.source).name}, compressed with gacprof {gacprof.__version__}.\n\n"
        f"| | |\n|---|---|\n{table}\n\n{notes}\n\n"
        f"The weights are in the layout of {result.layout}: `gacprof.load_model` runs them. "
        "`gacprof.json` has every size.\n"
    )


def times_of(time: PhaseTime, named: str) -> str:
    """``12.3 ms (the method's own sizes 13.1 ms, uncompressed 11.9 ms)``; of estimates no gain is
    claimed whose bounds hold zero."""
    if time.saved_us is not None and time.uncompressed_us:
        change = change_of(time.saved_us, time.uncompressed_us)
        return f"of the uncompressed model's {microseconds(time.uncompressed_us)}, {change}"
    written, own, dense = (
        microseconds(us) or "unknown" for us in (time.written_us, time.own_us, time.uncompressed_us)
    )
    return f"{written} ({named} sizes {own}, uncompressed {dense})"
