"""Read what came back from a lent GPU: maps and pages of its runs, and what was seen, in words."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from archive import unpack

import gacprof
from gacprof.cliffmap.cliffmap import CliffMap
from gacprof.cliffmap.run_folder import RunFolder
from gacprof.core.formatting import counted
from gacprof.kernels.names import Kernel, parse

JOINED = ("full-products", "full-attention", "quick")
"""Runs whose curves become one map; of two that hold a size, the first was measured longer."""
TAIL = 8
"""Lines of a log that are shown of a step whose results are words."""


def read(archive: Path, out: Path) -> None:
    """Unpack an archive into ``out/raw``; make a map and a page of each run beside it."""
    raw = out / "raw"
    unpack(archive, raw)
    if (raw / "steps.tsv").exists():
        print((raw / "steps.tsv").read_text())
    for path in sorted(raw.glob("clocks*.csv")):
        print(clocks_text(path))
    for name in ("truth", "untraced", "dispatch", "tests", "bench", "ncu"):
        log = raw / f"{name}.log"
        if log.exists():
            print(f"\n== {name}")
            print(*log.read_text(errors="replace").splitlines()[-TAIL:], sep="\n")
    if (raw / "planes.json").exists():
        for plane in json.loads((raw / "planes.json").read_text())["planes"]:
            print(plane_text(plane))
    for folder in sorted(path.parent for path in raw.rglob("run.json")):
        name = "-".join(folder.relative_to(raw).parts)  # "before-quick": of another machine
        print(run_text(folder, name, out))
    parts = [out / f"{name}.json" for name in JOINED if (out / f"{name}.json").exists()]
    if parts:
        print(joined([gacprof.load_map(path) for path in parts], out / "joined.json"))


def joined(maps: list[CliffMap], path: Path) -> Path:
    """Write the curves of one machine's maps as one map."""
    first = maps[0]
    CliffMap(
        "-".join([*first.environment.name.lower().split()[1:], "measured"]),
        first.provenance,
        first.environment,
        tuple(curve for part in maps for curve in part.curves),
        first.tolerance,
        max(part.noise_floor or 0.0 for part in maps),
        tuple(warning for part in maps for warning in part.warnings),
    ).save(path)
    return path


def clocks_text(path: Path) -> str:
    """The range of the SM clock and the highest power of a clock log."""
    try:
        log = pd.read_csv(path, skipinitialspace=True)
        clock = log.filter(like="clocks.current.sm").iloc[:, 0].str.split().str[0].astype(float)
        watts = log.filter(like="power.draw").iloc[:, 0].str.split().str[0].astype(float)
    except (pd.errors.EmptyDataError, IndexError, ValueError, AttributeError):
        return f"{path.name}: no clocks in it: {path.read_text(errors='replace')[:80].strip()}"
    return (
        f"{path.name}: {counted(len(log), 'reading')}, SM clock {clock.min():.0f} to "
        f"{clock.max():.0f} MHz, up to {watts.max():.0f} W"
    )


def plane_text(plane: dict[str, Any]) -> str:
    """A plane's kernels by the alignment of N and of K: how often, and the usual duration."""
    kernels = [parse(name) for name in plane["names"]]
    counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    durations: dict[tuple[int, int], list[float]] = defaultdict(list)
    shapes = [(n, k) for n in plane["sizes"] for k in plane["sizes"]]
    for (n, k), numbers, us in zip(shapes, plane["kernels"], plane["us"], strict=True):
        key = alignment(n), alignment(k)
        names = dict.fromkeys(kernel_text(kernels[number]) for number in numbers)
        counts[key][" + ".join(names) or "not seen"] += 1
        if us is not None:
            durations[key].append(us)
    lines = [f"\n== {plane['dtype']}, M = {plane['M']}: N and K by their largest power of 2"]
    for key in sorted(counts):
        usual = f"{median(durations[key]):.1f} µs" if durations[key] else "not timed"
        texts = ", ".join(f"{count} × {text}" for text, count in counts[key].most_common(3))
        lines.append(f"N {key[0]:2}, K {key[1]:2}: {usual:>9}  {texts}")
    return "\n".join(lines)


def alignment(size: int) -> int:
    """The largest power of 2 up to 16 that divides a size."""
    return min(16, size & -size)


def kernel_text(kernel: Kernel) -> str:
    aligned = f" align{kernel.alignment}" if kernel.alignment else ""
    return f"{kernel.provider} {kernel.family}{aligned}"


def run_text(folder: Path, name: str, out: Path) -> str:
    """What a run came to; its map and page are written beside."""
    run = RunFolder(folder)
    blocks = [block for axis in run.axes for block in run.blocks(axis)]
    clocks = [b.conditions["clock_mhz"] for b in blocks if "clock_mhz" in b.conditions]
    text = f"\n== {name}: {counted(len(blocks), 'block')} of {counted(len(run.axes), 'curve')}"
    if clocks:
        text += f", SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz"
    try:
        cliff_map = gacprof.build_map(run, name=name)
    except gacprof.GacprofError as error:
        return f"{text}: no map: {error}"
    path = out / f"{name}.json"
    cliff_map.save(path)
    page = gacprof.report([path], out / name)
    return f"{text}\n{path}\n{page}"
