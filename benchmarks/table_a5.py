"""The paper's table A.5 on a trained model: five ways to the same number of parameters.

    python benchmarks/table_a5.py --model DENSE --calib TEXT --text TEXT
        [--out runs/table_a5] [--only map|models|quality|timing] [--methods asvd,svd-llm,llm-pruner]
        [--ratios 0.15,0.3] [--tokens 1,256] [--limit-tokens 60000] [--device cpu]

For every method and ratio: *unaligned* (the method's own sizes), *rounded* (the tool's own rounding
to 8), and ours by the paper's Eq. 4, by retained energy, and by energy under a latency budget. Then
``table.md`` and ``table.json`` in --out.

Every cell is a file or folder; what is there is not computed again, so an interrupted run goes on
where it was, and a cell that failed keeps its reason (remove it to try again). Maps and timings
need a quiet machine, the rest does not: ``--only`` separates them.

DENSE and the texts: tools/fetch_smollm2.py, fetch_brown.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from table_a5_report import write_table

import gacprof
from gacprof.checkpoint import Inventory, scan
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_json

METHODS = ("asvd", "svd-llm", "llm-pruner")
VARIANTS = ("unaligned", "rounded", "eq4", "energy", "latency")
WIDTHS = ("llm-pruner",)
"""Methods that cut widths: their sizes are measured around what they choose by themselves."""

RANKS = (0.55, 1.15)
"""Ranks are measured from this share of the smallest uniform one to this share of the largest."""

SCORE = "fisher"
"""Of the layers: it weighs the energy that a rank keeps, and is Eq. 4's score."""

FASTER = 0.97
"""The latency budget: of what the tool's own rounding is predicted to take in its products."""

PHASES = ("map", "models", "quality", "timing")


@dataclass(frozen=True)
class Setting:
    """What is asked for; the texts are named, so that a cell knows what it was computed from."""

    model: Path
    calib: Path
    text: Path
    out: Path
    methods: tuple[str, ...] = METHODS
    ratios: tuple[float, ...] = (0.15, 0.3)
    tokens: tuple[int, ...] = (1, 256)
    limit_tokens: int = 60_000
    device: str | None = None
    sweep_s: float = 600.0
    bench_s: float = 300.0
    windows: int = 32
    only: tuple[str, ...] = PHASES
    dtype: str = field(default="bfloat16")
    quality_dtype: str = "bfloat16"


@dataclass(frozen=True)
class Cell:
    """One compressed model."""

    method: str
    ratio: float
    variant: str

    @property
    def group(self) -> str:
        return f"{self.method}-{self.ratio * 100:g}"

    @property
    def name(self) -> str:
        return f"{self.group}-{self.variant}"


def cells(setting: Setting) -> Iterator[Cell]:
    """In the order in which one needs the other: ours needs the map, the map of widths needs the
    unaligned model, the latency budget needs the rounded one."""
    for method in setting.methods:
        for ratio in setting.ratios:
            for variant in VARIANTS:
                yield Cell(method, ratio, variant)


def folder_of(setting: Setting, cell: Cell) -> Path:
    return setting.out / "models" / cell.name


def cached(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The content of ``path``; made, and the reason kept where it cannot be, if it is not there."""
    if path.is_file():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    begun = time.monotonic()
    try:
        found = make()
    except GacprofError as error:
        found = {"failed": str(error)}
    found["seconds"] = round(time.monotonic() - begun, 1)
    write_json(path, found)
    print(
        f"{path.parent.name} of {path.stem}: {found.get('failed', 'done')} ({found['seconds']} s)",
        flush=True,
    )
    return found


# --- maps


def map_of(setting: Setting, cell: Cell) -> CliffMap:
    """The map of the ranks of all methods, or of the widths near those of one method and ratio."""
    name = cell.group if cell.method in WIDTHS else "ranks"
    path = setting.out / "maps" / f"{name}.json"
    if not path.is_file():
        folder = setting.out / "sweeps" / name
        more: dict[str, Any] = {
            "model": folder_of(setting, Cell(cell.method, cell.ratio, VARIANTS[0]))
        }
        if cell.method not in WIDTHS:
            more = {"ranks_of": setting.model, "ranks": _ranks(scan(setting.model), setting.ratios)}
        print(f"sweep {name} {more} …", flush=True)
        gacprof.sweep(
            **more, tokens=setting.tokens, out=folder, device=setting.device,
            budget_s=setting.sweep_s, dtype=setting.dtype, resume=folder.exists(),
        )  # fmt: skip
        gacprof.build_map(folder).save(path)
    return CliffMap.load(path)


def _ranks(inventory: Inventory, ratios: tuple[float, ...]) -> tuple[int, int]:
    even = [
        module.out_features * module.in_features / (module.out_features + module.in_features)
        for module in inventory.modules
        if module.kind == "dense" and module.layer is not None
    ]
    low, high = 1 - max(ratios), 1 - min(ratios)
    return int(RANKS[0] * low * min(even)), int(RANKS[1] * high * max(even))


# --- models


def compressed(setting: Setting, cell: Cell) -> dict[str, Any]:
    """Write the cell's model; what the compressor said of it."""
    asked: dict[str, Any] = {}
    if cell.variant == "rounded":
        asked = {"round_to": 8}
    elif cell.variant != "unaligned":
        asked = {"cliff_map": map_of(setting, cell), "tokens": setting.tokens}
        asked["objective"] = "gac" if cell.variant == "eq4" else "energy"
        if cell.method not in WIDTHS:  # a pruner's Taylor importance is its own score
            asked["score"] = SCORE
    if cell.variant == "latency":
        rounded = folder_of(setting, Cell(cell.method, cell.ratio, "rounded"))
        asked["latency_limit_us"] = FASTER * _predicted_us(setting, cell, rounded)
    done = gacprof.compress(
        setting.model, folder_of(setting, cell), method=cell.method, ratio=cell.ratio,
        calib=setting.calib, windows=setting.windows, device=setting.device,
        work=setting.out / "work" / cell.method,  # what its ratios and variants have in common
        **asked,
    )  # fmt: skip
    return {"cell": asdict(cell), "limit_us": asked.get("latency_limit_us"), "told": done.as_dict()}


def _predicted_us(setting: Setting, cell: Cell, folder: Path) -> float:
    """Of the compressed weights' products."""
    found = gacprof.diagnose(folder, map_of(setting, cell), tokens=setting.tokens)
    times = [w.latency_us for w in found.weights if w.latency_us is not None]
    return float(sum(times))


def made(setting: Setting, cell: Cell) -> bool:
    return folder_of(setting, cell).is_dir()


# --- quality


def quality(setting: Setting, model: Path) -> dict[str, Any]:
    found = gacprof.evaluate(
        model, text=setting.text, tokenizer=setting.model,
        limit_tokens=setting.limit_tokens, dtype=setting.quality_dtype, device=setting.device,
    )  # fmt: skip
    return found.as_dict()


def aligned(setting: Setting, cell: Cell) -> dict[str, Any]:
    """How many of the sizes that the method chose are safe by the map, and multiples of 8."""
    dense = {dim.name for dim in scan(setting.model).dims}
    found = gacprof.diagnose(folder_of(setting, cell), map_of(setting, cell), tokens=setting.tokens)
    kind = "width" if cell.method in WIDTHS else "rank"
    dims = [d for d in found.dims if kind == "width" or d.name not in dense]
    verdicts = [d.verdict for d in dims]
    return {
        "dims": len(dims),
        "verdicts": {v: verdicts.count(v) for v in sorted(set(verdicts))},
        "by_8": sum(d.size % 8 == 0 for d in dims),
    }


# --- timing


def timing(setting: Setting, method: str, ratio: float) -> dict[str, Any]:
    """Dense and all variants in one bench, interleaved; the tool's rounding is the reference."""
    here = [Cell(method, ratio, variant) for variant in VARIANTS]
    first = Cell(method, ratio, "rounded")
    order = [c for c in [first, *(c for c in here if c != first)] if made(setting, c)]
    found = gacprof.bench(
        [*(folder_of(setting, cell) for cell in order), setting.model],
        tokens=[count for count in setting.tokens if count > 1],
        decode_steps=2, device=setting.device, dtype=setting.dtype, time_cap_s=setting.bench_s,
    )  # fmt: skip
    return {"variants": [*(cell.variant for cell in order), "dense"], "bench": found.as_dict()}


def run(setting: Setting) -> None:
    out = setting.out
    for cell in cells(setting):
        if "models" in setting.only:
            cached(out / "compressed" / f"{cell.name}.json", lambda c=cell: compressed(setting, c))
        elif "map" in setting.only and (cell.method not in WIDTHS or made(setting, cell)):
            map_of(setting, cell)
    if "quality" in setting.only:
        cached(out / "quality" / "dense.json", lambda: quality(setting, setting.model))
        for cell in filter(lambda c: made(setting, c), cells(setting)):
            path = folder_of(setting, cell)
            cached(out / "quality" / f"{cell.name}.json", lambda p=path: quality(setting, p))
            cached(out / "aligned" / f"{cell.name}.json", lambda c=cell: aligned(setting, c))
    if "timing" in setting.only:
        for method in setting.methods:
            for ratio in setting.ratios:
                name = Cell(method, ratio, "all").group
                cached(
                    out / "timing" / f"{name}.json", lambda m=method, r=ratio: timing(setting, m, r)
                )
    print(write_table(out, setting.methods, setting.ratios, VARIANTS))


def _parsed() -> Setting:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "calib", "text"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/table_a5"))
    parser.add_argument("--only", help=f"of {', '.join(PHASES)}; with commas")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--ratios", default="0.15,0.3")
    parser.add_argument("--tokens", default="1,256")
    parser.add_argument("--limit-tokens", type=int, default=60_000)
    parser.add_argument("--windows", type=int, default=32, help="of calibration text")
    parser.add_argument("--sweep-s", type=float, default=600.0)
    parser.add_argument("--bench-s", type=float, default=300.0)
    parser.add_argument("--dtype", default="bfloat16", help="that is swept and timed")
    parser.add_argument("--quality-dtype", default="bfloat16", help="perplexity is computed in")
    parser.add_argument("--device")
    asked = vars(parser.parse_args())
    asked["only"] = tuple(asked["only"].split(",")) if asked["only"] else PHASES
    asked["methods"] = tuple(asked["methods"].split(","))
    asked["ratios"] = tuple(map(float, asked["ratios"].split(",")))
    asked["tokens"] = tuple(map(int, asked["tokens"].split(",")))
    return Setting(**asked)


if __name__ == "__main__":
    run(_parsed())
