"""The first hour on a GPU: steps with time limits, one archive a part, and the way back from it.

    tools/first_gpu_hour.sh 1        # sound? what do timers add? quick twice, and its floor
    tools/first_gpu_hour.sh 2        # every mechanism (full), counters, templates, SDPA's reasons
    tools/first_gpu_hour.sh 3        # the papers' disputes, a model aligned and timed, tests
    tools/first_gpu_hour.sh wheels   # before: what such a machine lacks, into .whl/
    tools/first_gpu_hour.sh read runs/first-gpu-hour/archives/*.tar.gz --out reports/h100

Every step has a log, and the next one runs whatever became of it. What is left of a part's time
bounds each step, so that a part ends by itself before :data:`PART_S`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PART_S = 530
"""Of ten minutes; the rest is for starting, and for packing the last archive."""
ENDING_S, SHORTEST_S = 10, 5
"""What a step that is cut has to end in; and what must be left for one to begin."""
CHUNK_BYTES = 15 << 20
"""Of an archive; a larger one is cut into files of this size."""
GACPROF = (sys.executable, "-m", "gacprof")
STEPS = "steps-{}.tsv"
"""What a part says of its steps; archives of several parts are unpacked into one folder."""
WITHOUT = "not counters and not worker"


@dataclass(frozen=True)
class Step:
    """``made`` is what the step leaves in the part's folder; it is left out if that is there."""

    name: str
    limit_s: int
    command: tuple[str, ...]
    made: str = ""


ONE_PROCESS = (
    "import pathlib, sys; text = pathlib.Path(sys.argv[1]).read_text(); "
    "pathlib.Path(sys.argv[2]).write_text(text.replace('[timing]', '[timing]\\nprocesses = 1', 1))"
)
"""A suite as one process measures it: each further one prepares and captures everything anew, which
is most of a short budget."""


def swept(name: str, device: str, budget_s: float, *what: str) -> list[Step]:
    """A sweep and its map, beside each other. Starting three processes takes half a minute."""
    sweep = ("sweep", *what, "--device", device, "--budget", f"{budget_s:g}s", "--out", name)
    return [
        Step(name, int(budget_s) + 60, (*GACPROF, *sweep), f"{name}/samples.parquet"),
        Step(f"{name}-map", 30, (*GACPROF, "map", "build", name, "--out", f"{name}.json")),
    ]


def curve(axis: str, first: int, last: int, **fixed: int) -> tuple[str, ...]:
    sizes = [part for dim, size in fixed.items() for part in ("--fixed", f"{dim}={size}")]
    return ("--op", "linear", "--axis", axis, "--range", f"{first}:{last}", *sizes,
            "--dtype", "float16")  # fmt: skip


def pytest(*what: str) -> tuple[str, ...]:
    """Verbose and unbuffered: what ran before a limit cut it is in the log."""
    return (sys.executable, "-m", "pytest", "-v", "-s", "--tb=short", "-m", "gpu",
            "-p", "no:cacheprovider", *what)  # fmt: skip


def steps(part: int, device: str, root: Path, scale: float = 1.0) -> list[Step]:
    """Of that part, in the order of their worth; budgets are scaled for a trial."""
    tests, tools = str(root / "tests/gpu"), root / "tools"

    def python(name: str, limit_s: int, script: Path, *arguments: str) -> Step:
        return Step(name, limit_s, (sys.executable, str(script), *arguments))

    if part == 1:
        return [
            Step("nvidia-smi", 20, ("nvidia-smi", "-q")),
            Step("packages", 30, (sys.executable, "-m", "pip", "list", "--format=freeze")),
            Step("doctor", 90, (*GACPROF, "doctor")),
            python("truth", 90, tools / "timer_truth.py", "--device", device, "--out",
                   "truth.json"),
            *swept("curve", device, 25 * scale, *curve("K", 96, 128, M=512, N=1024)),
            *swept("quick", device, 50 * scale, "quick"),
            *swept("again", device, 50 * scale, "quick"),
            Step("floor", 20, (*GACPROF, "map", "diff", "quick.json", "again.json")),
            *swept("heavy", device, 30 * scale, *curve("N", 4080, 4112, M=8192, K=4096)),
            Step("tests", 240, pytest("-k", WITHOUT, tests)),
        ]  # fmt: skip
    if part == 2:
        return [
            Step("suite", 10, (sys.executable, "-c", ONE_PROCESS, str(root / "sweeps/full.toml"),
                               "full.toml")),
            *swept("full", device, 240 * scale, "full.toml"),
            *swept("counted", device, 10 * scale, *curve("K", 100, 112, M=512, N=1024)),
            Step("ncu", 110, (*GACPROF, "evidence", "ncu", "counted", "--timeout", "90")),
            Step("sdpa", 30, (*GACPROF, "evidence", "sdpa", "--head-dim", "107")),
            Step("sdpa-mask", 30,
                 (*GACPROF, "evidence", "sdpa", "--head-dim", "107", "--mask", "float")),
            python("cupti", 60, tools / "cupti_probe.py"),
        ]  # fmt: skip
    return [
        python("disputes", 160, root / "reports/paper/disputes.py", "--device", device, "--out",
               "disputes"),
        Step("demo", 200, (*GACPROF, "demo", "--device", device, "--out", "demo")),
        Step("tests-worker", 60, pytest("-k", "worker or counters", tests)),
        Step("tests-kernels", 120, pytest(str(root / "tests/kernels"))),
    ]  # fmt: skip


# --- on the machine with the GPU -----------------------------------------------------------------


def run_part(part: int, device: str, folder: Path, archives: Path, seconds: float, scale: float
             ) -> None:  # fmt: skip
    """Run the part's steps in ``folder``; an archive of all so far after each."""
    folder.mkdir(parents=True, exist_ok=True)
    archives.mkdir(parents=True, exist_ok=True)
    root, ends = Path(__file__).resolve().parents[1], time.monotonic() + seconds
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        for step in steps(part, device, root, scale):
            left = ends - time.monotonic() - ENDING_S
            if step.made and (folder / step.made).exists():
                continue
            if left < SHORTEST_S:
                _note(folder, part, step.name, "no time left", 0.0)
                continue
            print(f"== {step.name}: {' '.join(step.command)}", flush=True)
            begun = time.monotonic()
            code = run(step, folder, min(step.limit_s, left))
            _note(folder, part, step.name, code, time.monotonic() - begun)
            pack(folder, archives / f"part{part}.tar.gz")
    finally:
        pack(folder, archives / f"part{part}.tar.gz")
    print((folder / STEPS.format(part)).read_text(), *sorted(archives.glob("part*")), sep="\n")


def run(step: Step, folder: Path, limit_s: float) -> int | str:
    """The step's exit code, or that it was cut: first by Ctrl-C, which lets a sweep end well."""
    log = folder / f"{step.name}.log"
    with log.open("w") as out:
        try:
            process = subprocess.Popen(
                step.command, cwd=folder, stdout=out, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return str(error)
        ended: int | str
        try:
            ended = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            ended = f"cut after {limit_s:.0f} s"
        finally:
            _end(process)
    print("\n".join(log.read_text(errors="replace").splitlines()[-4:])[:800], flush=True)
    return ended


def _end(process: subprocess.Popen[bytes]) -> None:
    """The step and all that it started; what it has begun to write it may end."""
    for number, patience_s in ((signal.SIGINT, ENDING_S - 4), (signal.SIGKILL, 2)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _note(folder: Path, part: int, name: str, code: int | str, seconds: float) -> None:
    with (folder / STEPS.format(part)).open("a") as file:
        file.write(f"{part}\t{name}\t{code}\t{seconds:.1f}\n")


def pack(folder: Path, archive: Path) -> None:
    """All of the folder in one archive, replaced at once; a large one in pieces .00, .01 …"""
    fresh = archive.with_suffix(".new")
    with tarfile.open(fresh, "w:gz", compresslevel=6) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.suffix not in LEFT_OUT:
                packed.add(path, path.relative_to(folder).as_posix())
    if fresh.stat().st_size <= CHUNK_BYTES:
        fresh.replace(archive)
        return
    content = fresh.read_bytes()
    fresh.unlink()
    archive.unlink(missing_ok=True)
    for number, first in enumerate(range(0, len(content), CHUNK_BYTES)):
        Path(f"{archive}.{number:02d}").write_bytes(content[first : first + CHUNK_BYTES])


LEFT_OUT = (".safetensors", ".lock", ".bin", ".pyc")
"""Suffixes of what would fill an archive and can be made again."""


# --- on the machine that keeps the results --------------------------------------------------------


def unpack(archives: Sequence[Path], folder: Path) -> None:
    """Archives, whole or in pieces, one after another into the folder."""
    whole: dict[str, bytes] = {}
    for path in sorted(archives):
        name = path.name if path.suffix == ".gz" else path.stem
        whole[name] = whole.get(name, b"") + path.read_bytes()
    for name, content in whole.items():
        joined = folder / name
        joined.write_bytes(content)
        with tarfile.open(joined) as packed:
            packed.extractall(folder, filter="data")
        joined.unlink()


def read(archives: Sequence[Path], out: Path) -> None:
    """A map and a page of each run, and README's rows."""
    raw = out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    unpack(archives, raw)
    rows = []
    for run_folder in sorted(path for path in raw.iterdir() if (path / "run.json").exists()):
        name = run_folder.name
        made = out / f"{name}.json"
        made.unlink(missing_ok=True)
        built = subprocess.run(
            (*GACPROF, "map", "build", str(run_folder), "--out", str(made), "--json"),
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if not made.exists():
            rows.append(f"| {name} | no map: exit code {built.returncode} |")
            continue
        rows.append(row(name, run_folder, json.loads(built.stdout)))
        subprocess.run((*GACPROF, "report", "--map", str(made), "--out", str(out / name),
                        "--title", f"{name}: first GPU hour"))  # fmt: skip
    text = "\n".join([*HEAD, *rows, "", *timers(raw), *ended(raw)]) + "\n"
    (out / "rows.md").write_text(text)
    print(text)


IMAGE = ("torch", "triton", "numpy", "pandas", "pyarrow", "scipy", "matplotlib", "transformers",
         "nvidia-ml-py", "safetensors", "rich", "typer", "jinja2", "cloudpickle",
         "psutil")  # fmt: skip
"""Packages that an image with PyTorch is taken to hold."""
CARRIED = ("pydantic", "pydantic-core", "annotated-types", "typing-extensions",
           "typing-inspection", "plotext", "itanium-demangler", "ncu-report")  # fmt: skip
"""Packages that it lacks, or may hold in too old a version."""
PLATFORMS = (*(f"manylinux_2_{n}" for n in range(39, 4, -1)), "manylinux2014", "manylinux1")
"""pip takes each name literally; the newest are those of Ubuntu 24.04."""


def wheels(folder: Path, python: str) -> None:
    """Fetch :data:`CARRIED` for another machine's Python, in the versions installed here."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    for name in CARRIED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            subprocess.run(fetching(name, metadata.version(name), folder, python), check=True)


def fetching(name: str, version: str, folder: Path, python: str) -> list[str]:
    platforms = [part for tag in PLATFORMS for part in ("--platform", f"{tag}_x86_64")]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", python, "--implementation", "cp", *platforms, "--dest", str(folder),
        f"{name}=={version}",
    ]  # fmt: skip


HEAD = (
    "| run | device | points | s | points/s | A/A floor | cliffs | safe | misaligned | undecided "
    "| throttled blocks |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


def row(name: str, run_folder: Path, made: dict[str, Any]) -> str:
    """Of README's table: what the run measured, how fast and how well. ``made`` is what ``map
    build --json`` prints."""
    import pandas as pd

    taken = pd.read_parquet(run_folder / "samples.parquet")
    seconds = taken.taken_at.max() - taken.taken_at.min()
    throttled = (taken.drop_duplicates("block").throttled != "").mean()
    floor, points = made["noise_floor"], made["points"]
    cells = [
        name, made["device"], points, f"{seconds:.0f}",
        f"{points / seconds:.0f}" if seconds else "–",
        "–" if floor is None else f"{floor:.1%}", made["cliffs"], made["safe"], made["misaligned"],
        made["undecided"], f"{throttled:.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def timers(raw: Path) -> Iterator[str]:
    """What the timers add, of the part that asked."""
    if not (path := raw / "truth.json").exists():
        return
    yield "| product | a call, µs | traced, µs | a graph adds, µs | tick, µs |"
    yield "|---|---|---|---|---|"
    for name, found in json.loads(path.read_text())["products"].items():
        numbers = (found[k] for k in ("call_us", "traced_us", "constant_us", "tick_us"))
        cells = ["–" if n is None else f"{n:.2f}" for n in numbers]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def ended(raw: Path) -> Iterator[str]:
    """How each step ended."""
    for path in sorted(raw.glob(STEPS.format("*"))):
        for line in path.read_text().splitlines():
            part, name, code, seconds = line.split("\t")
            yield f"- part {part}, {name}: {code} after {seconds} s"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("what", choices=["1", "2", "3", "read", "wheels"])
    ask.add_argument("archives", nargs="*", type=Path, help="with read")
    ask.add_argument("--out", type=Path, help="with read: the folder of maps, pages and rows.md")
    given = ask.parse_args()
    if given.what == "wheels":
        wheels(Path(".whl"), os.environ.get("GPU_PYTHON", "3.12"))
        return
    if given.what == "read":
        if not given.archives or given.out is None:
            ask.error("read takes archives and --out FOLDER")
        read(given.archives, given.out)
        return
    runs = Path("runs/first-gpu-hour").resolve()
    run_part(
        int(given.what),
        os.environ.get("DEVICE", "cuda"),
        runs / f"part{given.what}",
        Path(os.environ.get("OUT", runs / "archives")).resolve(),
        float(os.environ.get("PART_S", PART_S)),
        float(os.environ.get("SCALE", 1)),
    )


if __name__ == "__main__":
    main()
