"""Kill verbs at random moments and run them again: ``python tests/torture/torture.py --count 100``.

Every trial starts a verb in a process of its own, sends it SIGKILL, SIGTERM or SIGINT (Ctrl-C: to
its whole process group) at a random moment, and looks at what is there: no traceback, no process
left, the input as it was, no half output under the output's name, every block of a sweep still
readable that was so before. Then the same verb runs to its end: the result is what an undisturbed
run gives, and nothing else is left. Half of the moments are drawn over the whole run, half over the
time in which files are written.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from decoders import modules_of, write_decoder

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from recorded_device import RecordedDevice

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
INTERRUPTED = {signal.SIGKILL: (-9,), signal.SIGTERM: (-15,), signal.SIGINT: (130, -2)}
"""What a verb ends with that the signal reached. Python itself dies of a Ctrl-C (-2) that comes
when it is starting or ending."""
HANGS_S, LEAVING_S = 300.0, 60.0
"""For a whole run, and for a process to end once it was signalled."""
FINE = ("interrupted", "done before", "Python's start")


@dataclass(frozen=True)
class Verb:
    """``command`` is given a folder that holds a copy of the input, in which it writes ``output``;
    ``again`` is how an interrupted run is gone on with. ``same`` says whether the output is that
    of an undisturbed run, byte by byte; a sweep's never is."""

    name: str
    command: tuple[str, ...]
    output: str
    again: tuple[str, ...] = ()
    same: bool = True


VERBS = (
    Verb("sweep", ("sweep", "suite.toml", "--device", "cpu", "--out", "run"), "run",
         ("sweep", "--resume", "--device", "cpu", "--out", "run"), same=False),
    Verb("map build", ("map", "build", "swept", "--out", "map.json"), "map.json"),
    Verb("realign", ("realign", "factored", "--strategy", "minimal", "--out", "out"), "out"),
    Verb("compress", ("compress", "dense", "--method", "svd", "--ratio", "0.3", "--device", "cpu",
                      "--out", "out"), "out"),
    Verb("export", ("export", "dense", "--to", "vllm-native", "--check", "tensors",
                    "--out", "out"), "out"),
)  # fmt: skip

SUITE = """
name = "small"
timing = { blocks = 6, most_blocks = 6, processes = 2 }
[[sweep]]
operator = "linear"
axis = "K"
values = [{ from = 24, to = 56 }]
dims = { M = 4, N = 32 }
dtype = "float32"
"""


def make_input(folder: Path) -> Path:
    """A suite, a sweep, a dense and a factored decoder of a few megabytes in several shards."""
    from gacprof.sweeping import run_sweep
    from gacprof.sweeping.suite import load_suite

    folder.mkdir(parents=True)
    (folder / "suite.toml").write_text(SUITE)
    device = RecordedDevice(lambda p: 5 + p.dim["K"] * 0.1 + (p.dim["K"] % 8 > 0))
    run_sweep(load_suite(folder / "suite.toml"), device, folder / "swept")
    size = {"hidden": 256, "widths": (512,) * 3, "sharded": True}
    write_decoder(folder / "dense", **size)
    ranks = dict.fromkeys(modules_of(3), 37)
    write_decoder(folder / "factored", ranks=ranks, factors=("BLinear", "ALinear"), **size)
    return folder


@dataclass(frozen=True)
class Outcome:
    verb: str
    seed: int
    signal: str
    kind: str
    detail: str = ""


class Torturer:
    """``folder`` is a scratch folder of the torturer's own."""

    def __init__(self, folder: Path) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's background jobs
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._given = make_input(folder / "given")
        self._before = digests(self._given)
        self._work = folder / "work"
        self._undisturbed: dict[str, tuple[float, dict[str, str]]] = {}

    def trial(self, verb: Verb, seed: int) -> Outcome:
        draw = random.Random(seed)
        sent = SIGNALS[seed % len(SIGNALS)]
        seconds, whole = self._run_undisturbed(verb)
        self._renew()
        process = self._start(verb.command)
        self._wait(process, draw, seconds, seed // len(SIGNALS) % 2 == 1)
        blocks = _blocks(self._work / verb.output) if verb.name == "sweep" else {}
        running = process.poll() is None
        _send(process, sent)

        def outcome(kind: str, detail: str = "") -> Outcome:
            return Outcome(verb.name, seed, sent.name, kind, detail)

        try:
            text, _ = process.communicate(timeout=LEAVING_S)
        except subprocess.TimeoutExpired:
            _send(process, signal.SIGKILL)
            return outcome("hang", f"still there {LEAVING_S:.0f} s after {sent.name}")
        early = "init_import_site" in text  # Python's own start: no line of ours can have run
        if "Traceback" in text and not early:
            return outcome("traceback", text[-1500:])
        if left := _still_there(process.pid):
            return outcome("process left", left)
        code = process.returncode
        if code not in (0, *INTERRUPTED[sent]) and not early:
            return outcome("wrong exit code", f"{code}: {text[-300:]}")
        if problem := self._lost(verb, whole, blocks):
            return outcome(*problem)
        done = (self._work / verb.output).exists() and (code == 0 or verb.same)
        if not done:
            if problem := self._again(verb, whole):
                return outcome(*problem)
            if problem := self._lost(verb, whole, blocks):
                return outcome(*problem)
        if early:
            return outcome("Python's start")
        return outcome("interrupted" if running and code else "done before")

    def _lost(
        self, verb: Verb, whole: dict[str, str], blocks: dict[int, object]
    ) -> tuple[str, str] | None:
        """What was harmed: the input, an output that is not whole, blocks that are gone."""
        here = digests(self._work)
        for name, digest in self._before.items():
            if here.get(name) != digest:
                return "input changed", name
        out = self._work / verb.output
        if verb.same and out.exists():
            found = {n: d for n, d in _output(here, verb).items() if not n.startswith(".")}
            if found != whole:  # killed after it was renamed it may leave its state beside it
                return "half output", ", ".join(sorted(found.items() ^ whole.items())[0])
        if verb.name == "sweep":
            now = _blocks(out)
            if any(now.get(number) != block for number, block in blocks.items()):
                return "samples lost", f"{len(blocks)} blocks were there, {len(now)} are"
        return None

    def _again(self, verb: Verb, whole: dict[str, str]) -> tuple[str, str] | None:
        begun = verb.again and (self._work / verb.output / "run.json").exists()
        process = self._start(verb.again if begun else verb.command)
        try:
            text, _ = process.communicate(timeout=HANGS_S)
        except subprocess.TimeoutExpired:
            _send(process, signal.SIGKILL)
            return "hang", "the second run"
        if process.returncode:
            return "cannot go on", f"{process.returncode}: {text[-800:]}"
        found = _output(digests(self._work), verb)
        if found.keys() != whole.keys():
            return "leftovers", ", ".join(sorted(found.keys() ^ whole.keys()))
        return None

    def _run_undisturbed(self, verb: Verb) -> tuple[float, dict[str, str]]:
        """How long the verb takes, and the digests of what it leaves."""
        if verb.name not in self._undisturbed:
            self._renew()
            began = time.monotonic()
            process = self._start(verb.command)
            text, _ = process.communicate(timeout=HANGS_S)
            if process.returncode:
                raise RuntimeError(f"{verb.name} fails undisturbed: {text}")
            seconds = time.monotonic() - began
            self._undisturbed[verb.name] = seconds, _output(digests(self._work), verb)
        return self._undisturbed[verb.name]

    def _renew(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(self._given, self._work)

    def _start(self, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gacprof", *arguments], cwd=self._work, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def _wait(
        self, process: subprocess.Popen[str], draw: random.Random, seconds: float, writing: bool
    ) -> None:
        """Until a moment of the run, or where it is ``writing`` one soon after its first file."""
        if not writing:
            time.sleep(draw.uniform(0, seconds))
            return
        there = {path.name for path in self._work.iterdir()}
        while process.poll() is None and {p.name for p in self._work.iterdir()} == there:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, seconds / 3) if draw.random() < 0.5 else draw.uniform(0, 0.05))


def digests(folder: Path) -> dict[str, str]:
    """By path, of every file, hidden ones too; of a folder that is empty, nothing."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = re.sub(rb'"created":"[^"]*"', b"", path.read_bytes())  # the time, in a map
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
        elif path.is_dir() and not any(path.iterdir()):
            found[str(path.relative_to(folder))] = ""
    return found


def _output(found: dict[str, str], verb: Verb) -> dict[str, str]:
    """What is not of the input: the output, and what may have been left beside it."""
    ours = ("suite.toml", "swept/", "dense/", "factored/")
    return {name: digest for name, digest in found.items() if not name.startswith(ours)}


def _blocks(run: Path) -> dict[int, object]:
    """The blocks of a sweep by number, as they can be read now."""
    from gacprof.sweeping import read_blocks

    if not (run / "run.json").exists():
        return {}
    return {block.number: block for block in read_blocks(run)}


def _send(process: subprocess.Popen[str], sent: signal.Signals) -> None:
    """Ctrl-C reaches a whole process group, what others send one process."""
    try:
        if sent == signal.SIGINT:
            os.killpg(process.pid, sent)
        else:
            os.kill(process.pid, sent)
    except ProcessLookupError:
        pass


def _still_there(session: int) -> str:
    """Processes of that session some seconds later, by what they run."""
    deadline = time.monotonic() + LEAVING_S
    while left := list(_of_session(session)):
        if time.monotonic() > deadline:
            return "; ".join(left)
        time.sleep(0.05)
    return ""


def _of_session(session: int) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == session and stat[0] != "Z":
                    yield (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue


def torture(
    folder: Path, count: int, seed: int = 0, only: str = "", tell: Callable[[Outcome], None] = print
) -> list[Outcome]:
    """``count`` trials of each verb, the verbs in turn."""
    torturer, found = Torturer(folder), []
    for number in range(count):
        for verb in VERBS:
            if only in ("", verb.name):
                found.append(torturer.trial(verb, seed + number))
                tell(found[-1])
    return found


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--count", type=int, default=100, help="trials of each verb")
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--only", default="", choices=["", *(verb.name for verb in VERBS)])
    given = ask.parse_args()

    # Started in the background, a shell has it ignored, and so would all that are sent it here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began, counts = time.monotonic(), Counter[tuple[str, str, str]]()

    def tell(outcome: Outcome) -> None:
        counts[outcome.verb, outcome.signal, outcome.kind] += 1
        if outcome.kind not in FINE:
            print(f"{outcome.kind}: --only '{outcome.verb}' --seed {outcome.seed} --count 1")
            print(f"  {outcome.signal}: {outcome.detail}", flush=True)

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        torture(Path(folder), given.count, given.seed, given.only, tell)
    print(f"{counts.total()} trials in {time.monotonic() - began:.0f} s")
    for (verb, sent, kind), times in sorted(counts.items()):
        print(f"{verb:10s} {sent:8s} {kind:16s} {times}")
    return int(any(kind not in FINE for _, _, kind in counts))


if __name__ == "__main__":
    sys.exit(main())
