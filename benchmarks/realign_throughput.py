"""How fast a padding plan is carried out, against copying the same files.

    python benchmarks/realign_throughput.py [--gigabytes 2] [--folder DIR]

Makes an ASVD-shaped checkpoint in two shards (hidden 4096, MLP 11008, odd ranks) of random bits,
then in turns: ``cp`` followed by ``sync`` of what it wrote, and realigning every rank to a
multiple of 8, which syncs by itself. Also prints what ``cp`` takes when it may leave everything
in the page cache. The page cache is warm for both. Peak memory is that of the realigning
process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HIDDEN, MLP = 4096, 11008
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "mlp.up_proj": (MLP, HIDDEN)}
RANKS = {"self_attn.q_proj": 1433, "mlp.up_proj": 2089}
ROUNDS = 5

REALIGN = """
import json, sys, time
start = time.perf_counter()
from gacprof.resizing import realign
result = realign(sys.argv[1], "minimal", sys.argv[2])
seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"seconds": seconds, "bytes": result.bytes_written,
                  "peak": int(status["VmHWM"].split()[0]) * 1024}))
"""


def make(folder: Path, size: int) -> None:
    """Layers in two shards until ``size`` bytes are reached."""
    folder.mkdir()
    tensors: dict[str, tuple[int, int]] = {"model.embed_tokens.weight": (32000, HIDDEN)}
    layer = 0
    while sum(2 * a * b for a, b in tensors.values()) < size:
        for module, (n_out, n_in) in SHAPES.items():
            name = f"model.layers.{layer}.{module}"
            tensors[f"{name}.ALinear.weight"] = (n_out, RANKS[module])
            tensors[f"{name}.BLinear.weight"] = (RANKS[module], n_in)
            tensors[f"model.layers.{layer}.{module[:-7]}k_proj.weight"] = (HIDDEN, HIDDEN)
        layer += 1
    names = sorted(tensors)
    half = len(names) // 2
    files = {"model-00001-of-00002.safetensors": names[:half]}
    files["model-00002-of-00002.safetensors"] = names[half:]
    for file, held in files.items():
        write(folder / file, {name: tensors[name] for name in held})
    weight_map = {name: file for file, held in files.items() for name in held}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "config.json").write_text("{}")


def write(path: Path, tensors: dict[str, tuple[int, int]]) -> None:
    entries, at = {}, 0
    for name, (rows, columns) in tensors.items():
        end = at + 2 * rows * columns
        entries[name] = {"dtype": "F16", "shape": [rows, columns], "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries).encode()
    noise = os.urandom(1 << 24)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, at, len(noise)):
            file.write(noise[: at - start])
    subprocess.run(["sync", "-f", path], check=True)


def copy(source: Path, out: Path, *, durable: bool) -> float:
    start = time.perf_counter()
    subprocess.run(["cp", "-r", source, out], check=True)
    if durable:
        subprocess.run(["sync", *sorted(out.iterdir())], check=True)
    return time.perf_counter() - start


def realign(source: Path, out: Path) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, "-c", REALIGN, source, out], check=True, capture_output=True, text=True
    )
    return dict(json.loads(run.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        source, out = Path(name) / "source", Path(name) / "out"
        make(source, int(options.gigabytes * 1e9))
        size = sum(path.stat().st_size for path in source.iterdir())
        durable, cached, ours = [], [], []
        for _ in range(ROUNDS):
            durable.append(copy(source, out, durable=True))
            shutil.rmtree(out)
            cached.append(copy(source, out, durable=False))
            shutil.rmtree(out)
            ours.append(realign(source, out))
            shutil.rmtree(out)
    peak = max(run["peak"] for run in ours)
    seconds = [run["seconds"] for run in ours]
    written = ours[0]["bytes"]
    print(f"source {size / 1e9:.2f} GB, written {written / 1e9:.2f} GB, {ROUNDS} rounds, medians")
    for label, taken, count in (
        ("cp, then sync", durable, size),
        ("cp, page cache only", cached, size),
        ("realign (syncs)", seconds, written),
    ):
        middle = statistics.median(taken)
        print(f"{label:20} {middle:7.2f} s  {count / middle / 1e6:8.0f} MB/s")
    ratio = statistics.median(durable) / size / (statistics.median(seconds) / written)
    print(f"realign / (cp, then sync) in MB/s: {ratio:.2f}    peak memory {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
