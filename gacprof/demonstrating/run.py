"""The whole chain on one small model, by functions that anybody can call.

A model is compressed at a method's own sizes and at multiples of 8, its shapes are swept, and it is
compressed again at sizes that the map calls good, that add least loss and are no slower than the
multiples of 8. All others, the uncompressed model too, are compared with that one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gacprof
from gacprof import GacprofError
from gacprof.core import Progress
from gacprof.core.files import Record, write_json
from gacprof.core.formatting import percent
from gacprof.core.request import Request, hook, option, verb
from gacprof.evaluation.request import OnDevice

TOKENS = {1: 1.0, 128: 1.0}
"""A prefill short enough for a laptop's CPU."""
METHOD: dict[str, Any] = {"method": "svd-llm", "ratio": 0.15, "windows": 4}
"""Four windows of 512 tokens of calibration text: a real compression reads more."""
TEXT: dict[str, Any] = {"window": 256, "stride": 256, "limit_tokens": 3_073, "batch": 4}
"""Twelve windows: differences are paired by window."""
OWN, ROUNDED, PLANNED, DENSE = "own", "rounded-8", "planned", "uncompressed"
MARKER = ".gacprof-demo"

Say = Callable[[str], None]


class DemoRequest(Request):
    """Where the demo is made, and of which ``model``: a small trained model's folder with its
    tokenizer. Without one it makes factors of random weights, and pads them in place of compressing
    anew. ``tell`` is called with a line for each result."""

    out: str | Path = option(
        kw_only=False, read=Path, help="The demo's folder; an earlier demo is replaced."
    )
    model: str | Path | None = option(
        default=None, read=Path,
        help="A small dense model to compress. Default: factors of random weights.",
    )  # fmt: skip
    device: str | None = option(default=None, like=OnDevice, group="")
    tell: Say | None = hook(default=None)
    progress: Progress | None = hook(default=None)


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
    from gacprof.reporting.wording import diagnosed, measured, planned

    model, tell = request.model, request.tell or (lambda line: None)
    here, notes = _fresh(Path(request.out), model), list[str]()
    on: dict[str, Any] = {"device": request.device}
    timed = {"progress": request.progress, **on}

    def say(line: str) -> None:  # what the page has no sentence of its own for
        tell(line)
        notes.append(line)

    say(_random(here, request.device) if model is None else _compressed(here, Path(model), on))
    tell(f"sweep: 40 s over the shapes of {OWN} and what they could become …")
    gacprof.sweep(model=here / OWN, tokens=TOKENS, out=here / "sweep", budget_s=40.0, **timed)
    cliff_map = gacprof.build_map(here / "sweep")
    cliff_map.save(here / "cliffmap.json")
    found = gacprof.diagnose(here / OWN, cliff_map, tokens=TOKENS)
    tell(" ".join(diagnosed(found.summary())))
    made = _padded(here, cliff_map) if model is None else _planned(here, on, cliff_map, say)
    if "plan" in made:
        tell(planned(made["plan"].as_dict()))
    models = [here / name for name in (PLANNED, ROUNDED, OWN, DENSE)]
    if model is not None:
        made["quality"] = gacprof.evaluate(models, text=here / "evaluation.txt", **on, **TEXT)
        say(_quality(made["quality"]))
    tell("bench: 45 s, four models and a hidden A/A replicate, interleaved …")
    bench = gacprof.bench(models, tokens=[max(TOKENS)], decode_steps=2, time_cap_s=45.0, **timed)
    for line in measured(bench.as_dict()):
        tell(line)
    for name, result in {"diagnosis": found, "bench": bench, **made}.items():
        write_json(here / f"{name}.json", result.as_dict())
    title = f"Realigning a model on {cliff_map.environment.name}"
    page = gacprof.report(here, out=here / "report", notes=notes, title=title)
    return Demo(here, page, model is not None or made["verification"].passed)


demo = verb("demo", DemoRequest, _demo)


def _random(here: Path, device: str | None) -> str:
    """Factors of random weights, rounded, and multiplied out."""
    from gacprof.demonstrating.models import DESCRIBED, write_demo_checkpoint
    from gacprof.devices.environment import native_bfloat16
    from gacprof.evaluation.models import device_of

    fast = device_of(device).type != "cpu" or native_bfloat16()
    write_demo_checkpoint(here / OWN, "bfloat16" if fast else "float32")
    gacprof.realign(here / OWN, "fuse", here / DENSE)
    gacprof.realign(here / OWN, "minimal", here / ROUNDED)
    return f"{OWN}: {DESCRIBED}; {DENSE}: its factors multiplied out."


def _compressed(here: Path, model: Path, on: dict[str, Any]) -> str:
    """The model, and it compressed at the method's own sizes and rounded."""
    from gacprof.demonstrating.models import write_texts

    write_texts(here)
    (here / DENSE).symlink_to(model.resolve(), target_is_directory=True)
    done = _compress(here, OWN, on)
    _compress(here, ROUNDED, on, round_to=8)
    sizes = f"{done.parameters_before:,} → {done.parameters_after:,} in all"
    return (
        f"{OWN}: {percent(done.removed)} of the projections' parameters of {model.name} removed "
        f"by {done.method} ({sizes})."
    )


def _compress(here: Path, name: str, on: dict[str, Any], **sizes: Any) -> Any:
    given = {"calib": here / "calibration.txt", "work": here / "work", **METHOD, **on}
    return gacprof.compress(here / DENSE, here / name, **given, **sizes)


def _planned(here: Path, on: dict[str, Any], cliff_map: Any, say: Say) -> dict[str, Any]:
    """Compressed at sizes that add least loss, of those that the map calls safe, and no slower than
    the rounded model by its times; of multiples of 8 where it decides too little."""
    by_map = {"cliff_map": cliff_map, "tokens": TOKENS}
    ways: dict[str, dict[str, Any]] = {
        f"safe ranks by the map, no slower than {ROUNDED}": {"dominate": ROUNDED, **by_map},
        "safe ranks by the map": by_map,
        "multiples of 8 as ranks": {"round_to": 8, "objective": "loss"},
    }
    for which, sizes in ways.items():
        try:
            done = _compress(here, PLANNED, on, **sizes)
            break
        except GacprofError as error:
            if "round_to" in sizes:
                raise
            say(f"{PLANNED}: no {which}: {error}.")
    dense = sum(size is None for size in done.sizes.values())
    say(
        f"{PLANNED}: by the loss that cuts add, {len(done.sizes) - dense} weights get {which}, and "
        f"{dense} stay dense; {done.parameters_after:,} parameters in all."
    )
    return {} if done.plan is None else {"plan": done.plan}


def _padded(here: Path, cliff_map: Any) -> dict[str, Any]:
    """Padded, so that it computes the same: factors of random weights are not compressed anew."""
    fixed = gacprof.Constraints(fuse=False, untouched=True)
    plan = gacprof.plan(here / OWN, cliff_map, objective="pad", tokens=TOKENS, constraints=fixed)
    realigned = gacprof.realign(here / OWN, plan, here / PLANNED)
    check = gacprof.verify(here / OWN, here / PLANNED)
    return {"plan": plan, "realigned": realigned, "verification": check}


def _quality(found: Any) -> str:
    """Each model's perplexity, and what it is found to be beside the first."""
    shown = []
    for row in found.frame_rows():
        value = "not finite" if row["perplexity"] is None else f"{row['perplexity']:.2f}"
        shown.append(f"{row['model']} {value}" + (f", {row['finding']}" if row["finding"] else ""))
    return f"Perplexity on Python's reference, beside the first: {'; '.join(shown)}."


def _fresh(folder: Path, model: str | Path | None) -> Path:
    """An empty folder marked as a demo's; only such a one is ever cleared, for a usable model."""
    if model is not None:
        if not Path(model).is_dir():  # scan would ask a hub for org/name
            raise GacprofError(f"{model}: there is no such folder; the demo takes a model's folder")
        known = gacprof.scan(model)
        if any(module.kind not in ("dense", "embedding") for module in known.modules):
            raise GacprofError(f"{model} is compressed already: the demo compresses a dense model")
        if not any(name.startswith("tokenizer") for name in known.side_files):
            raise GacprofError(f"{model} has no tokenizer: the demo evaluates models on a text")
    if folder.exists():
        if not (folder / MARKER).is_file():
            raise GacprofError(f"{folder} exists and holds no demo: choose another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    return folder
