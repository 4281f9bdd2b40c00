"""The whole chain on one small model, by functions that anybody can call.

A dense model is compressed by a published method at its own sizes and at multiples of 8, its
shapes are swept, and it is compressed again at sizes that the map calls good, that add least loss
and are no slower than the multiples of 8. All others are compared with that one, the uncompressed
model too: a compressed model need not be faster.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gacprof
from gacprof.core.errors import CompressionError, GacprofError, PlanError, SolverError
from gacprof.core.files import Record, write_json
from gacprof.core.formatting import interval, microseconds, percent
from gacprof.core.request import verb
from gacprof.demonstrating import DemoRequest
from gacprof.demonstrating.models import DESCRIBED, write_demo_checkpoint, write_texts
from gacprof.devices.environment import native_bfloat16
from gacprof.diagnosing import Diagnosis
from gacprof.evaluation.evaluating import Quality
from gacprof.evaluation.models import device_of
from gacprof.evaluation.summary import BenchResult

PREFILL = 128
"""Tokens: short enough for a laptop's CPU."""
TOKENS = {1: 1.0, PREFILL: 1.0}
METHOD: dict[str, Any] = {"method": "svd-llm", "ratio": 0.15, "windows": 4}
"""Four windows of 512 tokens of calibration text: a real compression reads more."""
TEXT: dict[str, Any] = {"window": 256, "stride": 256, "limit_tokens": 3_073, "batch": 4}
"""Twelve windows: differences are paired by window."""
SWEEP_S, BENCH_S = 40.0, 45.0
OWN, ROUNDED, PLANNED, DENSE = "own", "rounded-8", "planned", "uncompressed"
MARKER = ".gacprof-demo"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Demo(Record):
    """Where everything is. ``page`` is the report."""

    folder: Path
    page: Path
    verified: bool


def _demo(request: DemoRequest) -> Demo:
    """Run the whole chain in the folder ``out``, anew each time; an earlier demo is replaced.

    Raises :class:`GacprofError` for a folder that holds anything else, and, before anything is
    removed, for a ``model`` that is not there, compressed already, or has no tokenizer.
    """
    model, device, progress = request.model, request.device, request.progress
    if model is not None:
        _refuse_unusable(Path(model))
    here, notes = _fresh(Path(request.out)), list[str]()
    tell = request.tell or (lambda line: None)

    def say(line: str) -> None:
        tell(line)
        notes.append(f"{line}.")

    _begin(here, model, device, say)
    tell(f"sweep: {SWEEP_S:g} s over the shapes of {OWN} and what they could become …")
    gacprof.sweep(
        model=here / OWN, tokens=TOKENS, device=device, out=here / "sweep", budget_s=SWEEP_S,
        progress=progress,
    )  # fmt: skip
    cliff_map, found = _judged(here, say)
    made = (
        _padded(here, cliff_map, say) if model is None else _planned(here, device, cliff_map, say)
    )
    models = [here / name for name in (PLANNED, ROUNDED, OWN, DENSE)]
    if model is not None:
        quality = gacprof.evaluate(models, text=here / "evaluation.txt", device=device, **TEXT)
        write_json(here / "quality.json", quality.as_dict())
        for line in quality_lines(quality):
            say(line)
    tell("bench: four models and a hidden A/A replicate, interleaved …")
    timed = gacprof.bench(
        models, tokens=[PREFILL], decode_steps=2, device=device, time_cap_s=BENCH_S,
        progress=progress,
    )  # fmt: skip
    for line in bench_lines(timed):
        say(line)
    say(f"the same model twice differs by at most {percent(timed.spread)}")
    page = gacprof.report(
        out=here / "report", cliff_map=here / "cliffmap.json", diagnosis=found.as_dict(),
        bench=timed.as_dict(), notes=notes, **made,
        title=f"Realigning a model on {timed.environment.name}",
    )  # fmt: skip
    for name, result in (("diagnosis", found), ("bench", timed)):
        write_json(here / f"{name}.json", result.as_dict())
    return Demo(here, page, made.get("verification", {}).get("passed", True))


demo = verb("demo", DemoRequest, _demo)


def _judged(here: Path, say: Say) -> tuple[gacprof.CliffMap, Diagnosis]:
    """The map of the sweep, and what it says of the method's own sizes."""
    cliff_map = gacprof.build_map(here / "sweep")
    cliff_map.save(here / "cliffmap.json")
    found = gacprof.diagnose(here / OWN, cliff_map, tokens=TOKENS)
    totals = found.totals()
    say(
        f"diagnose: {totals['misaligned']} of {totals['weights']} weights misaligned, "
        f"{totals['undecided']} undecided; A/A floor {percent(cliff_map.floor) or 'unknown'}"
    )
    if cliff_map.too_noisy:
        say(f"the map is too noisy to judge by: {cliff_map.too_noisy}")
    return cliff_map, found


def quality_lines(quality: Quality) -> Iterator[str]:
    """Each model's perplexity, the others' beside the planned one's, and what is sure of that."""
    shown, found = [], {}
    for one in quality.models:
        value, change = one.perplexity.value, one.perplexity_change
        against = f" ({interval(change.low, change.value, change.high)})" if change else ""
        shown.append(f"{one.model} {value:.2f}{against}" if value else f"{one.model} not finite")
        found[one.model] = change.finding if change else ""
    yield f"perplexity on Python's reference: {', '.join(shown)}"
    yield from compared_with_plan("perplexity", found)


def bench_lines(timed: BenchResult) -> Iterator[str]:
    """The same of the times of each workload; workloads are never added up."""
    for workload in dict.fromkeys(t.workload for t in timed.timings):
        times = [t for t in timed.timings if t.workload == workload]
        shown = []
        for one in times:
            against = ""
            if one.ratio is not None:
                low, middle, high = (ratio - 1 for ratio in one.ratio)
                against = f" ({interval(low, middle, high)})"
            shown.append(f"{one.model} {microseconds(one.latency_us)}{against}")
        yield f"{workload}: {', '.join(shown)}"
        yield from compared_with_plan(workload, {t.model: t.verdict for t in times})


SURE = {"worse": "better", "better": "worse", "slower": "faster", "faster": "slower"}
"""What another model is found to be → what the planned one is beside it."""


def compared_with_plan(what: str, found: Mapping[str, str]) -> Iterator[str]:
    """A line for each thing that the planned model surely is, and for what is open."""
    others = [name for name in found if name != PLANNED]
    for finding, word in SURE.items():
        if names := [name for name in others if found[name] == finding]:
            yield f"{what}: {PLANNED} is surely {word} than {' and '.join(names)}"
    undecided = [name for name in others if found[name] == "undecided"]
    if undecided:
        yield f"{what}: not decided between {PLANNED} and {' or '.join(undecided)}"
    if names := [name for name in others if found[name] not in (*SURE, "undecided")]:
        yield f"{what}: no difference is shown between {PLANNED} and {' or '.join(names)}"


def _begin(here: Path, model: str | Path | None, device: str | None, say: Say) -> None:
    """The uncompressed model, and it compressed at the method's own sizes and rounded."""
    if model is None:
        fast = device_of(device).type != "cpu" or native_bfloat16()
        dtype = "bfloat16" if fast else "float32"  # as the device multiplies by itself
        write_demo_checkpoint(here / OWN, dtype=dtype)
        gacprof.realign(here / OWN, "fuse", here / DENSE)
        gacprof.realign(here / OWN, "minimal", here / ROUNDED)
        say(f"{OWN}: {DESCRIBED}; {DENSE}: its factors multiplied out")
        return
    write_texts(here)
    (here / DENSE).symlink_to(Path(model).resolve(), target_is_directory=True)
    # Its own sizes; the statistics that the plan needs are gathered on the way.
    done = _compress(here, OWN, device, objective="loss")
    _compress(here, ROUNDED, device, round_to=8)
    say(
        f"{OWN}: {percent(done.removed)} of the projections' parameters of {Path(model).name} "
        f"removed by {done.method} ({done.parameters_before:,} → {done.parameters_after:,} in all)"
    )


def _compress(here: Path, name: str, device: str | None, **sizes: Any) -> Any:
    return gacprof.compress(
        here / DENSE, here / name, calib=here / "calibration.txt", work=here / "work",
        device=device, **METHOD, **sizes,
    )  # fmt: skip


def _planned(
    here: Path, device: str | None, cliff_map: gacprof.CliffMap, say: Say
) -> dict[str, Any]:
    """Compressed at sizes that add least loss, of those that the map calls safe, and no slower than
    the rounded model by its times; of multiples of 8 where it decides too little. What the report
    shows of it."""
    by_map: dict[str, Any] = {"cliff_map": cliff_map, "tokens": TOKENS}
    which = "ranks that are safe by the map"
    try:
        try:
            done = _compress(here, PLANNED, device, dominate=ROUNDED, **by_map)
            which += f", no slower than {ROUNDED} by its times,"
        except (PlanError, SolverError) as error:
            say(f"no plan is known to be as fast as {ROUNDED} everywhere: {error}")
            done = _compress(here, PLANNED, device, **by_map)
    except CompressionError as error:
        done = _compress(here, PLANNED, device, round_to=8, objective="loss")
        which = f"multiples of 8 as ranks ({error})"
    dense = sum(size is None for size in done.sizes.values())
    say(
        f"{PLANNED}: by the loss that cuts add, {len(done.sizes) - dense} weights get {which} and "
        f"{dense} stay dense; {done.parameters_after:,} parameters in all"
    )
    if done.plan is None:
        return {}
    done.plan.save(here / "plan.json")
    return {"plan": here / "plan.json"}


def _padded(here: Path, cliff_map: gacprof.CliffMap, say: Say) -> dict[str, Any]:
    """Padded by a plan, so that it computes the same: factors of random weights are not compressed
    anew. What the report shows of it."""
    fixed = gacprof.Constraints(fuse=False, untouched=True)
    plan = gacprof.plan(here / OWN, cliff_map, objective="pad", tokens=TOKENS, constraints=fixed)
    done = gacprof.realign(here / OWN, plan, here / PLANNED)
    check = gacprof.verify(here / OWN, here / PLANNED)
    plan.save(here / "plan.json")
    say(f"{PLANNED}: padded, {len(plan.changes)} dims change")
    return {
        "plan": here / "plan.json", "realigned": done.as_dict(), "verification": check.as_dict(),
    }  # fmt: skip


def _refuse_unusable(model: Path) -> None:
    if not model.is_dir():  # scan would ask a hub for org/name
        raise GacprofError(f"{model}: there is no such folder; the demo takes a model's folder")
    inventory = gacprof.scan(model)
    if any(module.kind not in ("dense", "embedding") for module in inventory.modules):
        raise GacprofError(f"{model} is compressed already: the demo compresses a dense model")
    if not any(name.startswith("tokenizer") for name in inventory.side_files):
        raise GacprofError(f"{model} has no tokenizer: the demo evaluates models on a text")


def _fresh(folder: Path) -> Path:
    """An empty folder marked as a demo's; only such a one is ever cleared."""
    if folder.exists():
        if not (folder / MARKER).is_file():
            raise GacprofError(f"{folder} exists and holds no demo: choose another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    return folder
