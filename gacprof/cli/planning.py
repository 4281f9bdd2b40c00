"""The verbs ``plan`` and ``pareto``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gacprof.cli.parsing import by_pattern, workload
from gacprof.cli.plan_tables import print_pareto, print_plan
from gacprof.cli.printing import Json, complain, print_json, progress, say
from gacprof.cli.search_line import search_line
from gacprof.core.errors import PlanError

Checkpoint = Annotated[str, typer.Argument(help="A checkpoint's folder or weights file.")]
MapOption = Annotated[str, typer.Option("--map", help="A shipped map's name, or a file.")]
Tokens = Annotated[
    str | None,
    typer.Option(
        help="Token counts served, with weights: 1:0.9,1024:0.1. Default: those that the map's "
        "products of this model were measured at.",
        metavar="M[:W],…",
    ),
]

Aim = Annotated[str, typer.Option(help="pad, energy, gac or latency.")]
Dtype = Annotated[str | None, typer.Option(help="Default: the checkpoint's.")]
Window = Annotated[float, typer.Option(min=0.0, max=4.0, help="± share of a dim.")]
Scores = Annotated[Path | None, typer.Option(help="JSON of importance by dim name, for gac.")]
Floor = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="Least mean share of energy kept.")
]
LatencyLimit = Annotated[
    float | None, typer.Option(min=0.0, help="Most predicted time of the planned weights, µs.")
]
Uniform = Annotated[
    list[str] | None,
    typer.Option(
        help="One size over a 'module' (PaLU's groups), a 'role', a 'kind', or a PATTERN such as "
        "'*:width'; may be repeated.",
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN=SIZE|keep", help="Over dim names; may be repeated."),
]
Least = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN=SIZE", help="May be repeated; all hold.")
]
Most = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN=SIZE", help="May be repeated; all hold.")
]
Untouched = Annotated[
    bool, typer.Option("--allow-untouched", help="Let misaligned dims stay where that pays.")
]
Fuse = Annotated[
    bool, typer.Option("--fuse/--no-fuse", help="Whether a factor pair may become dense.")
]


def plan(
    checkpoint: Checkpoint,
    cliff_map: MapOption,
    out: Annotated[Path | None, typer.Option(help="Default: plan.json here.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Parameters, as a share of the dense weights.")
    ] = None,
    budget_params: Annotated[
        int | None, typer.Option(min=1, help="Parameters of the whole checkpoint.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Of all weights as stored: 6GB, 512MiB."),
    ] = None,
    objective: Aim = "energy",
    tokens: Tokens = None,
    dtype: Dtype = None,
    window: Window = 0.25,
    scores: Scores = None,
    quality_floor: Floor = None,
    latency_limit: LatencyLimit = None,
    uniform: Uniform = None,
    pin: Pin = None,
    least: Least = None,
    most: Most = None,
    allow_untouched: Untouched = False,
    fuse: Fuse = True,
    time_limit: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds; then the best so far, and its gap.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """Choose a size for every adjustable dim, within a budget; the plan is a JSON file.

    Ctrl-C ends a long search: the best plan so far is written and printed with its gap, and
    the exit code is 130.
    """
    from gacprof.planning import plan as make

    target = out or Path("plan.json")
    refuse_to_replace(target, checkpoint)
    with search_line(objective) as tell:
        made = make(
            checkpoint,
            cliff_map,
            objective=objective,
            budget=budget,
            budget_parameters=budget_params,
            memory=None if memory is None else byte_count(memory),
            tokens=None if tokens is None else workload(tokens),
            dtype=dtype,
            window=window,
            scores=read_scores(scores),
            quality_floor=quality_floor,
            latency_limit_us=latency_limit,
            constraints=_constraints(uniform, pin, least, most, allow_untouched, fuse),
            time_limit=time_limit,
            progress=tell,
        )
    made.save(target)
    if as_json:
        print_json(made.as_dict())
    else:
        print_plan(made)
        say(f"plan: {target}    next: gacprof realign {checkpoint} --plan {target} --out DIR")
    if made.certificate.interrupted:
        complain(f"interrupted: {target} holds the best plan found, not proved to be the best")
        raise typer.Exit(130)


def pareto(
    checkpoint: Checkpoint,
    cliff_map: MapOption,
    out: Annotated[Path | None, typer.Option(help="A stem: writes STEM.svg and STEM.png.")] = None,
    objective: Aim = "energy",
    tokens: Tokens = None,
    dtype: Dtype = None,
    window: Window = 0.25,
    scores: Scores = None,
    quality_floor: Floor = None,
    latency_limit: LatencyLimit = None,
    uniform: Uniform = None,
    pin: Pin = None,
    least: Least = None,
    most: Most = None,
    allow_untouched: Untouched = False,
    fuse: Fuse = True,
    budgets: Annotated[int, typer.Option(min=1, max=1000, help="How many budgets of ours.")] = 15,
    grid: Annotated[
        int, typer.Option(min=0, max=64, help="N budgets by N latency limits, each cell exact.")
    ] = 0,
    as_json: bool = Json,
) -> None:
    """Set plans over many budgets beside naive rounding and the paper's choice.

    Constraints and limits bind our plans only: rounding knows of none.
    """
    from gacprof.checkpoint import scan
    from gacprof.cliffmap import CliffMap
    from gacprof.planning import PlanRequest
    from gacprof.planning.pareto import pareto as weigh
    from gacprof.report.figures_style import save
    from gacprof.report.pareto_figure import pareto_figure

    with progress("pareto") as advance:
        found = weigh(
            scan(checkpoint),
            CliffMap.load(cliff_map),
            PlanRequest(
                objective,
                tokens=None if tokens is None else workload(tokens),
                dtype=dtype,
                window=window,
                constraints=_constraints(uniform, pin, least, most, allow_untouched, fuse),
                scores=read_scores(scores),
                quality_floor=quality_floor,
                latency_limit_us=latency_limit,
            ),
            budgets=budgets,
            grid=grid,
            progress=advance,
        )
    files = save(pareto_figure(found.as_dict()), out) if out else []
    if as_json:
        print_json(found.as_dict())
        return
    print_pareto(found)
    for file in files:
        say(str(file))


def refuse_to_replace(target: Path, checkpoint: str) -> None:
    """Raise :class:`PlanError` where a plan would take the place of something that is none, or
    of what a loader looks for in the checkpoint."""
    from gacprof.checkpoint.scanning import belongs

    folder = Path(checkpoint) if Path(checkpoint).is_dir() else Path(checkpoint).parent
    inside = folder.is_dir() and target.resolve().parent == folder.resolve()
    if inside and belongs(target.name):
        raise PlanError(f"{target} is a file of the checkpoint's own: name another for the plan")
    if target.is_file() and target.stat().st_size and not _is_plan(target):
        raise PlanError(f"{target} exists and is no plan: name another file or remove it first")


def _is_plan(path: Path) -> bool:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and str(data.get("schema", "")).startswith("gacprof.plan/")


def _constraints(
    uniform: list[str] | None,
    pin: list[str] | None,
    least: list[str] | None,
    most: list[str] | None,
    untouched: bool,
    fuse: bool,
) -> Any:
    from gacprof.planning import Constraints

    return Constraints(
        tuple(uniform or ("none",)),
        _pins(pin),
        _bounds(least, "least"),
        _bounds(most, "most"),
        untouched,
        fuse,
    )


def _pins(texts: list[str] | None) -> dict[str, Any]:
    """``*:width=keep`` and ``*:rank=128``, in the order given."""
    _refuse_twice(texts, "pin")
    kept = [text for text in texts or () if text.endswith("=keep") and text != "=keep"]
    sized = [text for text in texts or () if text not in kept]
    return {text.removesuffix("=keep"): "keep" for text in kept} | by_pattern(sized, "pin")


def _bounds(texts: list[str] | None, option: str) -> dict[str, int]:
    _refuse_twice(texts, option)
    return by_pattern(texts, option)


def _refuse_twice(texts: list[str] | None, option: str) -> None:
    patterns = [text.rpartition("=")[0] for text in texts or ()]
    for pattern in patterns:
        if pattern and patterns.count(pattern) > 1:
            raise PlanError(f"--{option} is given twice for '{pattern}'")


UNITS = {"": 1, "b": 1} | {
    f"{prefix}{kind}": base ** (power + 1)
    for kind, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}


def byte_count(text: str) -> int:
    """``6GB`` → 6,000,000,000, ``512MiB`` → 536,870,912; without a unit, bytes.

    Raises :class:`PlanError`.
    """
    compact = text.strip().lower().replace(",", "").replace("_", "")
    number = compact.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = compact[len(number) :].strip()
    try:
        amount = float(number)
        if unit not in UNITS or not 0 < amount < 1e30:
            raise ValueError
    except ValueError:
        raise PlanError(
            f"--memory {text}: write a positive number of bytes, with kB, MB, GB, TB or KiB, MiB, "
            "GiB, TiB after it, such as 6GB or 512MiB"
        ) from None
    return int(amount * UNITS[unit])


def read_scores(path: Path | None) -> dict[str, float] | None:
    """Importance by dim name. Raises :class:`PlanError` for anything but an object of numbers."""
    if path is None:
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{path} is no JSON object of numbers by dim name: {error}") from None
    if not isinstance(data, dict):
        raise PlanError(f"{path} is no JSON object of numbers by dim name")
    for name, score in data.items():
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise PlanError(f"{path}: the score of '{name}' is {score!r}, which is no number")
        if isinstance(score, int) and abs(score) > 2**1000:
            raise PlanError(f"{path}: the score of '{name}' is beyond any scale")
    return data
