"""The paper's table A.5 on a trained model: ways to the same number of parameters.

    python benchmarks/table_a5.py --model DENSE --calib TEXT --text TEXT [--text TEXT …]
        [--out runs/table_a5] [--only models,quality,tasks,timing] [--ratios 0.15,0.3,0.5]
        [--methods svd-llm,kfac-svd,asvd,palu,llm-pruner,drop-layers] [--variants ours,own,rounded]
        [--map MAP | --gpu GPU]

For every method and ratio three variants: *own* (the method's own sizes), *rounded* (the tool's own
rounding to 8) and *ours* (sizes by the second-order loss, of those that the map or the GPU's rules
know to be good, else multiples of 8). Depth pruning (drop-layers) has no sizes and one row.
Perplexity is of every --text, tasks are lm-evaluation-harness's on the first of them
(table_a5_tasks.py). Then ``table.md`` and ``table.json`` in --out.

Every cell is a file or folder; what is there is not computed again, so an interrupted run goes on
where it was, and a cell that failed keeps its reason (remove it to try again). Timings need a quiet
machine, the rest does not: ``--only`` separates them.

DENSE and the texts: tools/fetch_smollm2.py, fetch_brown.py.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from table_a5_report import write_table
from table_a5_tasks import TASKS, write_tasks

import gacprof
from gacprof.core.errors import GacprofError
from gacprof.core.files import read_json, write_json
from gacprof.evaluation.harness import run_tasks

DEPTH = "drop-layers"
METHODS = ("svd-llm", "kfac-svd", "asvd", "palu", "llm-pruner", DEPTH)
VARIANTS: dict[str, dict[str, Any]] = {
    "ours": {"objective": "loss"},
    "own": {},
    "rounded": {"round_to": 8},
}
"""Ours first: its passes over the calibration text serve the others."""
PHASES = ("models", "quality", "tasks", "timing")
WINDOW = 512


@dataclass(frozen=True)
class Setting:
    """What is asked for."""

    model: Path
    calib: Path
    texts: tuple[Path, ...]
    out: Path
    methods: tuple[str, ...] = METHODS
    variants: tuple[str, ...] = tuple(VARIANTS)
    ratios: tuple[float, ...] = (0.15, 0.3, 0.5)
    source: dict[str, Any] = field(default_factory=lambda: {"round_to": 8})
    only: tuple[str, ...] = PHASES
    tokens: tuple[int, ...] = (256,)
    limit_tokens: int = 20_000
    limit_examples: int = 200
    windows: int = 32
    bench_s: float = 300.0
    device: str | None = None
    keep: bool = True


@dataclass(frozen=True)
class Cell:
    """One compressed model."""

    method: str
    ratio: float
    variant: str

    @property
    def name(self) -> str:
        return f"{self.method}-{self.ratio * 100:g}-{self.variant}"


def cells(setting: Setting) -> Iterator[Cell]:
    for ratio in setting.ratios:
        for method in setting.methods:
            for variant in ("own",) if method == DEPTH else setting.variants:
                yield Cell(method, ratio, variant)


def cached(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The content of ``path``; made, and the reason kept where it cannot be, if it is not there."""
    if path.is_file():
        return dict(read_json(path))
    begun = time.monotonic()
    try:
        found = make()
    except GacprofError as error:
        found = {"failed": str(error)}
    found |= {"seconds": round(time.monotonic() - begun, 1), "commit": commit()}
    write_json(path, found)
    print(f"{path.parent.name} of {path.stem}: {found.get('failed', 'done')}", flush=True)
    return found


def commit() -> str:
    """Of the code that made a cell."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or gacprof.__version__


def compressed(setting: Setting, cell: Cell, out: Path) -> dict[str, Any]:
    """Write the cell's model; what the compressor said of it."""
    asked = dict(VARIANTS[cell.variant])
    if cell.variant == "ours":
        asked |= setting.source
    done = gacprof.compress(
        setting.model, out, method=cell.method, ratio=cell.ratio, calib=setting.calib,
        windows=setting.windows, device=setting.device,
        work=setting.out / "work" / cell.method,  # what its ratios and variants have in common
        **asked,
    )  # fmt: skip
    return done.as_dict()


def quality(setting: Setting, model: Path) -> dict[str, Any]:
    """Perplexity on every text, by its name."""
    return {
        text.stem: gacprof.evaluate(
            [model], text=text, tokenizer=setting.model, window=WINDOW, stride=WINDOW,
            limit_tokens=setting.limit_tokens, device=setting.device,
        ).as_dict()
        for text in setting.texts
    }  # fmt: skip


def tasks(setting: Setting, model: Path) -> dict[str, Any]:
    """lm-evaluation-harness's scores of both tasks, example by example."""
    folder = setting.out / "tasks"
    if not folder.is_dir():
        write_tasks(setting.texts[0], folder)
    return run_tasks(
        [model], TASKS, task_folder=folder, tokenizer=setting.model, batch=8,
        limit=setting.limit_examples, device=setting.device,
    ).as_dict()  # fmt: skip


def timing(setting: Setting, method: str, ratio: float) -> dict[str, Any]:
    """Dense and all variants in one bench, interleaved; dense is the reference."""
    here = [c for c in cells(setting) if (c.method, c.ratio) == (method, ratio)]
    folders = {c.variant: setting.out / "models" / c.name for c in here}
    models = {v: folder for v, folder in folders.items() if folder.is_dir()}
    found = gacprof.bench(
        [setting.model, *models.values()], tokens=setting.tokens, decode_steps=2,
        device=setting.device, time_cap_s=setting.bench_s,
    )  # fmt: skip
    return {"variants": ["dense", *models], "bench": found.as_dict()}


def run(setting: Setting) -> None:
    """Cell by cell, so that what is first in order is there first."""
    out = setting.out
    measures = {"quality": quality, "tasks": tasks}

    def measured(name: str, folder: Path) -> None:
        for kind, measure in measures.items():
            if kind in setting.only and folder.is_dir():
                cached(out / kind / f"{name}.json", partial(measure, setting, folder))

    measured("dense", setting.model)
    for cell in cells(setting):
        folder = out / "models" / cell.name
        if "models" in setting.only:
            path = out / "compressed" / f"{cell.name}.json"
            cached(path, partial(compressed, setting, cell, folder))
        measured(cell.name, folder)
        if not setting.keep:
            shutil.rmtree(folder, ignore_errors=True)
        write_table(out)
    for method in setting.methods if "timing" in setting.only else ():
        for ratio in setting.ratios:
            path = out / "timing" / f"{method}-{ratio * 100:g}.json"
            cached(path, partial(timing, setting, method, ratio))
    print(write_table(out))


def _parsed() -> Setting:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "calib"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--text", type=Path, action="append", required=True, dest="texts")
    parser.add_argument("--out", type=Path, default=Path("runs/table_a5"))
    parser.add_argument("--only", default=",".join(PHASES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--ratios", default="0.15,0.3,0.5")
    parser.add_argument("--map")
    parser.add_argument("--gpu")
    parser.add_argument("--tokens", default="256", help="prefills that are timed")
    parser.add_argument("--limit-tokens", type=int, default=20_000)
    parser.add_argument("--limit-examples", type=int, default=200)
    parser.add_argument("--windows", type=int, default=32, help="of calibration text")
    parser.add_argument("--bench-s", type=float, default=300.0)
    parser.add_argument("--device")
    parser.add_argument("--no-keep", action="store_false", dest="keep", help="delete models")
    asked = vars(parser.parse_args())
    source = {"cliff_map": asked.pop("map"), "gpu": asked.pop("gpu")}
    given = {name: value for name, value in source.items() if value is not None}
    asked["source"] = given or {"round_to": 8}
    for name in ("only", "methods", "variants", "ratios", "tokens"):
        read = {"ratios": float, "tokens": int}.get(name, str)
        asked[name] = tuple(map(read, asked[name].split(",")))
    asked["texts"] = tuple(asked["texts"])
    return Setting(**asked)


if __name__ == "__main__":
    run(_parsed())
