"""The rule table: which sizes a GPU that is not at hand serves well, in tiers.

``gacprof.rules/1`` is a GPU of the data sheet, a PyTorch release, and what the rules say of both: a
tier (1 is the best), its sizes, its mechanism, and the rules with source and basis. Nothing in it
was measured and no number has a unit. It answers any size of any shape from the rules themselves,
so that it holds no curves; the tiers in the file are what the reader sees, and are checked on
loading against the rules of this gacprof.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from gacprof import operators
from gacprof.cliffmap.candidates import Limits, choose, span
from gacprof.cliffmap.selection import whole
from gacprof.cliffmap.source import Asked, Candidate, SizeCost, Use
from gacprof.core.dtypes import full_name
from gacprof.core.errors import GacprofError, MapError, other_version, why_unreadable
from gacprof.core.files import Record, read_json, write_json
from gacprof.core.formatting import Framed
from gacprof.core.points import Environment, Flag
from gacprof.rules import gemm, serve, step
from gacprof.rules.target import NoRuleError, Rule, Target, target
from gacprof.rules.verdicts import REACH, judged
from gacprof.rules.view import RuleView
from gacprof.stats.findings import Verdict

SCHEMA = "gacprof.rules/1"
BASIS = "by rules, not measured"
"""What every answer of a rule table says."""
NOTES = (
    "a tier says which mechanism serves a size, and that at the same work a higher number is not "
    "faster: no latency is known, and being of the best tier is necessary, not sufficient",
    "FlashAttention-3 is not in PyTorch's wheels and not covered, nor are engines' own kernels",
)
SHOWN = ("sms", "l2_mib", "gb_s")
"""What the notes say of the data sheet."""
ALIGNED = {"M": 1024, "N": 4096, "K": 4096, "tokens": 1024, "rows": 1024, "experts": 8, "batch": 8}
ALIGNED |= {"heads": 32, "kv_heads": 32, "q_len": 1024, "head_dim": 128}
"""Other dims, where a question leaves them out: sizes that hold nothing back."""
HEAD_DIMS = range(8, 257, 8)
FEW = 10
"""So many sizes of a tier are listed."""


@dataclass(frozen=True)
class Tier(Record):
    """One tier of an axis. ``relative`` is its published cost beside tier 1 on this GPU,
    None where only the order is known; ``doubts`` are what the tier leaves open."""

    operator: str
    axis: str
    dtype: str
    tier: int
    sizes: str
    mechanism: str
    relative: float | None
    rules: tuple[Rule, ...]
    doubts: tuple[Rule, ...] = ()


class RuleTable(Framed):
    """The rules of one GPU with one PyTorch release, as a source of sizes.

    >>> table = RuleTable(target("h100", "2.11"))
    >>> [c.d for c in table.candidates("linear", axis="K", near=107, below=1, above=1)]
    [64, 128]
    """

    basis = BASIS
    timed, estimated, any_size = False, False, True
    busy, instead, times = "", "", None

    def __init__(
        self, about: Target, dtypes: Sequence[str] = (), name: str = "", created: str = ""
    ) -> None:
        self.target = about
        self.dtypes = tuple(dict.fromkeys(map(about.dtype, dtypes))) or _sixteen_first(about)
        self.gpu, self.usual_dtype = about.sheet.key, self.dtypes[0]
        self.name = name or f"{about.sheet.key}-rules"
        self.created = created or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.frame_title()}>"

    @classmethod
    def load(cls, path: RuleTable | str | Path) -> RuleTable:
        """A table from its file, or as it is. Raises :class:`MapError` for what is none, of another
        version, or of other tiers than those of this gacprof's rules."""
        if isinstance(path, RuleTable):
            return path
        try:
            data = read_json(Path(path))
        except (OSError, ValueError) as error:
            raise MapError(f"cannot read the rule table {path}: {why_unreadable(error)}") from None
        return cls.of(data, str(path))

    @classmethod
    def of(cls, data: Any, where: str) -> RuleTable:
        """A table from its JSON; raises as :meth:`load`."""
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema != SCHEMA:
            anew = f"; make it anew: gacprof map rules --gpu GPU --out {shlex.quote(where)}"
            raise MapError(f"{where} cannot be used: {other_version(schema, SCHEMA, anew)}")
        texts = [data.get(field) for field in ("name", "gpu", "torch", "created")]
        dtypes = data.get("dtypes")
        if not isinstance(dtypes, list) or not all(
            isinstance(text, str) and text for text in (*texts, *dtypes)
        ):
            raise MapError(f"{where}: a rule table has the texts name, gpu, torch, created, dtypes")
        name, gpu, torch, created = texts
        made = cls(target(gpu, torch), dtypes, name, created)
        if data.get("tiers") != made.as_dict()["tiers"]:
            raise MapError(
                f"{where} holds other tiers than the rules of this gacprof for {gpu} and torch "
                f"{torch}; make it anew: {command(gpu, torch)} --out {shlex.quote(where)}"
            )
        return made

    def save(self, path: str | Path) -> None:
        """Write the table, atomically. Raises :class:`MapError` where that cannot be done."""
        try:
            write_json(Path(path), self.as_dict())
        except OSError as error:
            raise MapError(f"cannot write the rule table {path}: {error.strerror}") from None

    def as_dict(self) -> dict[str, Any]:
        about = self.target
        return {
            "schema": SCHEMA, "name": self.name, "gpu": about.sheet.key, "arch": about.arch,
            "torch": about.torch, "cudnn": about.cudnn, "created": self.created, "basis": BASIS,
            "dtypes": list(self.dtypes), "notes": self.notes,
            "tiers": [tier.as_dict() for tier in self.tiers],
        }  # fmt: skip

    @property
    def notes(self) -> list[str]:
        """What the tiers do and do not say, and what of the data sheet has a source."""
        sheet = self.target.sheet
        known = [f"{key} {sheet.values[key]:g}" for key in SHOWN if key in sheet.values]
        lacking = [key for key in SHOWN if key not in sheet.values]
        missing = f"; without a source, so left out: {', '.join(lacking)}" if lacking else ""
        return [*NOTES, f"data sheet: {', '.join(known)}{missing}"]

    @property
    def environment(self) -> Environment:
        """The device and stack that the rules are of."""
        about, stack = self.target, {"torch": self.target.torch, "cudnn": str(self.target.cudnn)}
        return Environment("cuda", about.sheet.name, about.arch, dict(about.sheet.values), stack)

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        for tier in self.tiers:
            row = tier.as_dict()
            yield {name: row[name] for name in ("operator", "axis", "dtype", "tier", "sizes")}

    def frame_title(self) -> str:
        return f"{self.name}: {self.target.sheet.name}, torch {self.target.torch}, {self.basis}"

    @cached_property
    def tiers(self) -> list[Tier]:
        """Every tier of the axes that the rules cover, best first; what a dtype lacks is left
        out."""
        found: list[Tier] = []
        for dtype in self.dtypes:
            operator = "quantised" if dtype in gemm.DEMANDS else "linear"
            demanded, last = gemm.DEMANDS.get(dtype, (1, 1))[0], 0
            for i, level in enumerate(gemm.levels(self.target, dtype)):
                multiple = max(level.elements, demanded)
                if multiple == last:  # no size is served worse than the demand allows
                    continue
                last = multiple
                dims = {"K": multiple, "N": ALIGNED["N"]}
                served = serve(self._point(operator, dims, dtype), self.target)
                sizes = "any size" if multiple == 1 else f"multiples of {multiple}"
                sure = gemm.sure_multiple(dtype)
                sizes += f" (safe: of {sure})" if not i else ""
                found.append(
                    Tier(
                        operator, "K, N", dtype, i + 1, sizes, level.mechanism, served.relative,
                        served.rules, served.doubts,
                    )
                )  # fmt: skip
            if operator == "linear":
                found += self._head_dims(dtype)
        return [*found, *self._rows()]

    def _head_dims(self, dtype: str) -> Iterator[Tier]:
        """Of causal prefill without a mask, up to 256."""
        by_tier: dict[tuple[int, bool, str], list[int]] = {}
        rules = {}
        for d in (*HEAD_DIMS, HEAD_DIMS[-1] - 1):
            try:
                served = serve(self._point("attention", {"head_dim": d}, dtype), self.target)
            except GacprofError:  # the dtype has no attention, or no kernel serves the size
                continue
            key = served.tier, served.open, re.sub(r"template \d+", "template", served.mechanism)
            by_tier.setdefault(key, []).append(d)
            rules[key] = served.rules
        for key in sorted(by_tier):
            (tier, is_open, mechanism), dims = key, by_tier[key]
            sizes = ", ".join(map(str, dims))
            if len(dims) > FEW:
                sizes = "multiples of 8" if tier == 1 and not is_open else "other multiples of 8"
            sizes = "any other size" if dims[-1] % 8 else sizes
            sizes = f"{sizes} (undecided)" if is_open else sizes
            yield Tier("attention", "head_dim", dtype, tier, sizes, mechanism, None, rules[key])

    def _rows(self) -> Iterator[Tier]:
        for tier, k in ((1, 16), (2, 8)):
            dtype = next((d for d in self.dtypes if d in operators.get("row_sum").dtypes), "")
            if not dtype:
                return
            served = serve(self._point("row_sum", {"K": k}, dtype), self.target)
            sizes = "multiples of 16" if tier == 1 else "any size"
            yield Tier(
                "row_sum, row_copy", "K", dtype, tier, sizes, served.mechanism, None, served.rules
            )

    def view(self, asked: Asked) -> RuleView:
        return RuleView(self.target, self.dtypes, asked, self.name, BASIS)

    def candidates(
        self,
        operator: str,
        *,
        axis: str,
        near: int,
        dtype: Any = None,
        flags: Mapping[str, Flag] | None = None,
        **limits: Any,
    ) -> list[Candidate]:
        """Safe sizes near one, on both sides; ascending. The keywords are those of
        :meth:`CliffMap.candidates`: limits, ``shards``, and the operator's other dims, which hold
        nothing back where they are left out.

        Raises :class:`MapError` for what the rules do not cover."""
        own: Limits = {name: limits.pop(name) for name in tuple(limits) if name in LIMITS}  # type: ignore[assignment]
        shards = int(limits.pop("shards", 1))
        if dtype is None:
            dtype = next((d for d in ("bfloat16", "float16") if d in self.dtypes), self.dtypes[0])
        use = Use(operator, limits, axis, full_name(dtype), flags or {}, shards=shards)
        return self.joint_candidates([use], near, **own)

    def joint_candidates(
        self, uses: Sequence[Use], near: int, **limits: Unpack[Limits]
    ) -> list[Candidate]:
        """Safe sizes of one dim that several products share: of the best tier in all of them."""
        near = whole("near", near, 1)
        first, last = span(near, limits, REACH * max((use.shards for use in uses), default=1))
        return choose(self.judge_jointly(uses, first, last), near, **limits)

    def judge_jointly(self, uses: Sequence[Use], first: int, last: int) -> list[Candidate]:
        """Every size from ``first`` to ``last`` that is served: ``safe`` where it is so in all
        uses, ``misaligned`` where it is so in any, of the worst of their tiers. Uses of few rows
        count where there are no others."""
        if not uses:
            raise MapError("joint candidates of no uses: name at least one operator and axis")
        rows = [use for use in uses if dict(use.fixed).get("M", ALIGNED["M"]) > gemm.FEW_ROWS]
        each = [self._judged(use, first, last) for use in rows or uses]  # few rows say nothing
        common = sorted(set.intersection(*(set(found) for found in each)))
        frontier = self._widest(uses, [d for d in common if all(f[d].tier == 1 for f in each)])
        order: tuple[Verdict, ...] = ("misaligned", "undecided", "safe")
        what = " + ".join(f"{use.operator} {use.axis} {use.dtype}" for use in uses)
        return [
            Candidate(
                d, None, None, None, None,
                order[min(order.index(found[d].verdict) for found in each)], d in frontier, None,
                f"{what}, {BASIS}", tier=max(found[d].tier or 0 for found in each),
            )
            for d in common
        ]  # fmt: skip

    def _judged(self, use: Use, first: int, last: int) -> dict[int, SizeCost]:
        shards = use.shards
        near = range(-(-max(first, 1) // shards), last // shards + 1)
        at = self._point(use.operator, dict(use.fixed), use.dtype, use.axis, use.flags)
        found = judged(at, use.axis, near, self.target)
        return {d * shards: found[d] for d in near if d in found and found[d].tier is not None}

    def _widest(self, uses: Sequence[Use], best: Sequence[int]) -> set[int]:
        """Of sizes of tier 1 that do the same work the widest."""
        widest = {}
        for d in best:
            steps = []
            for use in uses:
                dims = dict(use.fixed) | {use.axis: d // use.shards}
                point = self._point(use.operator, dims, use.dtype, use.axis, use.flags)
                steps.append(step(point, use.axis, self.target))
            widest[tuple(steps)] = d
        return set(widest.values())

    def _point(
        self,
        operator: str,
        dims: Mapping[str, int],
        dtype: str,
        axis: str = "",
        flags: Mapping[str, Flag] | None = None,
    ) -> Any:
        """A point at these dims; others at :data:`ALIGNED`."""
        if operator == "linear" and dtype in gemm.DEMANDS:
            operator, flags = "quantised", {}  # PyTorch has other calls for 8-bit operands
        known = operators.get(operator)
        rest = {n: ALIGNED[n] for n in known.dims if n in ALIGNED and n not in dims}
        if operator == "attention":
            rest.pop("batch", None)
            rest |= {"kv_heads": dims.get("heads", ALIGNED["heads"])} if "kv_heads" in rest else {}
            flags = {"causal": True} | dict(flags or {})
        flags = {name: value for name, value in (flags or {}).items() if name in known.flags}
        if axis and axis not in known.dims:
            raise MapError(f"'{axis}' is no dim of {operator}: it has {', '.join(known.dims)}")
        if dtype not in self.target.dtypes:
            raise NoRuleError(
                f"{self.target.sheet.name} ({self.target.arch}) has no rules for {dtype}: there "
                f"are {', '.join(self.target.dtypes)}"
            )
        return operators.point(operator, rest | dict(dims), dtype, flags)


LIMITS = ("below", "above", "window", "count", "safe_only")


def _sixteen_first(about: Target) -> tuple[str, ...]:
    """The dtypes that the GPU has rules for, what models are computed in first."""
    return tuple(sorted(about.dtypes, key=lambda dtype: dtype != "bfloat16"))


def command(gpu: str, torch: str) -> str:
    """``gacprof map rules --gpu h100 --torch 2.11.0``."""
    return f"gacprof map rules --gpu {gpu} --torch {torch}"
