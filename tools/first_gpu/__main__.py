"""What a GPU that is lent for some minutes should do: one command, one archive.

    python3 tools/first_gpu [--seconds 540]             # on the machine with the GPU
    python3 tools/first_gpu --steps ncu tests           # these alone, in this order, done or not
    python3 tools/first_gpu wheels                      # before: what it lacks, into .whl/
    python3 tools/first_gpu read ARCHIVE --out FOLDER   # after: maps, pages, and what was seen

The steps stand below in the order of their worth; each has a limit and a log, and the next one runs
whatever became of it. All ends by itself after so many seconds. The archive is first-gpu.tar.gz in
$OUT, else in runs/, and is packed anew every half minute while a step runs: a kill loses as much.
Run again, with runs/first-gpu or the archive in runs/ still there, it leaves out what is done and
goes on with what was cut. A sweep is done with its budget, whatever is undecided then: name it to
go on with it. It needs Python and the packages of .whl/ or an environment of gacprof's.
Exit code 1 where a step failed or was cut, 3 where packages or the device are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from archive import pack, unpack

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tools/first_gpu"
FOLDER = ROOT / "runs/first-gpu"
WHEELS = ROOT / ".whl"
SECONDS = 540
"""Of ten minutes; the rest is for what starts and fetches the command."""
ENDING_S = 8
"""A step that is cut has so long to end in, and the archive as long to be packed."""
PACK_EVERY_S = 30
INSTALL_LIMIT_S, WARM_LIMIT_S = 90, 150
"""For pip, all together; for the first import of torch from a cold disk, and the first kernel."""
SWEEP_ENDING_S = 25
"""A sweep's budget ends so long before its limit: starting python, the last round of blocks."""
MAX_MIB = 16
"""Of a file that comes back from such a machine."""
CLOCKS = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
DONE, RUNNING = "done", "running.new"
MACHINE = """
import json
import sys
import torch
import gacprof.cli.app
from gacprof.devices.environment import read_environment
torch.ones(8, device=sys.argv[1]).sum().item()
seen = read_environment(sys.argv[1])
print(json.dumps([seen.name, seen.arch, dict(seen.stack), seen.facts.get("power_limit_w")]))
"""
"""Says what a run can be resumed on, and that all packages are there."""
NCU = """
import os
import sys
from gacprof.kernels.ncu import METRICS
options = ["--clock-control", "none", "--profile-from-start", "off", "--set", "detailed"]
options += ["--metrics", ",".join(METRICS.values()), "-o", "edges", "-f"]
os.execvp("ncu", ["ncu", *options, sys.executable, sys.argv[1]])
"""
"""Profiles a script with all counters that ``gacprof.kernels.ncu.read_ncu`` looks for: no set of
Nsight Compute's has them all."""
BUDGET = "{budget}"
"""A word of a command: what is left of the step's limit for measuring."""


@dataclass(frozen=True)
class Step:
    """A command, its limit, and the least time with which it is worth to begin. One that fails is
    tried again in the next run; exit code 1 of one that leaves ``finding`` is a result."""

    name: str
    limit_s: int
    command: tuple[str, ...]
    least_s: int = 15
    finding: str = ""


def sweep(suite: str, device: str, limit_s: int, name: str = "") -> Step:
    """A sweep of a shipped suite or of one that :func:`split_suite` wrote, into its own folder."""
    name = name or suite
    file = f"{suite}.toml" if suite.startswith("full-") else suite
    words = ("sweep", file, "--device", device, "--budget-s", BUDGET, "--out", name)
    return Step(name, limit_s, (sys.executable, "-m", "gacprof", *words), least_s=50)


def script(name: str, limit_s: int, *words: str, least_s: int = 15, finding: str = "") -> Step:
    return Step(name, limit_s, (sys.executable, *words), least_s, finding)


def steps(device: str) -> list[Step]:
    """All steps, in the order of their worth: together more than one loan has time for."""
    pytest = ("-m", "pytest", "-v", "-s", "--tb=short", "-p", "no:cacheprovider", "-m", "gpu")
    pytest += ("--continue-on-collection-errors", str(ROOT / "tests/gpu"))
    truth = (sys.executable, str(HERE / "truth.py"))
    model = str(ROOT / "runs/first-gpu-models")
    dispatch = (str(ROOT / "tools/ask_live_gpu.py"), "--out", "dispatch.json")
    traces = (str(HERE / "traces.py"), "--out", "traces")
    planes = (str(HERE / "planes.py"), "--seconds", BUDGET, "--out", "planes.json")
    bench = (str(HERE / "llamas.py"), model, "--seconds", "40", "--out", "bench.json")
    gpu_tests = (*pytest, str(ROOT / "tests/check/test_bench.py"))
    return [
        Step("nvidia-smi", 15, ("nvidia-smi", "-q"), least_s=5),
        script("packages", 15, "-m", "pip", "list", "--format=freeze", least_s=5),
        Step("truth", 60, (*truth, "--out", "truth.json")),
        Step("untraced", 40, ("env", "GACPROF_UNTRACED=1", *truth, "--out", "untraced.json")),
        script("dispatch", 60, *dispatch, finding="dispatch.json"),
        script("planes", 90, *planes, least_s=40),
        sweep("quick", device, 85),
        sweep("quick", device, 70, "again"),
        script("tests", 90, *gpu_tests, finding="tests.log"),
        script("traces", 45, *traces, least_s=30),
        sweep("full-products", device, 220),
        script("bench", 120, *bench, least_s=90),
        sweep("full-attention", device, 120),
        sweep("llama-ranks", device, 80),
        sweep("paper", device, 110),
        script("ncu", 60, "-c", NCU, str(HERE / "edges.py"), least_s=30),
    ]


# ---- running ----


def run(seconds: float, device: str, names: Sequence[str] = ()) -> int:
    """Run what fits into the time that is left: the steps that are named, else all that are not
    done yet; 0 where nothing failed."""
    chosen = {step.name: step for step in steps(device)}
    ends = time.monotonic() + seconds
    archive = Path(os.environ.get("OUT") or ROOT / "runs") / "first-gpu.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    if not FOLDER.exists() and FOLDER.with_suffix(".tar.gz").exists():
        unpack(FOLDER.with_suffix(".tar.gz"), FOLDER)
    FOLDER.mkdir(parents=True, exist_ok=True)
    end_what_was_left()
    variables = os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), packages()]))
    failed = 0
    with packing(archive):
        if not is_ready(device, variables):
            return 3
        split_suite()
        done = set() if names else finished_steps()
        with clock_log():
            for step in [chosen[name] for name in names or chosen]:
                left_s = ends - time.monotonic() - 2 * ENDING_S
                if step.name in done or left_s < step.least_s:
                    continue
                started = time.monotonic()
                outcome = run_step(step, min(step.limit_s, left_s), variables)
                taken_s = time.monotonic() - started
                found = outcome == "1" and step.finding and (FOLDER / step.finding).exists()
                result = DONE if outcome == "0" or found else "open"
                failed += result != DONE
                with (FOLDER / "steps.tsv").open("a") as file:
                    file.write(f"{step.name}\t{outcome}\t{taken_s:.1f}\t{result}\n")
                pack(FOLDER, archive)
        if (FOLDER / "steps.tsv").exists():
            print((FOLDER / "steps.tsv").read_text())
    mib = archive.stat().st_size / 2**20
    print(f"{archive}: {mib:.1f} MiB" + f", over {MAX_MIB}: it may not come back" * (mib > MAX_MIB))
    return int(failed > 0)


def is_ready(device: str, variables: dict[str, str]) -> bool:
    """Tell whether the packages are there and the device works. A folder of another machine is
    moved into the one of this machine: what was measured there cannot be gone on with here."""
    name = "cpu" if device == "cpu" else "cuda:0"
    command = [sys.executable, "-c", MACHINE, name]
    print(f"== importing all packages and asking {name}", flush=True)
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=WARM_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        print(f"nothing can be done: no answer of {name} within {WARM_LIMIT_S} s", flush=True)
        return False
    if done.returncode:
        lines = done.stderr.splitlines()[-4:]
        print("nothing can be done (is .whl/ there?):", *lines, sep="\n", flush=True)
        return False
    machine, note = done.stdout.splitlines()[-1], FOLDER / "machine.json"
    if note.exists() and note.read_text() != machine:
        print(f"another machine before: {note.read_text()}\nnow: {machine}", flush=True)
        FOLDER.rename(FOLDER.with_suffix(".before"))
        FOLDER.mkdir()
        FOLDER.with_suffix(".before").rename(FOLDER / "before")
    note.write_text(machine)
    return True


def split_suite() -> None:
    """Write the suite ``full`` as two: cuDNN plans every size of attention, for a minute or more,
    and nothing is measured before all of a suite is prepared."""
    _, *tables = (ROOT / "sweeps/full.toml").read_text().split("[[sweep]]")
    attention = [table for table in tables if 'operator = "attention"' in table]
    products = [table for table in tables if table not in attention]
    for name, part in (("full-products", products), ("full-attention", attention)):
        text = "".join(f"\n[[sweep]]{table}" for table in part)
        (FOLDER / f"{name}.toml").write_text(f'name = "{name}"\n{text}')


def packages() -> str:
    """Install the wheels that were carried along, and return the folder that they are in; a cut
    install leaves no mark and is made again."""
    wheels = sorted(str(path) for path in WHEELS.glob("*.whl"))
    if not wheels:
        return os.environ.get("PYTHONPATH", "")
    key = zlib.crc32(repr([sys.version, *wheels]).encode())
    target = Path(tempfile.gettempdir()) / f"gacprof-packages-{key:08x}"
    ends = time.monotonic() + INSTALL_LIMIT_S
    if not (target / DONE).exists() and not install(wheels, target, ends):
        for wheel in wheels:  # one that does not fit must not cost the others
            install([wheel], target, ends)
    return os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))


def install(wheels: list[str], target: Path, ends: float) -> bool:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--no-compile", "--upgrade", "--disable-pip-version-check"]
    pip += ["--root-user-action=ignore", "--target", str(target)]
    try:
        subprocess.run([*pip, *wheels], check=True, timeout=max(1.0, ends - time.monotonic()))
    except (subprocess.SubprocessError, OSError) as error:
        print(f"not installed: {error}", flush=True)
        return False
    if len(wheels) > 1:
        (target / DONE).touch()
    return True


def finished_steps() -> set[str]:
    """Names of the steps whose results are there."""
    path = FOLDER / "steps.tsv"
    rows = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
    return {row[0] for row in rows if row[-1] == DONE}


def end_what_was_left() -> None:
    """End a step that a kill of the run before has left behind: it would measure beside this one.
    Its group's number stands in a file that no archive takes along."""
    note = FOLDER / RUNNING
    if note.exists():
        with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
            os.killpg(int(note.read_text()), signal.SIGKILL)
        note.unlink()


def run_step(step: Step, limit_s: float, variables: dict[str, str]) -> str:
    """The step's exit code, or that it was cut: first by Ctrl-C, which lets a sweep end well."""
    budget = str(max(5, int(limit_s - SWEEP_ENDING_S)))
    command = [budget if word == BUDGET else word for word in step.command]
    if "sweep" in command and (FOLDER / command[-1] / "run.json").exists():
        command.append("--resume")
    print(f"== {step.name}, up to {limit_s:.0f} s: {' '.join(command)}", flush=True)
    log = FOLDER / f"{step.name}.log"
    with log.open("a") as out:
        try:
            process = subprocess.Popen(
                command,
                cwd=FOLDER,
                env=variables,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
        (FOLDER / RUNNING).write_text(str(process.pid))
        try:
            outcome = str(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            outcome = f"cut after {limit_s:.0f} s"
        finally:
            end(process)
            (FOLDER / RUNNING).unlink(missing_ok=True)
    print("\n".join(log.read_text(errors="replace").splitlines()[-6:]), flush=True)
    return outcome


def end(process: subprocess.Popen[bytes]) -> None:
    """End the step and all that it started; what it has begun to write it may finish."""
    for number, patience_s in ((signal.SIGINT, ENDING_S - 2), (signal.SIGKILL, 2)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


@contextlib.contextmanager
def clock_log() -> Iterator[None]:
    """Log clocks, power and temperature ten times a second meanwhile."""
    number = len(list(FOLDER.glob("clocks*.csv"))) + 1
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv", "-lms", "100"]
    with (FOLDER / f"clocks{number}.csv").open("w") as out:
        try:
            logger = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        except OSError as error:
            out.write(f"{error}\n")
            yield
            return
        try:
            yield
        finally:
            logger.kill()
            logger.wait()


@contextlib.contextmanager
def packing(archive: Path) -> Iterator[None]:
    """Pack the folder at once, every half minute, and at the end whatever ends it."""
    over = threading.Event()

    def pack_now_and_then() -> None:
        while not over.wait(PACK_EVERY_S):
            pack(FOLDER, archive)

    pack(FOLDER, archive)
    packer = threading.Thread(target=pack_now_and_then, daemon=True)
    packer.start()
    try:
        yield
    finally:
        over.set()
        packer.join()
        pack(FOLDER, archive)


def main() -> None:
    parser = argparse.ArgumentParser(prog="first_gpu", description=__doc__.splitlines()[0])
    parser.add_argument("verb", nargs="?", default="run", choices=("run", "read", "wheels"))
    parser.add_argument("archive", nargs="?", type=Path, help="with read")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--steps", nargs="+", default=(), choices=[s.name for s in steps("cuda")])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/first-gpu-read")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the last archive is packed
    if options.verb == "run":
        sys.exit(run(options.seconds, options.device, options.steps))
    if options.verb == "wheels":
        from wheels import fetch_wheels

        fetch_wheels(WHEELS)
    elif options.archive is None:
        parser.error("name the archive to read")
    else:
        from read import read

        read(options.archive, options.out)


if __name__ == "__main__":
    main()
