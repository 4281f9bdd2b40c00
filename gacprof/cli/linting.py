"""The verb ``lint``: what engines will do with a model's sizes, from its config alone.

Its options are the fields of :class:`~gacprof.linting.request.LintRequest`, and what concerns
printing and continuous integration.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gacprof.cli.elsewhere import shown
from gacprof.cli.options import PRINTED, Rows, from_requests
from gacprof.cli.printing import complain, print_json, print_table, say, say_notes
from gacprof.core.errors import LintError
from gacprof.core.formatting import counted, percent
from gacprof.core.request import Request, argument, option
from gacprof.demands.table import in_words
from gacprof.linting.request import LintRequest, ServingRequest
from gacprof.reporting.grouping import ranges

if TYPE_CHECKING:
    from gacprof.linting import Lint, Row
    from gacprof.linting.design import Shape
    from gacprof.linting.judging import Degree

MOST_DEGREES_SHOWN = 12


class LintOutput(Rows):
    """How findings are printed, and which of them fail the run."""

    error = LintError

    style: str = option(
        default="text", name="--format", group=PRINTED,
        help="text, json, markdown, github, junit, sarif.",
    )  # fmt: skip
    fail_on: str = option(
        default="pads", group=PRINTED,
        help="Exit code 1 from here on: unknown, pads, falls_back, wrong, refused.",
    )  # fmt: skip
    baseline: Path | None = option(
        default=None, read=Path, group=PRINTED, help="Known findings, which fail no run."
    )
    write_baseline: Path | None = option(
        default=None, read=Path, group=PRINTED, help="Write the findings there as known."
    )


class Configs(Request):
    """What is linted: configs as they are, or sizes that a config is yet to have."""

    error = LintError

    source: Sequence[str] = argument(default=(), many=True, like=LintRequest)
    fix: bool = option(default=False, help="Print the config with sizes moved to good ones.")
    design: str | None = option(
        default=None, help="Start from hidden=4096,layers=32,heads=32,vocab=151552,…"
    )
    params: str | None = option(default=None, help="With --design: the parameters, 8B or 700M.")


@from_requests
def lint(of: Configs, asked: ServingRequest, output: LintOutput) -> None:
    """Say what an engine does with a config's sizes on each rank.

    Exit code 1 where anything is not ok, or where nothing could be judged; --fail-on narrows it.
    """
    if of.design is not None:
        if of.source or of.fix:
            raise LintError("--design needs no config: give the sizes alone")
        return _design(of.design, of.params, asked, output)
    if not of.source:
        raise LintError(
            "name a config.json, a folder with one, or an id on the hub (or use --design)"
        )
    if of.fix:
        return _fix(of.source, asked)
    _lint(of.source, asked, output)


def _lint(configs: Sequence[str], asked: ServingRequest, output: LintOutput) -> None:
    from gacprof import linting
    from gacprof.linting import formats

    style = "json" if output.as_json else output.style
    if style not in ("text", "json", *formats.FORMATS):
        raise LintError(
            f"--format is one of text, json, {', '.join(formats.FORMATS)}, not '{style}'"
        )
    known = formats.read_baseline(output.baseline) if output.baseline else frozenset()
    found = [linting.lint(LintRequest.joined(asked, source=source)) for source in configs]
    failing = [row for one in found for row in formats.failing(one, output.fail_on, known)]
    if output.write_baseline:
        formats.write_baseline(output.write_baseline, found)
    if style == "json":
        made = [one.as_dict() for one in found]
        print_json(made if len(made) > 1 else made[0], "lint")
    elif style == "text":
        for one in found:
            print_lint(one, output.every, known)
    else:
        print(formats.FORMATS[style](found))
    if output.write_baseline:
        return
    if failing or any(one.outcome == "unknown" for one in found):
        raise typer.Exit(1)


def print_lint(found: Lint, every: bool = False, known: frozenset[str] = frozenset()) -> None:
    """The findings, the degrees, and what to do."""
    from gacprof.linting.formats import headline, one_line

    say(one_line(f"{_asked(found)}: {headline(found)}"))
    if found.gpu == "any":
        say("which sizes a GPU serves well is judged with its name (--gpu h100)")
    if rows := found.products if every else (*found.findings, *found.misaligned):
        _print_rows(found, rows, known)
    for row in found.findings:
        if row.source:
            since = f", since {row.since}" if row.since else ""
            say(
                f"  {row.name}: {row.source}{since}"
                f"{'' if row.sure == 'high' else f' ({row.sure} certainty)'}"
            )
    print_degrees(found, every)
    if found.remedies:
        say("\nwhat to do")
        for one in found.remedies:
            tier = f", tier {one.tier}" if (one.tier or 1) > 1 else ""
            say(one_line(f"  {one.what}: {in_words(one.outcome)}{tier}{_cost(one)}"))
    if found.unknown and not every:
        named = ", ".join(dict.fromkeys(r.name for r in found.unknown))
        reasons = {one_line(r.why) for r in found.unknown}
        why = f": {reasons.pop()}" if len(reasons) == 1 else " (--all says why)"
        say(f"\nnot judged: {named}{why}")
    say_notes(map(one_line, found.notes))


def _asked(found: Lint) -> str:
    """The model, and how it is to be served."""
    ranks = f"{found.tp} rank{'s' * (found.tp > 1)}{' with expert parallelism' if found.ep else ''}"
    named = f" ({found.model_type})" if found.model_type else ""
    quant = "unquantised" if found.quant == "none" else found.quant
    gpu = "whatever the GPU" if found.gpu == "any" else found.gpu
    return f"{found.model}{named}, {quant}, {found.engine} {found.version}, {ranks}, {gpu}"


def _print_rows(found: Lint, rows: Sequence[Row], known: frozenset[str]) -> None:
    from gacprof.linting.formats import fingerprint, one_line, verdict

    timed = sorted({int(m) for r in rows for m in r.times_us or ()})
    tiers = any(r.tier for r in rows)
    columns = (
        "product", "N", "K", "verdict", "why", *["tier"] * tiers,
        *(f"{counted(m, 'token')} †" for m in timed),
    )  # fmt: skip
    cells = [
        (
            r.name, r.local["N"], r.local["K"],
            verdict(r) + " (known)" * (fingerprint(found, r) in known), one_line(r.why) or None,
            *[r.tier] * tiers, *(shown((r.times_us or {}).get(str(m))) for m in timed),
        )
        for r in rows
    ]  # fmt: skip
    print_table("", columns, cells)
    if timed:
        say(
            f"† all layers, by others' measurements of {found.engine}: 'gacprof diagnose "
            f"CONFIG --gpu {found.gpu}' has whole steps, of all engines without --engine"
        )


def _cost(remedy: Any) -> str:
    costs = [
        f"{percent(share, signed=True)} {what}"
        for share, what in (
            (remedy.parameters, "parameters"),
            (remedy.bytes_per_rank, "bytes a rank"),
        )
        if share is not None
    ]
    return f" ({', '.join(costs)})" if costs else ""


def print_degrees(found: Lint, every: bool) -> None:
    """One line a degree: whether it starts, what stops it, and what a rank holds."""
    memory = found.memory_gib
    plain = {d.tp: d for d in found.tp_table if not d.ep}
    with_ep = {d.tp: d for d in found.tp_table if d.ep}
    degrees = sorted(plain.keys() | with_ep.keys())
    if len(degrees) < 2:
        return
    shown = [
        n for n in degrees if every or n == found.tp or n & (n - 1) == 0 or _runs(plain.get(n))
    ]
    cut = [] if every else shown[MOST_DEGREES_SHOWN:]
    held = f"weights a rank{f' (of {memory} GiB)' if memory else ''}"
    columns = ["tp", "verdict", "by", "padded", held, "tier"] + ["with --ep"] * bool(with_ep)
    rows = [
        (
            n,
            *_degree(plain.get(n) or with_ep[n], memory),
            in_words(with_ep[n].outcome) if n in with_ep else None,
        )
        for n in shown
        if n not in cut
    ]
    print_table("", columns, _folded([row[: len(columns)] for row in rows]))
    if cut:
        say(f"({len(cut)} more degrees: --all)")


def _folded(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Degrees of which the same is said, as one row: ``3, 5–7, 9–15``."""
    degrees: dict[tuple[Any, ...], list[int]] = {}
    for degree, *said in rows:
        degrees.setdefault(tuple(said), []).append(degree)
    return [(ranges(alike), *said) for said, alike in degrees.items()]


def _runs(degree: Degree | None) -> bool:
    return degree is not None and degree.outcome in ("ok", "pads", "falls_back")


def _degree(one: Degree, memory: int | None) -> tuple[object, ...]:
    gib = one.bytes_per_rank / 2**30 if one.bytes_per_rank else None
    held = None if gib is None else f"{gib:.1f} GiB{_full(gib, memory)}"
    return (
        in_words(one.outcome),
        one.product or None,
        percent(one.padded_share) if one.padded_share else None,
        held,
        one.worst_tier,
    )


def _full(gib: float, memory: int | None) -> str:
    from gacprof.linting.verdict import NEARLY_FULL

    if not memory or gib <= NEARLY_FULL * memory:
        return ""
    return " (too much)" if gib > memory else " (weights alone nearly fill it)"


def _fix(configs: Sequence[str], asked: ServingRequest) -> None:
    from gacprof import linting

    if len(configs) > 1:
        raise LintError("--fix changes one config: name one")
    made = linting.fix(LintRequest.joined(asked, source=configs[0]))
    if made is None:
        complain("no size of this config is to be moved")
        return
    config, remedy = made
    print(json.dumps(config, indent=2, ensure_ascii=False))
    complain(f"{remedy.what}: {in_words(remedy.outcome)}{_cost(remedy)}")


def _design(text: str, params: str | None, asked: ServingRequest, output: LintOutput) -> None:
    from gacprof.linting import design

    count = None if params is None else design.amount(params)
    gpus = ["h100"] if asked.gpu == "any" else asked.gpu.split(",")
    quants = (asked.quant or "bf16").split(",")
    engine = f"{asked.engine}=={asked.version}" if asked.version else asked.engine
    degrees: Any = asked.tp  # one, or several where the text had several
    several = list(degrees) if isinstance(degrees, tuple) else [degrees]
    shapes = design.design(design.requested_sizes(text), gpus, several, quants, count, engine)[
        : design.SHOWN
    ]
    if output.as_json or output.style == "json":
        print_json({"shapes": [shape.as_dict() for shape in shapes]}, "lint-design")
    else:
        print_shapes(shapes)
    if not shapes or shapes[0].not_ok:
        raise typer.Exit(1)


def print_shapes(shapes: Sequence[Shape]) -> None:
    from gacprof.linting.design import WORDS

    names = {key: short for short, key in reversed(WORDS.items())}
    keys = [key for key in shapes[0].config if key in names] if shapes else []
    rows = [
        (
            *(shape.config[key] for key in keys),
            f"{shape.parameters / 1e9:.2f} B" if shape.parameters else None,
            "ok" if not shape.not_ok else f"{len(shape.not_ok)} not ok: {shape.not_ok[0]}",
        )
        for shape in shapes
    ]
    print_table("", [*(names[key] for key in keys), "parameters", "verdict"], rows)
