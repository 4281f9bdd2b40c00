"""What a compression is asked for, and what it did: values, a record, a model card."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gacprof
from gacprof.checkpoint.inventory import Inventory
from gacprof.compressing.calibration import LENGTH, WINDOWS, Calibration
from gacprof.compressing.scores import check_score
from gacprof.core.errors import CompressionError
from gacprof.core.files import Record
from gacprof.core.formatting import at_most, microseconds, percent
from gacprof.diagnosing.predict import Tokens, is_number
from gacprof.planning import Plan
from gacprof.planning.evaluation import CUT
from gacprof.planning.memory import NewSizes
from gacprof.planning.request import WINDOW
from gacprof.resizing.output import PROVENANCE

OBJECTIVES = ("energy", "gac")


@dataclass(frozen=True)
class CompressRequest(Record):
    """``ratio`` is the share of the parameters to be removed from the layers that the method
    compresses. ``round_to`` asks for the method's own rounding in place of a map.

    ``objective`` is ``energy`` (most energy of the original weights kept) or ``gac`` (the paper's
    Eq. 4, by ``score``); ``latency_limit_us`` is the most time that the workload ``tokens`` may
    take in the compressed weights' products, by the map; ``window`` how far a size may move, as a
    share. ``preset`` names an engine that is to take every size (:mod:`gacprof.planning.presets`).
    ``windows`` of ``length`` tokens are read of the calibration text. ``options`` are the
    method's own. Raises :class:`CompressionError` for a value out of range.
    """

    method: str
    ratio: float
    round_to: int | None = None
    objective: str = "energy"
    score: str | None = None
    latency_limit_us: float | None = None
    tokens: Tokens | None = None
    window: float = WINDOW
    windows: int = WINDOWS
    length: int = LENGTH
    options: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None

    def __post_init__(self) -> None:
        if not is_number(self.ratio) or not 0 < self.ratio < 1:
            meant = f": was {self.ratio / 100:g} meant?" if 2 <= self.ratio < 100 else ""
            raise CompressionError(
                f"the ratio {self.ratio} is not between 0 and 1: it is the share of parameters to "
                f"remove{meant}"
            )
        if self.objective not in OBJECTIVES:
            raise CompressionError(
                f"the objective is '{self.objective}': it must be one of {', '.join(OBJECTIVES)}"
            )
        for name in ("round_to", "windows", "length"):
            value = getattr(self, name)
            least = 2 if name == "length" else 1
            if value is not None and (not is_number(value, int) or value < least):
                raise CompressionError(f"{name} is {value!r}: it must be {least} or more")
        check_score(self.score)


SCHEMA = "gacprof.compressed/1"


@dataclass(frozen=True)
class CompressResult:
    """``wish`` are the method's own sizes by dim name, ``sizes`` those written (None: dense).

    ``compressed_before`` are the dense parameters of the layers that the method compresses.
    ``energy_kept`` is the mean share over dims of what the method ranks by (squared singular
    values, or importance) that ``sizes`` keep, ``energy_of_wish`` that of ``wish``. ``left`` names
    the layers that stay as they are, with the reason.
    """

    source: str
    out: str
    method: str
    layout: str
    ratio: float
    parameters_before: int
    parameters_after: int
    compressed_before: int
    wish: NewSizes
    sizes: NewSizes
    energy_kept: float
    energy_of_wish: float
    left: dict[str, str]
    plan: Plan | None = None

    @property
    def compressed_after(self) -> int:
        return self.compressed_before - (self.parameters_before - self.parameters_after)

    @property
    def removed(self) -> float:
        """The share of the compressed layers' parameters that is gone."""
        return 1 - self.compressed_after / self.compressed_before

    @property
    def aligned(self) -> int | None:
        """How many dims the map calls safe; None without a map."""
        if self.plan is None:
            return None
        return sum(choice.verdict == "safe" for choice in self.plan.choices)

    @property
    def undecided(self) -> int:
        return sum(c.verdict == "undecided" for c in self.plan.choices) if self.plan else 0

    @property
    def dense(self) -> int:
        """Layers that the method would have compressed and that stay dense."""
        return sum(size is None for size in self.sizes.values())

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        notes = []
        if self.plan is None:
            notes.append(
                "no map was given: no size is known to be served well (--map; 'gacprof sweep --for "
                f"{self.out}' measures what one needs)"
            )
        else:
            # Every compression changes the function.
            notes += [w for w in self.plan.warnings if not w.endswith(CUT)]
            notes += self.plan.certificate.notes
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name)
        notes += [
            f"left uncompressed, {reason}: {_named(names)}" for reason, names in reasons.items()
        ]
        if self.layout == "palu":
            notes.append("PaLU's ratio counts latent entries of k and v, not parameters")
        if self.parameters_after > self.parameters_before:
            notes.append("the result has more parameters than the model: the ratio is too small")
        return notes

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "out": self.out,
            "method": self.method,
            "layout": self.layout,
            "ratio": self.ratio,
            "removed": self.removed,
            "parameters": {"before": self.parameters_before, "after": self.parameters_after},
            "compressed": {"before": self.compressed_before, "after": self.compressed_after},
            "energy_kept": self.energy_kept,
            "energy_of_wish": self.energy_of_wish,
            "dims": len(self.sizes),
            "aligned": self.aligned,
            "undecided": self.undecided,
            "left_dense": self.dense,
            "wish": dict(self.wish),
            "sizes": dict(self.sizes),
            "left": self.left,
            "plan": None if self.plan is None else self.plan.as_dict(),
            "notes": self.notes,
        }


def _named(names: list[str]) -> str:
    """``lm_head``, ``a and 7 more``."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


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
    asked = request.as_dict()
    asked["tokens"] = _listed(asked["tokens"])
    return {
        "schema": SCHEMA,
        "gacprof": gacprof.__version__,
        "source": {"name": Path(source.path).name, "fingerprint": source.fingerprint},
        "earlier": _earlier(Path(source.folder) / PROVENANCE),
        "request": asked,
        "calibration": None if calibration is None else calibration.as_dict(),
        "map": None if result.plan is None else result.plan.map,
        "device": None if result.plan is None else result.plan.device,
        **data,
    }


def _earlier(path: Path) -> Any:
    """The record that the model itself came with, if any."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _listed(tokens: Any) -> Any:
    if tokens is None or isinstance(tokens, dict):
        return tokens
    return list(tokens)


def card_of(
    result: CompressResult, request: CompressRequest, calibration: Calibration | None
) -> str:
    """A short model card in Markdown."""
    rows = [
        ("base model", Path(result.source).name),
        ("method", result.method),
        ("ratio asked for", f"{result.ratio:g} of the layers that the method compresses"),
        ("parameters", f"{result.parameters_before:,} → {result.parameters_after:,}"),
        (
            "of the compressed layers",
            f"{result.compressed_before:,} → {result.compressed_after:,} "
            f"({percent(-result.removed, signed=True)})",
        ),
        ("energy kept, mean over dims", f"{result.energy_kept:.4f}"),
        ("the same at the method's own sizes", f"{result.energy_of_wish:.4f}"),
    ]
    if calibration is not None:
        text = f"{calibration.windows} × {calibration.length} tokens of {calibration.source}"
        rows.append(("calibration", text))
    if result.plan is not None:
        rows += _map_rows(result, result.plan, request)
    else:
        how = f"the method's own, to {request.round_to}" if request.round_to else "none"
        rows.append(("rounding", how))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    notes = "\n".join(f"- {note}" for note in result.notes)
    return (
        f"# {Path(result.out).name}\n\n"
        f"{Path(result.source).name}, compressed with gacprof {gacprof.__version__}.\n\n"
        f"| | |\n|---|---|\n{table}\n\n{notes}\n\n"
        f"The weights are in the layout of {result.layout}: `gacprof.load_model` runs them. "
        "`gacprof.json` has every size.\n"
    )


def _map_rows(
    result: CompressResult, plan: Plan, request: CompressRequest
) -> list[tuple[str, str]]:
    penalties = [choice.penalty_high for choice in plan.choices]
    known = [penalty for penalty in penalties if penalty is not None]
    worst = at_most(max(known)) if len(known) == len(penalties) and known else "open"
    if plan.basis:
        return [
            ("map", f"{plan.map} ({plan.device}), {plan.basis}"),
            ("sizes of the best tier", f"{result.aligned} of {len(plan.choices)}"),
            ("chosen by", request.objective),
        ]
    return [
        ("map", f"{plan.map} ({plan.device})"),
        (
            "sizes that the map calls safe",
            f"{result.aligned} of {len(plan.choices)}, {result.undecided} undecided; penalties at "
            f"most {worst}",
        ),
        ("chosen by", request.objective),
        ("time predicted", microseconds(plan.predicted_after_us) or "unknown"),
        ("the same at the method's own sizes", microseconds(plan.predicted_before_us) or "unknown"),
    ]
