"""``evidence tiers``: the alignment that a chip's fast kernels need, by rules."""

from __future__ import annotations

from typing import Annotated

import typer

from gacprof.cli import map_options as options
from gacprof.cli.printing import Json, print_json, print_table, say
from gacprof.core.errors import MapError


def register(app: typer.Typer) -> None:
    app.command()(tiers)


def tiers(
    arch: Annotated[str, typer.Option(help="sm80, sm86, sm89, sm90, sm100 or sm120.")],
    dtype: Annotated[str, typer.Option(help="As float16, tf32 or float8_e4m3.")] = "float16",
    row: Annotated[
        list[str] | None,
        typer.Option("--row", metavar="DIM=SIZE", help="Predict for rows of K=107, N=4096 …"),
    ] = None,
    as_json: bool = Json,
) -> None:
    """List the alignment tiers of a chip, or predict that of a GEMM. Rules, not measurements."""
    from gacprof.kernels.tiers import architecture, predict

    chip = architecture(arch)
    known = chip.tiers.get(dtype)
    if not known:
        raise MapError(f"no rules for {dtype} on {chip.name} (there are {', '.join(chip.tiers)})")
    predicted = predict(arch, dtype, _rows(row)) if row else None
    if as_json:
        listed = [
            {"elements": t.elements(dtype), "bytes": t.bytes, "load": t.load, "kernels": t.kernels,
             "why": t.why, "basis": t.basis}
            for t in known
        ]  # fmt: skip
        told = predicted.as_dict() if predicted else None
        print_json({"arch": chip.name, "dtype": dtype, "tiers": listed, "prediction": told})
        return
    if predicted:
        say(f"{predicted.sentence} (by rules)")
        return
    rows = [(t.elements(dtype), t.load, t.kernels, t.why, t.basis) for t in known]
    columns = ("rows ÷", "loads", "kernels", "why", "known from")
    print_table(f"{chip.name} ({chip.chips}), {dtype}", columns, rows)
    for note in chip.notes:
        say(f"note: {note}")


def _rows(given: list[str]) -> dict[str, int]:
    from gacprof.operators import OPERATORS

    rows = options.sizes(given, "--row")
    known = OPERATORS["linear"].dims
    for name in rows:
        if name not in known:
            raise MapError(f"--row: '{name}' is no dim of a GEMM (it has {', '.join(known)})")
    return rows
