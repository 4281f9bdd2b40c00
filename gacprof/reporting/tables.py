"""The table of constraints: the multiples that kernels ask of each dim, by maps and by rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any, Literal

import pandas as pd

from gacprof.cliffmap.cliffmap import CliffMap, Curve, prefill_curves
from gacprof.core.errors import ConfigError
from gacprof.core.files import write_json, write_text
from gacprof.core.formatting import sizes_text
from gacprof.core.sizes import SizeVerdict, seems_safe, seems_slow
from gacprof.diagnosing.source import open_source
from gacprof.kernels.attention import ATTENTION_DTYPES, MAX_SWEPT, AttentionCall, serving
from gacprof.kernels.dispatch import DispatchTable, load_table
from gacprof.kernels.penalties import MIN_ROWS, PADDED_TO
from gacprof.kernels.rules import Rules
from gacprof.reporting.sections import (
    WORDS,
    first_of,
    groups_text,
    json_of,
    section_of,
    sizes_by,
)
from gacprof.workload.products import side_uses

SIDES: tuple[Literal["N", "K"], ...] = ("N", "K")
MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
TOKENS, SIDE, HEADS = 1024, 4096, 32  # of the calls that rules are asked about: a model's prefill
NORMS = ("rms_norm", "layer_norm", "softmax")
KERNELS_NAMED = 2  # of those that serve sizes of one kind
FIRST_ROW = 128  # shorter rows fit into one warp, whatever their alignment
COLUMNS = (
    "source operator dtype dim curve first last multiple slow_multiples multiples mostly also_good "
    "odd odd_low odd_high "
    "even even_low even_high cost_by served_by others safe misaligned undecided cliffs good_sizes "
    "by"
)
TableRow = dict[str, Any]  # some of the columns; what a source doesn't know is left out


def table(
    sources: CliffMap | Rules | str | Path | Sequence[CliffMap | Rules | str | Path],
    *,
    out: str | Path | None = None,
) -> pd.DataFrame:
    """Print the multiples that a GPU asks of each dim; of several GPUs or maps side by side.

    Parameters
    ----------
    sources
        A GPU's name (h100) or a map (file, run folder or shipped name); or several.
    out
        A file to write the table to: .csv and .json hold all columns, .md is what is printed.

    Returns
    -------
    pandas.DataFrame
        A row an operator, dtype and dim of each source; of a map alone a row a curve, of a map
        among several the curve that is most like a model's prefill. ``multiple`` is what to round
        up to, ``slow_multiples`` of whose ``multiples`` in a map are misaligned none the less, and
        ``mostly`` a larger one that is mostly faster. ``odd`` and ``even`` are how many
        times as long other sizes take, by a map the median, else ``low`` and ``high`` of an
        estimate. ``good_sizes`` are those that a plan may choose, ``also_good`` those of them that
        are no multiple. What is not known is empty.

    Raises
    ------
    GacprofError
        Where a name is neither a map's nor a GPU's, or a file's ending is unknown.

    Examples
    --------
    >>> gacprof.table("h100")[["operator", "dtype", "dim", "multiple"]].head(2)
      operator    dtype dim  multiple
    0   linear  float16   N         8
    1   linear  float16   K         8
    >>> sorted(set(gacprof.table(["a100", "h200-measured"]).source))  # side by side
    ['a100', 'h200-measured']
    """
    if isinstance(sources, str | Path) or not isinstance(sources, Sequence):
        sources = [sources]
    rows: list[TableRow] = []
    for source in sources:
        opened = open_source(source)
        if isinstance(opened, CliffMap):
            curves = opened.curves if len(sources) == 1 else prefill_curves(opened.curves)
            of_source = [curve_row(opened, curve) for curve in curves]
        elif isinstance(opened, Rules):
            of_source = [*product_rows(opened), *attention_rows(opened)]
            dispatched = load_table(opened.name, opened.torch)
            for operator, dtype in product(NORMS, sorted(ATTENTION_DTYPES)):
                if dispatched and dispatched.rows(operator, FIRST_ROW, dtype=dtype) is not None:
                    of_source.append(norm_row(dispatched, operator, dtype))
        else:
            raise ConfigError(f"{opened.name} is neither a map nor a GPU: it has no table")
        name = str(source) if isinstance(source, str | Path) else opened.name
        rows += [{"source": name, "by": opened.provenance, **row} for row in of_source]
    frame = pd.DataFrame(rows, columns=COLUMNS.split()).convert_dtypes()
    if out is not None:
        write_table(frame, Path(out))
    return frame


def write_table(frame: pd.DataFrame, out: Path) -> None:
    """Write a table in the form of a file's ending."""
    if out.suffix == ".csv":
        write_text(out, frame.to_csv(index=False))
    elif out.suffix == ".json":
        write_json(out, json_of(frame))
    elif out.suffix == ".md":
        section = section_of(frame)
        lines = [section.columns, ["---"] * len(section.columns), *section.rows]
        cells = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        remarks = [f"- {remark}" for remark in section.remarks]
        write_text(out, "\n".join([section.headline, "", cells, *remarks, ""]))
    else:
        raise ConfigError(f"{out}: name a file that ends in .csv, .md or .json")


def curve_row(cliff_map: CliffMap, curve: Curve) -> TableRow:
    """What a curve of a map says."""
    axis = curve.axis
    calls = {**axis.fixed, **curve.unusual}
    multiple = curve.round_to
    slow = [v.size for v in curve.sizes if seems_slow(v)]
    of_multiple = [size for size in curve.axis.sizes if multiple and size % multiple == 0]
    kernels = {v.size: "fails" if v.cause == "failed" else v.kernel for v in curve.sizes}
    row: TableRow = {
        "operator": axis.operator,
        "dtype": axis.dtype,
        "dim": axis.dim,
        "curve": " ".join(f"{name}={value}" for name, value in calls.items()),
        "first": axis.sizes[0],
        "last": axis.sizes[-1],
        "multiple": multiple,
        "slow_multiples": len(set(slow) & set(of_multiple)),
        "multiples": len(of_multiple),
        "cliffs": len(curve.cliffs),
        "good_sizes": sizes_text(good_sizes(curve.sizes, cliff_map.tolerance)),
        **kernels_of(kernels, multiple),
    }
    for verdict in ("safe", "misaligned", "undecided"):
        row[verdict] = len(curve.with_verdict(verdict))
    penalties = {v.size: v.penalty.value for v in curve.sizes if v.penalty}
    others = [size for size in penalties if size % (multiple or PADDED_TO)]
    for rest, parity in enumerate(("even", "odd")):
        times = [1 + penalties[size] for size in others if size % 2 == rest]
        if times:
            row |= {parity: round(median(times), 4), "cost_by": "measured"}
    return row


def product_rows(rules: Rules) -> list[TableRow]:
    """What the rules of a GPU say of both sides of a product."""
    rows = []
    for dtype, dim in product(rules.dtypes, SIDES):
        uses = side_uses(dim, SIDE, {TOKENS: 1.0}, dtype)
        verdicts = [*rules.judge(uses, range(1, MAX_SWEPT + 1))]
        kernels = {v.size: v.kernel or "no kernel" for v in verdicts}
        row = rule_row(verdicts, kernels, rules.tolerance)
        operator = "quantised" if dtype in ("int8", "float8_e4m3") else "linear"
        row |= {"operator": operator, "dtype": dtype, "dim": dim, "curve": "2 tokens or more"}
        estimates = [v.estimate for v in rules.judge(uses, [SIDE + 1, SIDE + 2])]
        for parity, estimate in zip(("odd", "even"), estimates, strict=True):
            if estimate is not None:
                row |= {f"{parity}_low": estimate.low, f"{parity}_high": estimate.high}
                by = groups_text(estimates)
                row["cost_by"] = f"estimated from {by} of {MIN_ROWS} tokens or more"
        rows.append(row)
    return rows


def attention_rows(rules: Rules) -> list[TableRow]:
    """What PyTorch's attention asks of head_dim on a GPU."""
    rows = []
    for dtype in sorted(ATTENTION_DTYPES):
        call = partial(AttentionCall, rules.name, rules.arch, rules.torch, dtype)
        sizes = range(1, MAX_SWEPT + 1)
        verdicts = [rules.head_dim(size, HEADS, HEADS, dtype) for size in sizes]
        kernels = {size: WORDS["served"][serving(call(size, HEADS, HEADS))] for size in sizes}
        row = rule_row(verdicts, kernels, rules.tolerance)
        row |= {"operator": "attention", "dtype": dtype, "dim": "head_dim"}
        row |= {"curve": "causal prefill, no mask", "first": 1, "last": MAX_SWEPT}
        dispatched = load_table(rules.name, rules.torch)
        rows.append(row | ({"by": dispatched.provenance} if dispatched else {}))
    return rows


def rule_row(
    verdicts: Sequence[SizeVerdict], kernels: Mapping[int, str], tolerance: float
) -> TableRow:
    """The multiples of sizes that may be chosen, and the kernels."""
    good = good_sizes(verdicts, tolerance)
    slow = {v.size for v in verdicts if v.verdict in ("misaligned", "unknown")}
    multiple = multiple_within({v.size for v in verdicts} - slow)
    best = multiple_within(set(good))
    others = [size for size in good if best is None or size % best]
    return {
        "multiple": multiple,
        "mostly": best if best != multiple else None,
        "also_good": sizes_text(others) if others else None,
        "good_sizes": sizes_text(good),
        **kernels_of(kernels, best),
    }


def good_sizes(verdicts: Iterable[SizeVerdict], tolerance: float) -> list[int]:
    return [v.size for v in verdicts if seems_safe(v, tolerance)]


def multiple_within(sizes: set[int]) -> int | None:
    """The smallest power of two all of whose multiples, up to the longest sweep, are sizes."""
    for multiple in MULTIPLES:
        if sizes.issuperset(range(multiple, MAX_SWEPT + 1, multiple)):
            return multiple
    return None


def norm_row(dispatched: DispatchTable, operator: str, dtype: str) -> TableRow:
    """The multiple from which on a norm or softmax over rows of that length has the kernel of the
    next multiple of 64, as PyTorch dispatched them."""
    lengths = range(FIRST_ROW, dispatched.sections["rows"].range[1] + 1)
    kernels = {n: str(dispatched.rows(operator, n, dtype=dtype)) for n in lengths}
    multiple = None
    for step in reversed(MULTIPLES):
        if any(kernels[n] != kernels[n + -n % MULTIPLES[-1]] for n in kernels if n % step == 0):
            break
        multiple = step
    names = {}
    for length, kernel in kernels.items():
        names[length] = " + ".join(part.partition("<")[0] for part in kernel.split(" + "))
    return {
        "operator": operator,
        "dtype": dtype,
        "dim": "row length",
        "curve": "16 tokens",
        "multiple": multiple,
        "by": dispatched.provenance,
        **kernels_of(names, multiple),
    }


def kernels_of(kernels: Mapping[int, str], multiple: int | None) -> TableRow:
    """What serves the multiples, and what other sizes, by what those have in common."""
    sizes_of = sizes_by({size: kernel for size, kernel in kernels.items() if kernel})
    of_multiples: list[str] = []
    others: dict[int, list[str]] = {}
    for kernel, sizes in sorted(sizes_of.items(), key=lambda pair: -len(pair[1])):
        if multiple is not None and any(size % multiple == 0 for size in sizes):
            of_multiples.append(kernel)
        else:
            others.setdefault(gcd(*sizes), []).append(kernel)
    texts = []
    for step in sorted(others, reverse=True):
        label = "rest" if step == 1 else f"multiples of {step}"
        if step not in MULTIPLES:  # a size or two
            label = sizes_text(sizes_of[others[step][0]])
        texts.append(f"{label}: {first_of(others[step], KERNELS_NAMED, ' or ')}")
    served_by = first_of(of_multiples, KERNELS_NAMED, " or ")
    return {"served_by": served_by or None, "others": "; ".join(texts) or None}
