"""Sweep, map, diagnose, plan, realign, verify, bench, page: the promise kept in one call."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof import diagnosing, planning, resizing
from gacprof.api import build_map
from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import CompressionError, GacprofError
from gacprof.core.files import Record, write_json
from gacprof.core.formatting import counted
from gacprof.core.points import Environment
from gacprof.demo.models import (
    Trained,
    compressed,
    described,
    evaluated,
    refuse_unusable,
    write_demo_checkpoint,
)
from gacprof.devices.worker import sweeper
from gacprof.diagnosing import Diagnosis
from gacprof.evaluation import BenchResult, bench
from gacprof.planning import Constraints, Plan
from gacprof.report.page import Contents, write_page
from gacprof.sweeping import run_sweep
from gacprof.sweeping.for_checkpoint import suite_for

if TYPE_CHECKING:
    from gacprof.evaluation import Verification
    from gacprof.resizing.result import RealignResult

TOKENS = {1: 1.0, 256: 1.0}
"""One decode step and a prefill short enough for a laptop's CPU."""

SWEEP_BUDGET_S, BENCH_BUDGET_S, TRAINED_BENCH_S = 40.0, 40.0, 55.0
"""So that the whole takes two minutes, with a trained model three, however busy the machine."""
BENCH_ENDS_S = 101.0
"""After so many seconds of a demo without a trained model: bench has what time is left."""
BENCH_ROUNDS = 384

STAIRCASE = ("a100-published", "attention", "head_dim")
"""Shown where the device at hand has no cliffs of its own: everybody should see one."""

MARKER = ".gacprof-demo"

Tell = Callable[[str], None]
Advance = Callable[[float, float, object], None]


@dataclass(frozen=True)
class Demo(Record):
    """Where everything is. ``page`` is the report."""

    folder: Path
    page: Path
    verified: bool


def run_demo(
    folder: str | Path,
    *,
    device: str | None = None,
    model: str | Path | None = None,
    tell: Tell = lambda line: None,
    advance: Advance = lambda done, total, what: None,
) -> Demo:
    """Run the whole chain in ``folder``, anew each time; an earlier demo's folder is replaced.

    ``model`` is a small trained model's folder, which is compressed first; without one the demo
    makes a model of random weights.

    Raises :class:`GacprofError` for a folder that holds anything else.
    """
    from gacprof.checkpoint import scan
    from gacprof.devices.device import open_device

    began = time.monotonic()
    if model is not None:
        refuse_unusable(Path(model))
    folder = _fresh(Path(folder))
    environment = open_device(device).environment
    where = "cpu" if environment.kind == "cpu" else (device or "cuda:0")
    dtype = _dtype(environment)

    trained = None if model is None else compressed(Path(model), folder, tell)
    if trained is None:
        write_demo_checkpoint(folder / "model", dtype=dtype)
    subject = described() if trained is None else trained.described
    checkpoint = folder / "model"
    inventory = scan(checkpoint)
    made_of = f", {subject}" if trained is None else ""  # a trained model was told of already
    tell(f"checkpoint: {inventory.parameters:,} parameters in {inventory.main_dtype}{made_of}")

    cliff_map = _swept(inventory, environment, where, folder, tell, advance)
    found = _diagnosed(checkpoint, cliff_map, folder, tell)
    if trained is None:
        made = _realigned(checkpoint, cliff_map, folder, tell)
    else:
        try:
            made = _compressed_again(trained, cliff_map, where, tell)
        except CompressionError as error:  # the map decides too little
            told = f"not compressed by the map: {error}. The model is realigned instead"
            tell(told)
            kept = Constraints(fuse=False, untouched=True)
            made = _realigned(checkpoint, cliff_map, folder, tell, kept)
            made.notes.insert(0, told + ".")
    made.plan.save(folder / "plan.json")
    models = [checkpoint, folder / made.baseline, folder / "planned"]
    left = BENCH_ENDS_S - (time.monotonic() - began)
    seconds = max(BENCH_BUDGET_S, left) if trained is None else TRAINED_BENCH_S
    timed = _timed(models, where, seconds, tell, advance)
    unseen = _too_small_to_see(made.plan, timed)
    if unseen:
        tell(f"bench: {unseen}")
        made.notes.append(f"{unseen[0].upper()}{unseen[1:]}.")
    write_json(folder / "bench.json", timed.as_dict())
    page = write_page(
        Contents(
            title=f"Realigning a model on {environment.name}",
            cliff_map=cliff_map,
            example=None if found.misaligned else CliffMap.load(STAIRCASE[0]),
            subject=subject,
            diagnosis=found.as_dict(),
            plan=made.plan.as_dict(),
            realigned=None if made.realigned is None else made.realigned.as_dict(),
            verification=None if made.check is None else made.check.as_dict(),
            bench=timed.as_dict(),
            commands=commands(trained, anew=made.realigned is None),
            notes=made.notes,
        ),
        folder / "report",
    )
    return Demo(folder, page, made.check is None or made.check.passed)


@dataclass(frozen=True)
class _Made:
    """The ``plan`` of the model in ``planned``, and the folder of what needs no map beside it. A
    model of the same function has a ``check``; one compressed anew has not."""

    plan: Plan
    baseline: str
    notes: list[str]
    realigned: RealignResult | None = None
    check: Verification | None = None


def _realigned(
    checkpoint: Path,
    cliff_map: CliffMap,
    folder: Path,
    tell: Tell,
    constraints: Constraints | None = None,
) -> _Made:
    """Padded by a plan, so that it computes the same, and to multiples of 8."""
    from gacprof.evaluation import verify

    plan = planning.plan(
        checkpoint, cliff_map, objective="pad", tokens=TOKENS, constraints=constraints
    )
    tell(f"plan: {counted(len(plan.changes), 'dim changes', 'dims change')}")
    realigned = resizing.realign(checkpoint, plan, folder / "planned")
    padded = resizing.realign_by_strategy(checkpoint, "minimal", folder / "padded-to-8")
    tell(f"realign: {realigned.parameters_before:,} → {realigned.parameters_after:,} parameters")
    check = verify(checkpoint, folder / "planned")
    write_json(folder / "verify.json", check.as_dict())
    tell(f"verify: {'passed' if check.passed else 'failed'}, error {check.max_rel_error:.2g}")
    note = f"padded-to-8 is the baseline that needs no map: {padded.parameters_after:,} parameters."
    return _Made(plan, "padded-to-8", [note], realigned, check)


def _compressed_again(trained: Trained, cliff_map: CliffMap, where: str, tell: Tell) -> _Made:
    """Compressed at ranks of the map, within the same parameters, and at multiples of 8."""
    ours = trained.again("planned", cliff_map=cliff_map, tokens=TOKENS)
    rounded = trained.again("rounded-to-8", round_to=8)
    assert ours.plan is not None
    tell(
        f"compress by the map: {len(ours.plan.changes)} ranks change, {ours.aligned} of "
        f"{len(ours.plan.choices)} are safe, {ours.undecided} undecided; "
        f"{ours.parameters_after:,} parameters"
    )
    note = (
        "rounded-to-8 is the baseline that needs no map: the method's own ranks rounded down, "
        f"{rounded.parameters_after:,} parameters. All three are factors of the original weights."
    )
    quality = evaluated(trained, ["rounded-to-8", "planned"], where, tell)
    return _Made(ours.plan, "rounded-to-8", [note, quality])


def _dtype(environment: Environment) -> str:
    """bfloat16 where the device multiplies it itself: there it has tensor cores' tiers."""
    native = environment.kind != "cpu" or environment.facts.get("native_bfloat16")
    return "bfloat16" if native else "float32"


def _swept(
    inventory: Inventory,
    environment: Environment,
    where: str,
    folder: Path,
    tell: Tell,
    advance: Advance,
) -> CliffMap:
    """The model's own shapes measured, as a map."""
    suite = suite_for(inventory, sorted(TOKENS))
    curves = suite.curves(environment.kind)
    points = sum(len(curve.points) for curve in curves)
    tell(f"sweep: {points} points on {len(curves)} curves, on {environment.name} …")
    with sweeper(where, processes=suite.timing.processes) as device:
        summary = run_sweep(
            suite, device, folder / "sweep", progress=advance, budget_s=SWEEP_BUDGET_S
        )
    tell(f"sweep: {summary.calls:,} calls in {summary.blocks:,} blocks, {summary.seconds:.0f} s")
    cliff_map = build_map(folder / "sweep")
    cliff_map.save(folder / "cliffmap.json")
    floor = cliff_map.floor
    tell(f"map: A/A floor {floor:.1%}" if floor is not None else "map: no A/A floor")
    if cliff_map.too_noisy:
        tell(f"map: too noisy to judge by: {cliff_map.too_noisy}")
    for told in (check.told for check in cliff_map.file.checks if not check.passed):
        tell(f"map: {told}")
    return cliff_map


def _diagnosed(model: Path, cliff_map: CliffMap, folder: Path, tell: Tell) -> Diagnosis:
    found = diagnosing.diagnose(model, cliff_map, tokens=TOKENS)
    write_json(folder / "diagnosis.json", found.as_dict())
    totals = found.totals()
    undecided = f", {totals['undecided']} undecided" if totals["undecided"] else ""
    tell(f"diagnose: {totals['misaligned']} of {totals['weights']} weights misaligned{undecided}")
    if not found.misaligned:
        for line in _flat(found, cliff_map):
            tell(line)
    return found


def _flat(found: Diagnosis, cliff_map: CliffMap) -> list[str]:
    """What there is to say where no dim is surely misaligned: how much it could be at most, and
    what a cliff looks like."""
    bounds = [dim.penalty_high for dim in found.judged]
    known = [bound for bound in bounds if bound is not None]
    if not known or len(known) < len(bounds):
        first = "no dim is surely misaligned; too little was measured to bound them all"
    else:
        safe = all(dim.verdict == "safe" for dim in found.judged)
        sure = "flat" if safe else "no dim is surely misaligned"
        first = f"{sure}: none of this model is off by more than {max(known):.1%} on this device"
    name, operator, axis = STAIRCASE
    curve = CliffMap.load(name).curve(operator, axis)
    steps = ", ".join(map(str, curve.frontier))
    return [
        first,
        f"a GPU's cliffs, as published for an A100: {operator} over {axis} has steps at {steps}; "
        "the page shows it",
    ]


def _timed(
    models: Sequence[Path], where: str, seconds: float, tell: Tell, advance: Advance
) -> BenchResult:
    tell("bench: three models and a hidden replicate, interleaved …")
    timed = bench(
        models,
        tokens=[count for count in TOKENS if count > 1],
        decode_steps=2,  # more rounds tell more than more steps a round
        device=where,
        rounds=BENCH_ROUNDS,
        time_cap_s=seconds,
        progress=advance,
    )
    for timing in timed.timings:
        if timing.ratio is not None:
            low, ratio, high = (share - 1 for share in timing.ratio)
            tell(
                f"bench: {timing.workload}, {timing.model}: {timing.verdict} "
                f"({ratio:+.1%}, {low:+.1%} to {high:+.1%})"
            )
    tell(f"bench: the same model twice differs by at most {timed.spread:.1%}")
    return timed


def _too_small_to_see(plan: Plan, timed: BenchResult) -> str | None:
    """Where the bench shows no gain: how small the expected one is beside its own error."""
    before, after = plan.predicted_before_us, plan.predicted_after_us
    shown = {t.verdict for t in timed.timings if t.model == "planned"} & {"faster", "slower"}
    if shown or not before or after is None:
        return None
    gain = 1 - after / before
    if not 0 < gain < timed.spread:
        return None
    return (
        f"the plan expects {gain:.1%} less time, by the sweep; that is less than the "
        "bench's own error here, so it shows on a quieter machine or in a longer bench only"
    )


def commands(trained: Trained | None = None, anew: bool = True) -> list[str]:
    """The same chain as verbs of the command line, in the demo's folder; ``anew`` says whether a
    trained model was compressed by the map, or realigned."""
    tokens = ",".join(str(count) for count in TOKENS)
    measured = [
        f"gacprof sweep --for model --tokens {tokens} --out sweep",
        "gacprof map build sweep --out cliffmap.json",
        f"gacprof diagnose model --map cliffmap.json --tokens {tokens}",
    ]
    timed = "gacprof bench model {} planned --tokens 256"
    before = [] if trained is None else trained.before
    if trained is not None and anew:
        return [*before, *measured, *trained.after(tokens), timed.format("rounded-to-8")]
    held = "" if trained is None else " --no-fuse --allow-untouched"
    return [
        *before,
        *measured,
        f"gacprof plan model --map cliffmap.json --tokens {tokens} --objective pad{held} "
        "--out plan.json",
        "gacprof realign model --plan plan.json --out planned",
        "gacprof realign model --strategy minimal --out padded-to-8",
        "gacprof verify model planned",
        timed.format("padded-to-8"),
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
