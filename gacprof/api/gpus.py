"""What is asked of GPUs: those that are not at hand, by rules and others' measurements, and what
this machine has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap.request import map_names
from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed, Listed
from gacprof.core.request import Request, option, verb
from gacprof.diagnosing.request import OnSource, gpu_names

if TYPE_CHECKING:
    from gacprof.checkpoint import Inventory
    from gacprof.devices.doctor import Component
    from gacprof.elsewhere.data import Held
    from gacprof.rules.table import RuleTable


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


class RulesRequest(Request):
    """The rules of a GPU that is not at hand, for these dtypes, or those that the products of a
    checkpoint are computed in."""

    error = MapError

    gpu: str = option(
        kw_only=False, suggested=gpu_names, help="h100, b200, l40s … ('gacprof gpus' lists them)."
    )
    torch: str | None = option(default=None, kw_only=False, like=OnSource, group="")
    dtypes: Sequence[str] = option(
        default=(), kw_only=False, name="--dtype", read=_names, metavar="DTYPE,…",
        help="float16, bfloat16, float8_e4m3fn …; several, by commas. Default: all that the GPU "
        "has.",
    )  # fmt: skip
    checkpoint: str | Path | Inventory | None = option(
        default=None, name="--for",
        help="Only the dtypes that this checkpoint's products are computed in.",
    )  # fmt: skip
    name: str | None = option(default=None, help="Default: GPU-rules.")


def _rule_table(request: RulesRequest) -> RuleTable:
    """The rule table of a GPU: which sizes its kernels serve, in tiers, each with rule, source and
    basis. It answers any size of any shape, stands where a map would, and knows no latency.

    Raises :class:`MapError` for a GPU, a release or a data type without rules.
    """
    from gacprof.diagnosing.sources import rule_table

    dtypes = tuple(request.dtypes)
    if request.checkpoint is not None and not dtypes:
        from gacprof.checkpoint import inventory_for
        from gacprof.checkpoint.products import LocalProducts

        chip = rule_table(request.gpu, request.torch).target.chip
        held = LocalProducts(inventory_for(request.checkpoint)).dtypes
        dtypes = tuple(d for d in held if d in chip.tiers) or tuple(held)
    return rule_table(request.gpu, request.torch, dtypes, request.name or "")


rule_table = verb("rule_table", RulesRequest, _rule_table)


class GpusRequest(Request):
    """All GPUs, or one with what was measured of each operator and engine."""

    error = MapError

    gpu: str | None = option(
        default=None, kw_only=False, suggested=gpu_names,
        help="Only this one, with what there is of each operator and engine.",
    )  # fmt: skip


@dataclass(frozen=True)
class KnownGpu:
    """What is known of a GPU. ``arch`` is that of its rules and data sheet, None without; ``rows``
    are measurements by others, of these ``engines``."""

    gpu: str
    arch: str | None
    shipped_map: str | None
    rows: int
    engines: list[str]


@dataclass(frozen=True)
class Gpus(Record, Framed):
    """``measured`` is what others measured, ``note`` by which package, or why there is none."""

    gpus: list[KnownGpu]
    measured: list[Held]
    note: str

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        return (vars(one) for one in self.gpus)

    def frame_title(self) -> str:
        return self.note


def _gpus(request: GpusRequest) -> Gpus:
    """The GPUs that something is known of: rules, data sheets, shipped maps, measurements by
    others. Raises :class:`MapError` for a GPU of which nothing was measured."""
    from gacprof.elsewhere.data import installed

    held: list[Held] = []
    try:
        measured = installed()
        held, note = measured.held(), f"measured elsewhere: aiconfigurator-core {measured.version}"
        if request.gpu is not None:
            asked = measured.gpu(request.gpu)
            held = [one for one in held if one.gpu == asked]
    except MapError as error:
        if request.gpu is not None:
            raise
        note = str(error)
    known = _known(held)
    return Gpus(known if request.gpu is None else [g for g in known if g.rows], held, note)


gpus = verb("gpus", GpusRequest, _gpus)


def _known(held: Sequence[Held]) -> list[KnownGpu]:
    """One a GPU: those of the data sheet, which have rules, then those measured alone."""
    from gacprof.devices.datasheet import sheets
    from gacprof.elsewhere.data import short_name

    rows: Counter[str] = Counter()
    engines: dict[str, dict[str, None]] = {}
    known, maps = sheets(), map_names()
    keys = {short_name(key): key for key in known}
    for one in held:
        name = keys.get(short_name(one.gpu), short_name(one.gpu))
        rows[name] += one.rows
        engines.setdefault(name, {})[one.framework] = None
    return [
        KnownGpu(
            name, known[name].arch if name in known else None,
            next((m for m in maps if m.startswith(f"{name}-")), None), rows[name],
            list(engines.get(name, ())),
        )
        for name in dict.fromkeys([*known, *sorted(rows)])
    ]  # fmt: skip


class DoctorRequest(Request):
    """This machine."""


def _doctor(request: DoctorRequest) -> Listed[Component]:
    """What can be measured on this machine, what not, and why. Never raises for what is absent."""
    from gacprof.devices.doctor import examine

    return Listed(examine(), "this machine")


doctor = verb("doctor", DoctorRequest, _doctor)
