"""Sweep, map, diagnose, plan, realign, verify, bench, page: the promise kept in one call."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gacprof.demo.model import described, write_demo_checkpoint
from gacprof.errors import GacprofError
from gacprof.files import write_json

TOKENS = {1: 1.0, 256: 1.0}
"""One decode step and a prefill short enough for a laptop's CPU."""

TIMING = {"cap_ms": 8, "passes": 3, "duplicates": 0.15}
"""Three visits a point, and A/A pairs enough for a noise floor by curve, in under a minute."""

SWEEP_BUDGET_S, BENCH_BUDGET_S = 75.0, 40.0
"""So that the whole takes under three minutes, however busy the machine."""

MARKER = ".gacprof-demo"

Tell = Callable[[str], None]
Advance = Callable[[int, int, object], None]


@dataclass(frozen=True)
class Demo:
    """Where everything is. ``page`` is the report."""

    folder: Path
    page: Path
    verified: bool


def run_demo(
    folder: str | Path,
    *,
    device: str | None = None,
    tell: Tell = lambda line: None,
    advance: Advance = lambda done, total, what: None,
) -> Demo:
    """Run the whole chain in ``folder``, anew each time; an earlier demo's folder is replaced.

    Raises :class:`GacprofError` for a folder that holds anything else.
    """
    from gacprof import diagnosing, planning, realigning
    from gacprof.chain import build_map
    from gacprof.checkpoint import scan
    from gacprof.measure.device import open_device
    from gacprof.proof import bench, verify
    from gacprof.report.contents import Contents
    from gacprof.report.page import write_page
    from gacprof.sweeping import run_sweep
    from gacprof.sweeping.for_checkpoint import suite_for
    from gacprof.sweeping.worker import sweeper

    folder = _fresh(Path(folder))
    opened = open_device(device)
    name = opened.environment.name
    where = "cpu" if opened.environment.kind == "cpu" else (device or "cuda:0")

    model = write_demo_checkpoint(folder / "model")
    inventory = scan(model)
    tell(f"checkpoint: {inventory.parameters:,} parameters, {described()}")

    suite = suite_for(inventory, sorted(TOKENS), timing=TIMING)
    tell(f"sweep: {len(suite.points(opened.environment.kind))} points on {name} …")
    with sweeper(opened, where) as visited:
        summary = run_sweep(
            suite, visited, folder / "sweep", progress=advance, budget_s=SWEEP_BUDGET_S
        )
    short = f", {summary.left} visits left out for want of time" if summary.left else ""
    tell(f"sweep: {summary.visits} visits in {summary.seconds:.0f} s{short}")

    cliff_map = build_map(folder / "sweep")
    cliff_map.save(folder / "cliffmap.json")
    floor = cliff_map.floor
    tell(f"map: noise floor {floor:.1%}" if floor is not None else "map: no noise floor")

    found = diagnosing.diagnose(model, cliff_map, tokens=TOKENS)
    write_json(folder / "diagnosis.json", found.as_dict())
    totals = found.totals()
    tell(f"diagnose: {totals['misaligned']} of {totals['weights']} weights misaligned")

    plan = planning.plan(model, cliff_map, tokens=TOKENS)
    plan.save(folder / "plan.json")
    tell(f"plan: {len(plan.changes)} dims change")

    realigned = realigning.realign(model, plan, folder / "planned")
    padded = realigning.realign_by_strategy(model, "minimal", folder / "padded-to-8")
    tell(f"realign: {realigned.parameters_before:,} → {realigned.parameters_after:,} parameters")

    check = verify(model, folder / "planned")
    write_json(folder / "verify.json", check.as_dict())
    tell(f"verify: {'passed' if check.passed else 'failed'}, error {check.max_rel_error}")

    tell("bench: three models in turns …")
    timed = bench(
        [model, folder / "padded-to-8", folder / "planned"],
        tokens=[count for count in TOKENS if count > 1],
        decode_steps=16,
        device=where,
        dtype=found.dtype,
        repeats=40,
        time_cap_s=BENCH_BUDGET_S,
        progress=advance,
    )
    write_json(folder / "bench.json", timed.as_dict())

    page = write_page(
        Contents(
            title=f"Realigning a model on {name}",
            cliff_map=cliff_map,
            subject=described(),
            diagnosis=found.as_dict(),
            plan=plan.as_dict(),
            realigned=realigned.as_dict(),
            verification=check.as_dict(),
            bench=timed.as_dict(),
            commands=commands(),
            notes=(
                f"padded-to-8 is the baseline that needs no map: {padded.parameters_after:,} "
                "parameters.",
            ),
        ),
        folder / "report",
    )
    return Demo(folder, page, check.passed)


def commands() -> list[str]:
    """The same chain as verbs of the command line, in the demo's folder."""
    tokens = ",".join(str(count) for count in TOKENS)
    return [
        f"gacprof sweep --for model --tokens {tokens} --out sweep",
        "gacprof map build sweep --out cliffmap.json",
        f"gacprof diagnose model --map cliffmap.json --tokens {tokens}",
        f"gacprof plan model --map cliffmap.json --tokens {tokens} --out plan.json",
        "gacprof realign model --plan plan.json --out planned",
        "gacprof realign model --strategy minimal --out padded-to-8",
        "gacprof verify model planned",
        "gacprof bench model padded-to-8 planned --tokens 256",
    ]


def _fresh(folder: Path) -> Path:
    """An empty folder marked as a demo's; only such a one is ever cleared."""
    if folder.exists():
        if not (folder / MARKER).is_file():
            raise GacprofError(f"{folder} exists and holds no demo: choose another --out")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
    except OSError as error:
        raise GacprofError(f"cannot write to {folder}: {error.strerror}") from None
    return folder
