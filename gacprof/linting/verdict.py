"""``gacprof lint``: what engines and GPUs will do with a model, from its config alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import GacprofError, MapError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed, counted
from gacprof.core.request import verb
from gacprof.demands.evaluate import JudgedProduct, with_shards
from gacprof.demands.table import Outcome
from gacprof.demands.targets import Gpu, version
from gacprof.linting.judging import TORCH, Degree, LintCase, case_of, degrees, padded_shape
from gacprof.linting.reading import config_named
from gacprof.linting.remedies import Remedy, fixed, remedies
from gacprof.linting.request import LintRequest
from gacprof.rules.head_dims import judge, vision_kernel

if TYPE_CHECKING:
    from gacprof.cliffmap.estimate import Interval

NEARLY_FULL = 0.9
"""Share of a GPU's memory that vLLM takes by default (gpu_memory_utilization)."""


ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Engines of the demands by the names of the measurements; of others nothing was measured."""
EXPERTS = {"none": 8, "fp8_tensor": 16, "fp8_channel": 16, "fp8_block": 16}
"""Elements of 16 bytes, by quantisation: the widest load of a GPU (CUDA C++ Programming Guide,
device memory accesses)."""
ROWS = (1, 1024)
"""Tokens of a decode step and of a prefill."""

HOST = (
    "{engine} in {dtype}: no times at {tokens}, the host bounds those that were measured, "
    "whatever the size"
)

RowTimes = Mapping[str, "Interval"]
"""By token count. The head runs at one row, whatever the count."""
Times = Callable[[JudgedProduct], "RowTimes | None"]


@dataclass(frozen=True)
class Row(Record):
    """A product as one rank runs it. ``local`` is its N and K, None where the config does not say;
    of a count that ranks share N is the unsplit number.

    ``size`` is what was judged on the ``axis`` N, K or global, ``multiple`` what it has to be a
    multiple of to be ok, ``padded_to`` what each padded axis becomes, ``extra`` the share of
    arithmetic and bytes that this adds. ``since`` is the engine's first version that does so.
    ``times_us`` are those of all layers at 1 and 1024 tokens, as others measured the engine on the
    GPU; None where nobody did, or it is not installed.
    """

    name: str
    role: str
    outcome: Outcome
    local: Mapping[str, int | None]
    axis: str | None
    size: int | None
    multiple: int | None
    padded_to: Mapping[str, int] | None
    extra: float
    why: str
    source: str
    since: str
    sure: str
    demand: str
    kernel: str
    quant: str
    layers: int | None
    fields: tuple[str, ...]
    missing: tuple[str, ...]
    tier: int | None
    times_us: RowTimes | None = None


@dataclass(frozen=True)
class Lint(Record, Framed):
    """What :func:`lint` found. ``outcome`` is the worst of the products that are known."""

    model: str
    model_type: str
    engine: str
    version: str
    gpu: str
    memory_gib: int | None
    quant: str
    tp: int
    ep: bool
    outcome: Outcome
    products: tuple[Row, ...]
    tp_table: tuple[Degree, ...]
    remedies: tuple[Remedy, ...]
    notes: tuple[str, ...]

    def frame_rows(self) -> Iterable[dict[str, Any]]:
        return (row.as_dict() for row in self.products)

    def frame_title(self) -> str:
        return f"{self.model}: {self.engine} {self.version}, {self.tp} ranks, {self.gpu}"

    @property
    def findings(self) -> list[Row]:
        """Rows with an outcome other than ok and unknown."""
        return [row for row in self.products if row.outcome not in ("ok", "unknown")]

    @property
    def misaligned(self) -> list[Row]:
        """Rows that the engine serves well, in a tier of the GPU that is not the best."""
        return [row for row in self.products if row.outcome == "ok" and (row.tier or 1) > 1]

    @property
    def too_large(self) -> str:
        """What is wrong where a rank's weights leave an engine no room in the GPU's memory, and the
        least degree that starts and leaves some. Empty where there is room, or it is not known."""
        room = NEARLY_FULL * (self.memory_gib or 0) * 2**30
        alike = [(d, d.bytes_per_rank) for d in self.tp_table if d.ep == self.ep]
        held = next((weights for d, weights in alike if d.tp == self.tp), None)
        if not held or not self.memory_gib or held <= room:
            return ""
        gib = held / 2**30
        what = "does not fit" if gib > self.memory_gib else "leaves no room for the cache"
        fit = [
            d.tp
            for d, weights in alike
            if d.starts and d.tp > self.tp and (weights or held) <= room
        ]
        then = f"--tp {min(fit)} fits" if fit else "no degree that was judged fits"
        return f"{what}: {gib:.1f} GiB of {self.memory_gib} a rank; {then}"

    @property
    def unknown(self) -> list[Row]:
        """Rows of which the engine's demands, or the rules for a GPU's experts, say nothing."""
        return [row for row in self.products if row.outcome == "unknown"]


def _lint(request: LintRequest) -> Lint:
    """Judge every product of a model as one rank runs it, from its config alone.

    Raises :class:`CheckpointError` for a config that cannot be read, and :class:`LintError` for a
    size that is none and for an engine, a GPU or a quantisation that is not known.
    """
    named = config_named(request.source)
    case = case_of(request, named.config)
    hosted: list[str] = []
    tier, time = case.tier, _times(case.gpu, case.engine.name, hosted)
    table = tuple(degrees(case))
    rows = [
        row_of(one, tier(each) if one is each else None, time(each) if one is each else None)
        for each in case.judged
        for one in with_shards(each)
    ]
    if not (case.gpu.is_open or case.gpu.amd):
        rows = [_beyond_rules(row, case.gpu.name) for row in rows]
    return Lint(
        named.name,
        case.config.model_type,
        case.engine.name,
        ".".join(map(str, case.engine.at or ())),
        case.gpu.name,
        case.gpu.memory_gib,
        case.scheme.name,
        request.tp,
        request.ep,
        case.outcome,
        (*rows, *_vision(case)),
        table,
        tuple(remedies(case, table)),
        (*named.notes, *_notes(case), *hosted),
    )


lint = verb("lint", LintRequest, _lint)


def _fix(request: LintRequest) -> tuple[dict[str, Any], Remedy] | None:
    """The config with its sizes moved to the nearest good ones, and what that costs; None where
    none is to be moved."""
    return fixed(case_of(request, config_named(request.source).config))


fix = verb("fix", LintRequest, _fix)


def _times(gpu: Gpu, engine: str, notes: list[str]) -> Times:
    """What gives a row's times; None where nothing was measured of the GPU or the engine, where it
    is not installed, and for experts, which run together. A time that the host bounds says nothing
    of the product: it is left out, and ``notes`` gets a line."""
    nothing = gpu.is_open or gpu.amd or engine not in ENGINES
    loaded = "gacprof.elsewhere.data" in sys.modules
    if nothing or not (loaded or find_spec("aiconfigurator_core")):
        return lambda judged: None  # numpy is not imported to find that nothing was measured
    from gacprof.elsewhere import data
    from gacprof.elsewhere.levels import BY_HOST
    from gacprof.elsewhere.needs import SCHEMES
    from gacprof.elsewhere.times import ProductTimes
    from gacprof.rules import target

    try:
        times = ProductTimes(target(gpu.name, TORCH), data.installed(), ENGINES[engine])
    except GacprofError:
        return lambda judged: None

    def of(judged: JudgedProduct) -> RowTimes | None:
        shape, product = padded_shape(judged), judged.product
        is_head = product.role == "head"
        dtype = "none" if is_head else judged.scheme.kind
        count = (1 if is_head else product.layers or 0) * (product.copies or 1)  # tied heads too
        if shape is None or dtype not in SCHEMES or not count:
            return None
        found: dict[str, Interval] = {}
        for m in ROWS:
            rows = 1 if is_head else m
            try:
                one = times.time(SCHEMES[dtype], rows, *shape)
            except MapError:  # the engine was not measured in this data type
                return None
            note = HOST.format(engine=engine, dtype=SCHEMES[dtype], tokens=counted(rows, "token"))
            if one.missing.endswith(BY_HOST) and note not in notes:
                notes.append(note)
            if (time := one.times(count).interval) is not None:
                found[str(m)] = time
        return found or None

    return of


def row_of(judged: JudgedProduct, tier: int | None, times_us: RowTimes | None = None) -> Row:
    product, worst = judged.product, judged.worst
    demand = worst.demand if worst else None
    axis, size, multiple = _judged_on(judged)
    return Row(
        product.name,
        product.role,
        judged.outcome,
        _local(judged),
        axis,
        size,
        multiple,
        dict(judged.padded) or None,
        round(judged.extra, 6),
        "; ".join(filter(None, (worst.why if worst else "", judged.note))),
        demand.source if demand else "",
        demand.since if demand else "",
        demand.sure if demand else "",
        demand.id if demand else "",
        worst.kernel if worst else "",
        judged.scheme.kind,
        product.layers,
        product.fields,
        tuple(dict.fromkeys((*product.n.missing, *product.k.missing))),
        tier,
        times_us,
    )


def _beyond_rules(row: Row, gpu: str) -> Row:
    """Experts' sizes whose rows are no multiple of 16 bytes are not known to be served well: no
    rule says what grouped products of such sizes cost."""
    multiple = EXPERTS.get(row.quant)
    odd = [
        f"{axis}={size}"
        for axis, size in row.local.items()
        if size and multiple and size % multiple
    ]
    if row.outcome != "ok" or not row.role.startswith("expert_") or not odd:
        return row
    why = f"{', '.join(odd)} is no multiple of {multiple}: no rule of {gpu} says how it is served"
    return replace(row, outcome="unknown", why=f"experts' {why}")


def _local(judged: JudgedProduct) -> dict[str, int | None]:
    product = judged.product
    if product.kind == "count":
        return {"N": product.n.whole, "K": None}
    n = product.n.value
    if product.kind == "vocab":
        whole = judged.padded.get("global", product.n.whole or 0)
        n = whole // product.n.parts if whole and whole % product.n.parts == 0 else None
    return {"N": n, "K": product.k.value}


def _judged_on(judged: JudgedProduct) -> tuple[str | None, int | None, int | None]:
    """(axis, size, multiple) of the worst finding, or of what was asked and held."""
    worst, product = judged.worst, judged.product
    if worst is not None:
        worse = [f for f in judged.findings if f.outcome == worst.outcome]
        axis = "N and K" if {"N", "K"} <= {f.axis for f in worse} else worst.axis
        strict = max(worse, key=lambda f: judged.asked.get(f.axis, 0))
        multiple = judged.asked.get(strict.axis, strict.multiple) if strict.multiple else None
        return axis, strict.size, multiple
    if product.kind == "count":
        return "global", product.n.whole, judged.asked.get("global")
    axes = [axis for axis in ("N", "K") if axis in judged.asked]
    if not axes:
        return None, None, None
    first = axes[-1] if product.split == "row" else axes[0]
    size = {"N": product.n.value, "K": product.k.value}
    return " and ".join(axes), size[first], judged.asked[first]


def _vision(case: LintCase) -> Iterable[Row]:
    """The head_dim of a vision tower, in the kernel that others measured the engine to take."""
    head_dim, arch = case.config.vision_head_dim, f"sm{case.gpu.sm}"
    kernel = vision_kernel(case.engine.name, arch)
    if head_dim is None or kernel is None:
        return
    found = judge(kernel, arch, head_dim)
    better = f"; {found.better} is served better" if found.better else ""
    yield Row(
        name="vision attention head_dim", role="vision_head_dim",
        outcome="unknown" if found.verdict == "refused" else "ok",
        local={"N": head_dim, "K": None}, axis="global", size=head_dim, multiple=None,
        padded_to=None, extra=0.0, why=f"{kernel} {found.rule.says}{better}",
        source=found.rule.source, since="", sure="medium", demand="", kernel=kernel, quant="none",
        layers=None, fields=("head_dim",), missing=(),
        tier={"safe": 1, "misaligned": 2}.get(found.verdict),
    )  # fmt: skip


def _notes(case: LintCase) -> Iterable[str]:
    config, engine, judged = case.config, case.engine, case.judged
    if config.family is None:
        named = f"'{config.model_type}'" if config.model_type else "without a name"
        yield f"the model type {named} is not known: sizes are read by the names of fields"
    if any(one.product.role == "mamba1" for one in judged):
        yield "layers of Mamba-1 are not judged"
    if config.values.get("linear_attn_config"):
        yield "layers of linear attention as linear_attn_config describes them are not judged"
    if engine.at is not None and engine.at > (version(engine.read) or ()):
        yield f"{engine.name}'s demands were read at {engine.read}: a newer version may differ"
    judged = [one for one in judged if one.product.role != "mamba1"]
    gone = sorted({m for one in judged for m in (*one.product.n.missing, *one.product.k.missing)})
    if gone:
        yield f"the config does not say {', '.join(gone)}: what depends on it is not judged"
