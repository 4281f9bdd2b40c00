"""How fast a cliff map loads and answers, without torch.

    python benchmarks/map_load.py [MAP …] [--markdown]

For the shipped maps, those named, and a made-up one of 40,000 points, each in fresh processes:
reading and checking the file with the imports already paid, the same with everything that
``from gacprof import CliffMap`` imports, and one look-up of candidates. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 9

ONE = """
import json, sys, time
started = time.perf_counter()
from gacprof import CliffMap
CliffMap
imported = time.perf_counter()
m = CliffMap.load(sys.argv[1])
loaded = time.perf_counter()
curve = m.curves[0]
m.candidates(curve.operator, axis=curve.axis, near=curve.points.d[len(curve.points.d) // 2])
answered = time.perf_counter()
print(json.dumps({"import": imported - started, "load": loaded - imported,
                  "candidates": answered - loaded, "points": sum(len(c.points.d) for c in m.curves),
                  "heavy": [n for n in ("torch", "numpy", "matplotlib") if n in sys.modules]}))
"""


def measure(name: str) -> dict[str, float]:
    rounds = []
    for _ in range(ROUNDS):
        run = subprocess.run(
            [sys.executable, "-c", ONE, name], check=True, capture_output=True, text=True
        )
        rounds.append(json.loads(run.stdout))
    medians = {
        key: statistics.median(r[key] for r in rounds) * 1e3
        for key in ("import", "load", "candidates")
    }
    return {**medians, "points": rounds[0]["points"], "heavy": rounds[0]["heavy"]}


def large(path: Path) -> None:
    """Twenty curves of 2,000 dims, each with kernels, a period, and a cliff every 256 dims."""
    from gacprof.cliffmap.build import build_map
    from gacprof.core.points import Block, Call, Environment, Point, PointNote

    kernel = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn"
    curves = [
        [
            Point.of("linear", {"M": 512, "N": n, "K": k}, "float16", {"bias": False})
            for k in range(64, 2064)
        ]
        for n in range(512, 512 + 20 * 128, 128)
    ]

    def call(point):
        k = point.dim["K"]
        return Call(point, False, (1 + k // 256) * (1.0 if k % 8 == 0 else 1.6) * 10)

    blocks = [
        Block(number, 0, "K", "cuda-graph", tuple(map(call, points)))
        for number, points in enumerate(points for points in curves for _ in range(6))
    ]
    notes = {p: PointNote(p, (kernel,)) for points in curves for p in points}
    here = Environment("recorded", "large", "sm80")
    build_map(blocks, here, name="large", point_notes=notes).save(path)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("maps", nargs="*")
    parser.add_argument("--markdown", action="store_true", help="as a table for a document")
    options = parser.parse_args()
    from importlib import resources

    from gacprof.cliffmap import shipped_maps

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "large.json"
        large(made)
        sources = {name: name for name in [*shipped_maps(), *options.maps]}
        rows = []
        for label, name in {**sources, "40,000 points": str(made)}.items():
            shipped = resources.files("gacprof.maps") / f"{name}.json"
            size = len(shipped.read_bytes()) if shipped.is_file() else Path(name).stat().st_size
            found = measure(name)
            rows.append(
                (label, f"{found['points']:,}", f"{size / 1e3:.0f}", f"{found['load']:.1f}",
                 f"{found['import']:.0f}", f"{found['candidates']:.1f}",
                 ", ".join(found["heavy"]) or "none")
            )  # fmt: skip
    head = ("map", "points", "kB", "load ms", "imports ms", "first candidates ms", "heavy imports")
    print(f"{processor()}, Python {platform.python_version()}, median of {ROUNDS} processes")
    print(f"command: python benchmarks/map_load.py {' '.join(options.maps)}".rstrip())
    between, edge = (" | ", "| ") if options.markdown else ("  ", "")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for number, row in enumerate([head, *rows]):
        cells = (text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in
                 enumerate(zip(row, widths, strict=True)))  # fmt: skip
        print(edge + between.join(cells) + edge[::-1])
        if options.markdown and number == 0:
            print("|" + "|".join(["---", *["---:"] * (len(head) - 1)]) + "|")


if __name__ == "__main__":
    main()
