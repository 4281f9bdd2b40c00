"""What a compressor can be fed: safe dims as a table, and the one number its option takes.

Most compressors round every dim to multiples of a single number. The best such number is
found from the map, with what it still loses against the full candidate set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from gacprof.cliffmap import detect
from gacprof.cliffmap.candidates import of_curve
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import MapError

LARGEST_MODULUS = 256

LEAST_MULTIPLES = 3
"""A modulus is judged where at least this many of its multiples were measured."""

WORTH = 0.05
"""A larger modulus leaves a compressor fewer sizes to spend its budget on: it must save this
much more of the time to be worth that."""


@dataclass(frozen=True)
class Modulus:
    """A modulus as a rounding rule on one curve.

    ``penalty`` and ``worst_penalty`` are the mean and largest penalty left at its multiples;
    ``safe_share`` is how many of them are safe. ``loses`` is the mean, over all
    measured dims, of latency at the next multiple over the best latency of any dim at least as
    large, minus 1: what rounding up to it costs against the full candidate set. ``unreached``
    counts the safe dims that are no multiple of it.
    """

    modulus: int
    multiples: int
    penalty: float
    worst_penalty: float
    safe_share: float
    loses: float
    unreached: int


@dataclass(frozen=True)
class ToolOption:
    """One option of one tool. ``rounds`` says which way the tool moves a dim."""

    tool: str
    option: str
    rounds: Literal["up", "down", "nearest"]
    default: int


TOOLS = (
    # ASVD rounds the rank up and does not charge the overshoot to the budget; default 1.
    ToolOption("ASVD", "rank_align", "up", 1),
    # PaLU: max(1, round(r / block)) * block; default block 32.
    ToolOption("PaLU", "block size", "nearest", 32),
    # Torch-Pruning keeps a multiple of round_to; default None.
    ToolOption("Torch-Pruning", "round_to", "down", 1),
    # LLM-Pruner's pruner has it, its command line has not; it rounds the number pruned.
    ToolOption("LLM-Pruner", "round_to", "down", 1),
    # SliceGPT: 8 on the command line, 1 in the library.
    ToolOption("SliceGPT", "--round-interval", "down", 8),
    # ModelOpt Minitron: hidden 256, ffn 512 by default.
    ToolOption("ModelOpt Minitron", "hidden_size / ffn_hidden_size divisor", "down", 256),
)
"""Options by tool, from their sources (docs/write-a-compressor.md)."""


def moduli(curve: Curve) -> dict[int, Modulus]:
    """Every modulus that the curve can judge, ascending. 1 stands for no rounding at all."""
    at, known = curve.latencies, [d for d in curve.points.d if curve.coverage.compares(d)]
    best = dict(zip(at, detect.envelope(list(at.values())), strict=True))
    found = {}
    for modulus in range(1, LARGEST_MODULUS + 1):
        multiples = [d for d in known if d % modulus == 0]
        if len(multiples) < LEAST_MULTIPLES:
            continue
        rounded = ((d, -(-d // modulus) * modulus) for d in known)
        penalties = [at[d] / best[d] - 1 for d in multiples]
        found[modulus] = Modulus(
            modulus=modulus,
            multiples=len(multiples),
            penalty=round(fmean(penalties), 4),
            worst_penalty=round(max(penalties), 4),
            safe_share=round(len(set(curve.safe) & set(multiples)) / len(multiples), 4),
            loses=round(fmean(at[up] / best[d] - 1 for d, up in rounded if up in at), 4),
            unreached=sum(size % modulus != 0 for size in curve.safe),
        )
    return found


def _shared(curves: Sequence[Curve]) -> dict[int, Modulus]:
    """The moduli that all of them can judge, each with the worst of every figure."""
    tables = [moduli(curve) for curve in curves]
    common = set.intersection(*map(set, tables)) if tables else set[int]()
    return {modulus: _worst([table[modulus] for table in tables]) for modulus in sorted(common)}


def _worst(several: Sequence[Modulus]) -> Modulus:
    return Modulus(
        modulus=several[0].modulus,
        multiples=min(m.multiples for m in several),
        penalty=max(m.penalty for m in several),
        worst_penalty=max(m.worst_penalty for m in several),
        safe_share=min(m.safe_share for m in several),
        loses=max(m.loses for m in several),
        unreached=max(m.unreached for m in several),
    )


def best_modulus(judged: Mapping[int, Modulus]) -> Modulus:
    """The smallest modulus than which no larger one loses less by more than :data:`WORTH`; 1 means
    that rounding gains nothing here. Raises :class:`MapError` where none could be judged.
    """
    if not judged:
        raise MapError("too few dims were measured to judge any modulus here: sweep more of them")
    least = min(m.loses for m in judged.values())
    return next(m for m in judged.values() if m.loses <= least + WORTH)


def settings(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Ready values for each tool, judged on these curves together, with what they lose.

    Each entry names tool, option, value, the tool's default, and the loss of both against
    the full candidate set (None where the default cannot be judged).
    """
    judged = _shared(curves)
    best = best_modulus(judged)
    found = []
    for tool in TOOLS:
        default = judged.get(tool.default)
        found.append(
            {
                "tool": tool.tool, "option": tool.option, "value": best.modulus,
                "rounds": tool.rounds, "penalty": best.penalty, "loses": best.loses,
                "unreached": best.unreached, "default": tool.default,
                "default_penalty": default.penalty if default else None,
                "default_loses": default.loses if default else None,
            }
        )  # fmt: skip
    return found


def settings_of(cliff_map: CliffMap) -> list[dict[str, Any]]:
    """Ready values by dtype and token count M, each judged on the K and N curves there together:
    a compressed width is N of one product and K of the next.

    Each entry names ``dtype``, ``M``, ``axes``, the least and largest of the ``sizes`` that were
    measured, ``curves`` and ``tools`` (:func:`settings`).
    """
    scopes: dict[tuple[str, int], list[Curve]] = {}
    for curve in cliff_map.curves:
        if curve.operator == "linear" and curve.axis in ("K", "N") and moduli(curve):
            scopes.setdefault((curve.dtype, curve.fixed.get("M", 1)), []).append(curve)
    found = []
    for (dtype, tokens), curves in sorted(scopes.items()):
        try:
            tools = settings(curves)
        except MapError:  # no modulus that all of them can judge
            continue
        found.append(
            {
                "dtype": dtype,
                "M": tokens,
                "axes": sorted({curve.axis for curve in curves}),
                "sizes": _measured(curves),
                "curves": [curve.identity for curve in curves],
                "tools": tools,
            }
        )
    return found


def _measured(curves: Sequence[Curve]) -> dict[str, list[int]]:
    """The least and the largest size that was measured, by axis: what settings rest on."""
    sizes: dict[str, list[int]] = {}
    for curve in sorted(curves, key=lambda curve: curve.axis):
        sizes.setdefault(curve.axis, []).extend(curve.points.d)
    return {axis: [min(found), max(found)] for axis, found in sizes.items()}


def settings_rows(cliff_map: CliffMap) -> list[dict[str, Any]]:
    """:func:`settings_of`, one row a tool, for CSV."""
    return [
        {"dtype": scope["dtype"], "M": scope["M"], "axes": " ".join(scope["axes"]), **tool}
        for scope in settings_of(cliff_map)
        for tool in scope["tools"]
    ]


def export(cliff_map: CliffMap) -> dict[str, Any]:
    """The whole map for compressors, as JSON: safe dims and the best modulus of every curve,
    and ready settings."""
    return {
        "schema": "gacprof.safedims/1",
        "map": cliff_map.name,
        "device": cliff_map.file.device.name,
        "provenance": cliff_map.file.provenance.kind,
        "citation": cliff_map.file.provenance.citation,
        "axes": [_axis(curve) for curve in cliff_map.curves],
        "settings": settings_of(cliff_map),
    }


def rows(cliff_map: CliffMap) -> list[dict[str, Any]]:
    """One row a measured dim, for CSV: what it is of, latency, penalty, safe, on the frontier."""
    return [
        {
            "operator": curve.operator,
            "axis": curve.axis,
            "dtype": curve.dtype,
            "fixed": _pairs(curve.fixed),
            "flags": _pairs(curve.flags),
            **candidate.as_dict(),
        }
        for curve in cliff_map.curves
        for candidate in of_curve(curve)
    ]


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _axis(curve: Curve) -> dict[str, Any]:
    judged = moduli(curve)
    best = asdict(best_modulus(judged)) if judged else None
    return {
        "operator": curve.operator, "axis": curve.axis, "dtype": curve.dtype,
        "fixed": curve.fixed, "flags": curve.flags,
        "first": curve.coverage.first, "last": curve.coverage.last_comparable,
        "safe": curve.safe, "undecided": curve.undecided, "frontier": curve.frontier,
        "best_modulus": best,
    }  # fmt: skip
