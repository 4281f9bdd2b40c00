"""Verbs of maps by rules: ``map rules`` writes one, ``map agree`` checks one by a measured map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from gacprof.cli.measuring import first_and_last, shapes
from gacprof.cli.options import load_maps, token_counts
from gacprof.cli.printing import Json, emit, print_json, print_table, say, say_notes
from gacprof.core.files import refuse_to_replace
from gacprof.core.formatting import percent

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.agree import Agreement, CurveAgreement, Share
    from gacprof.cliffmap.schema import Curve, RuleNote

SHOWN = 12
"""Counter-examples of a curve that are listed."""


def rules(
    out: Annotated[Path, Option(help="The map's file.")],
    gpu: Annotated[str, Option(help="a100, a10, l4, l40s, rtx4090, h100, h100-pcie, h200, b200 …")],
    torch: Annotated[str, Option(help="The PyTorch release to be served with, as 2.11.")],
    dtype: Annotated[
        str | None,
        Option(
            help="float16, bfloat16, float8_e4m3fn …; several, by commas. Default: the model's.",
            metavar="DTYPE,…",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, Option("--for", help="This checkpoint's own shapes and what they may become.")
    ] = None,
    ranks: Annotated[
        str | None,
        Option("--ranks", metavar="DENSE|OUTxIN,…", help="Factor pairs of this dense checkpoint."),
    ] = None,
    rank_range: Annotated[
        str | None,
        Option(
            "--range", metavar="FIRST:LAST", help="The ranks. Default: all that save something."
        ),
    ] = None,
    suite: Annotated[str | None, Option(help="A suite's name or file. Default: full.")] = None,
    tokens: Annotated[
        str | None, Option(help="Token counts, with --for and --ranks.", metavar="M,M,…")
    ] = None,
    window: Annotated[
        float, Option(min=0.0, max=4.0, help="With --for: within ± this share.")
    ] = 0.25,
    preset: Annotated[str | None, Option(metavar="ENGINE[,…]", help="With --for.")] = None,
    name: Annotated[str | None, Option(help="Default: GPU-rules.")] = None,
    as_json: bool = Json,
) -> None:
    """Write a map for a GPU that is not at hand, by rules: which sizes its kernels serve, in tiers,
    each with rule, source and basis. Nothing is measured and no latency is given."""
    from gacprof import api
    from gacprof.cli.maps import is_map
    from gacprof.cliffmap.catalogue import map_facts

    refuse_to_replace(out, "cliff map", is_map)
    made = api.map_by_rules(
        gpu, torch, suite=suite, model=checkpoint, ranks_of=shapes(ranks),
        ranks=first_and_last(rank_range), tokens=None if tokens is None else token_counts(tokens),
        dtypes=[part.strip() for part in dtype.split(",")] if dtype else (), window=window,
        preset=preset, name=name,
    )  # fmt: skip
    made.save(out)
    if as_json:
        print_json({"map": str(out)} | map_facts(made), "map-facts")
        return
    print_rules(made)
    say(f"map: {out}")


def print_rules(made: CliffMap) -> None:
    """The rules that the map's curves follow, each once with the axes that follow it."""
    from gacprof.cliffmap.schema import BASIS

    follow: dict[str, dict[str, None]] = {}
    for curve in sorted(made.curves, key=lambda curve: curve.operator):
        for rule in curve.rules:
            if not rule.edges:
                axes = follow.setdefault(_told(rule), {})
                axes[f"{curve.operator} {curve.axis} {curve.dtype}"] = None
    for told, axes in sorted(follow.items(), key=lambda entry: next(iter(entry[1]))):
        first, *more = axes
        say(f"{first}{f' and {len(more)} more' if more else ''}: {told}")
    say(f"{BASIS}. ×: cost beside tier 1, where published for this architecture")


def _told(rule: RuleNote) -> str:
    where = "" if rule.tier is None else f"tier {rule.tier}{_relative(rule.relative)}: "
    return f"{where}{rule.says} [{rule.basis}: {rule.source}]"


def _relative(ratio: float | None) -> str:
    return "" if ratio is None else f" (×{ratio:g})"


def print_curve(curve: Curve) -> None:
    """One curve by rules: its tiers, and why."""
    for tier in curve.tiers:
        say(f"  {tier.name}, {tier.first} to {tier.last}: {tier.mechanism}")
    for rule in curve.rules:
        say(f"  {_told(rule)}")
        if rule.edges:
            edges = (f"{e.after} ({e.tile}, at most {percent(e.at_most)})" for e in rule.edges)
            say(f"    {', '.join(edges)}")


def agree(
    rules: Annotated[str, Argument(metavar="RULES", help="A map by rules.")],
    measured: Annotated[str, Argument(metavar="MEASURED", help="A measured or published map.")],
    as_json: bool = Json,
) -> None:
    """Say how far rules hold beside a measured map of the same architecture: precision and recall
    of the safe dims and of the frontier, and every counter-example."""
    from gacprof.cliffmap.agree import agree as compare

    by_rules, known = load_maps(rules, measured)
    emit(compare(by_rules, known), as_json, _print_agreement)


def _print_agreement(found: Agreement) -> None:
    from gacprof.cliffmap.schema import BASIS

    rows = [
        (f"{operator} {axis}", count, *_shares(safe), *_shares(frontier))
        for (operator, axis), (count, safe, frontier) in found.by_axis().items()
    ]
    columns = ("axis", "dims", "safe: precision", "recall", "frontier: precision", "recall")
    print_table(f"{found.rules} ({BASIS}) beside {found.measured}", columns, rows)
    for curve in found.curves:
        _print_counter_examples(curve)
    if found.without:
        say(f"no rule for {'; '.join(found.without)}")
    say_notes(found.notes)
    say(
        "precision: of the dims that rules name, those that the measurement does too; recall: the "
        "other way round; undecided dims count for neither"
    )


def _shares(share: Share) -> tuple[str, str]:
    """``95 % (38/40)``, twice."""
    return (
        f"{percent(share.precision) or '–'} ({share.agreed}/{share.by_rules})",
        f"{percent(share.recall) or '–'} ({share.agreed}/{share.measured})",
    )


def _print_counter_examples(curve: CurveAgreement) -> None:
    if not curve.counter_examples and not curve.cliffs:
        return
    say(
        f"{curve.curve}: {len(curve.counter_examples)} of {curve.compared} dims disagree; of "
        f"{curve.cliffs} cliffs within tier 1 {len(curve.unexplained)} are unexplained"
    )
    for one in curve.counter_examples[:SHOWN]:
        say(
            f"  {one.d}: {one.by_rules} by rules (tier {one.tier}), {one.measured} as measured, "
            f"penalty {percent(one.penalty)}"
        )
    left = len(curve.counter_examples) - SHOWN
    if left > 0:
        say(f"  … and {left} more (--json has all)")
    for before, after, jump in curve.unexplained[:SHOWN]:
        say(f"  unexplained cliff {before} → {after}: {percent(jump, signed=True)}")
