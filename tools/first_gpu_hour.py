"""The first hour on a GPU: steps with time limits, one archive a part, and the way back from it.

    tools/first_gpu_hour.sh 1        # sound? the virtual GPU's questions, quick twice, tests
    tools/first_gpu_hour.sh 2        # every mechanism (full)
    tools/first_gpu_hour.sh 3        # the papers' shapes, a model compressed and timed
    tools/first_gpu_hour.sh wheels   # before: what such a machine lacks, into .whl/
    tools/first_gpu_hour.sh read runs/first-gpu-hour/archives/*.tar.gz --out reports/h100

Every step has a log, and the next one runs whatever became of it. What is left of a part's time
bounds each step, so that a part ends by itself before :data:`PART_S`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PART_S = 530
"""Of ten minutes; the rest is for starting, and for packing the last archive."""
ENDING_S = 10
"""A step that is cut has so long to end in."""
GACPROF = (sys.executable, "-m", "gacprof")
LEFT_OUT = (".safetensors", ".lock", ".bin", ".pyc")
"""Suffixes of files that would fill an archive and can be made again."""

CARRIED = ("cyclopts", "pydantic", "pydantic-core", "annotated-types", "typing-extensions")
CARRIED += ("typing-inspection", "itanium-demangler", "attrs", "docstring-parser", "rich-rst")
CARRIED += ("docutils",)
"""Packages that an image with PyTorch lacks, or may hold in too old a version."""
PLATFORMS = (*(f"manylinux_2_{n}" for n in range(39, 4, -1)), "manylinux2014", "manylinux1")
"""pip takes each name literally; the newest are those of Ubuntu 24.04."""


@dataclass(frozen=True)
class Step:
    """A command and its limit. ``result`` is what it leaves in the part's folder; where that is
    there already, the step is left out."""

    name: str
    limit_s: int
    command: tuple[str, ...]
    result: str = ""


def sweep(name: str, suite: str, device: str, budget_s: int) -> Step:
    """A sweep; starting its processes takes half a minute."""
    words = ("sweep", suite, "--device", device, "--budget-s", str(budget_s), "--out", name)
    return Step(name, budget_s + 60, (*GACPROF, *words), f"{name}/blocks.parquet")


def script(name: str, limit_s: int, *words: str) -> Step:
    return Step(name, limit_s, (sys.executable, *words))


def tests(*words: str) -> tuple[str, ...]:
    """Verbose and unbuffered: what ran before a limit cut it is in the log."""
    return ("-m", "pytest", "-v", "-s", "--tb=short", "-p", "no:cacheprovider", *words)


def steps(part: int, device: str) -> list[Step]:
    """The steps of a part, in the order of their worth."""
    if part == 1:
        return [
            Step("nvidia-smi", 20, ("nvidia-smi", "-q")),
            Step("packages", 30, (sys.executable, "-m", "pip", "list", "--format=freeze")),
            Step("gpus", 60, (*GACPROF, "gpus", "--json")),
            script("dispatch", 120, str(ROOT / "tools/ask_live_gpu.py")),
            sweep("quick", "quick", device, 60),
            sweep("again", "quick", device, 60),
            script("tests", 240, *tests("-m", "gpu", str(ROOT / "tests/gpu"))),
        ]
    if part == 2:
        return [sweep("full", "full", device, 420)]
    model = str(ROOT / "runs/smollm2/smollm2")
    return [
        sweep("paper", "paper", device, 240),
        script("demo", 260, str(ROOT / "examples/demo.py"), model, "demo"),
    ]


# ---- on the machine with the GPU ----


def run_part(part: int, device: str, folder: Path, archives: Path) -> None:
    """Run the part's steps in ``folder``; an archive of all so far after each."""
    folder.mkdir(parents=True, exist_ok=True)
    archives.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + PART_S
    for step in steps(part, device):
        left_s = ends - time.monotonic() - ENDING_S
        if step.result and (folder / step.result).exists():
            continue
        outcome, started = "no time left", time.monotonic()
        if left_s > ENDING_S:
            print(f"== {step.name}: {' '.join(step.command)}", flush=True)
            outcome = run(step, folder, min(step.limit_s, left_s))
        with (folder / f"steps-{part}.tsv").open("a") as file:
            file.write(f"{part}\t{step.name}\t{outcome}\t{time.monotonic() - started:.1f}\n")
        pack(folder, archives / f"part{part}.tar.gz")
    print((folder / f"steps-{part}.tsv").read_text())


def run(step: Step, folder: Path, limit_s: float) -> str:
    """The step's exit code, or that it was cut: first by Ctrl-C, which lets a sweep end well."""
    log = folder / f"{step.name}.log"
    with log.open("w") as out:
        try:
            process = subprocess.Popen(
                step.command,
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
        try:
            outcome = str(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            outcome = f"cut after {limit_s:.0f} s"
        finally:
            end(process)
    print("\n".join(log.read_text(errors="replace").splitlines()[-4:]), flush=True)
    return outcome


def end(process: subprocess.Popen[bytes]) -> None:
    """End the step and all that it started; what it has begun to write it may finish."""
    for number, patience_s in ((signal.SIGINT, ENDING_S - 4), (signal.SIGKILL, 2)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


def pack(folder: Path, archive: Path) -> None:
    """All of the folder in one archive, replaced at once."""
    fresh = archive.with_suffix(".new")
    with tarfile.open(fresh, "w:gz", compresslevel=6) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.suffix not in LEFT_OUT:
                packed.add(path, path.relative_to(folder).as_posix())
    fresh.replace(archive)


# ---- on the machine that keeps the results ----


def read(archives: Sequence[Path], out: Path) -> None:
    """Make a map and a page of each run, and say how each step ended."""
    import gacprof

    raw = out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for archive in sorted(archives):
        with tarfile.open(archive) as packed:
            packed.extractall(raw, filter="data")
    for folder in sorted(path.parent for path in raw.glob("*/run.json")):
        try:
            cliff_map = gacprof.build_map(folder, name=folder.name)
        except gacprof.GacprofError as error:
            print(f"{folder.name}: no map: {error}")
            continue
        cliff_map.save(out / f"{folder.name}.json")
        print(gacprof.report([out / f"{folder.name}.json"], out / folder.name))
    for path in sorted(raw.glob("steps-*.tsv")):
        print(path.read_text(), end="")


def fetch_wheels(folder: Path, python: str) -> None:
    """Fetch :data:`CARRIED` for another machine's Python, in the versions installed here."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [word for tag in PLATFORMS for word in ("--platform", f"{tag}_x86_64")]
    for name in CARRIED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            requirement = f"{name}=={metadata.version(name)}"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
            command += [*platforms, "--dest", str(folder), requirement]
            subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("1", "2", "3", "read", "wheels"))
    parser.add_argument("archives", nargs="*", type=Path, help="with read")
    parser.add_argument("--out", type=Path, default=Path("runs/first-gpu-hour"))
    options = parser.parse_args()
    if options.part == "read":
        read(options.archives, options.out)
    elif options.part == "wheels":
        fetch_wheels(ROOT / ".whl", os.environ.get("GPU_PYTHON", "3.12"))
    else:
        device, out = os.environ.get("DEVICE", "cuda"), options.out.resolve()
        run_part(int(options.part), device, out / f"part{options.part}", out / "archives")


if __name__ == "__main__":
    main()
