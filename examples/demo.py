"""The whole chain on one small model, over the public API.

    python examples/demo.py runs/smollm2/smollm2 runs/demo

A trained model is compressed at its method's own ranks, and rounded down to multiples of 8. Its
shapes are swept on this device, and it is compressed again at ranks that the map calls safe, which
cost the least loss within the same parameters. Perplexity and speed of all are compared with those
of the planned model, the uncompressed one among them. A CPU has few cliffs, so an H100 is asked as
well, by name: what the method's own ranks would meet there. A page shows what was found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import gacprof
from gacprof.core.files import write_record
from gacprof.core.formatting import percent_interval, time_interval
from gacprof.core.sizes import Interval

OWN, ROUNDED, BY_LOSS, PLANNED = "own-ranks", "rounded-8", "by-loss-8", "planned"
METHOD: dict[str, Any] = {"method": "svd-llm", "ratio": 0.15, "windows": 4}
"""Four windows of 512 tokens: a real compression reads more."""
TOKENS = (1, 64)
"""A decode step, and a prefill short enough for a laptop's CPU."""
GPU, GPU_TOKENS, MEASURED = "h100", (1024,), "h200-measured"
"""A GPU that need not be at hand, a prefill on it, and what its sister was measured to do."""
SWEEP_S, BENCH_S = 40.0, 80.0
TEXT: dict[str, Any] = {"window": 256, "stride": 256, "tokens": 3073}
"""Twelve windows: differences of perplexity are paired by window."""
MARKER = ".gacprof-demo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a small dense model with its tokenizer")
    parser.add_argument("out", type=Path, help="the demo's folder; an earlier demo is replaced")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        page = demo(options.model, options.out)
    except gacprof.GacprofError as error:
        sys.exit(f"demo: {error}")
    print(f"{page} after {time.monotonic() - started:.0f} s")


def demo(model: Path, out: Path) -> Path:
    """Run the chain in a fresh folder and return the page."""
    folder = fresh_folder(out)
    calibration, evaluation = write_texts(folder)
    compress = Compress(model, folder, calibration)
    compress(BY_LOSS, multiple=8)  # first: its factors and losses serve the others
    compress(OWN, objective="uniform")
    compress(ROUNDED, objective="uniform", multiple=8)

    say(f"sweep: {SWEEP_S:.0f} s over the shapes of {OWN} and what they could become …")
    gacprof.sweep(model=folder / OWN, tokens=TOKENS, out=folder / "sweep", budget_s=SWEEP_S)
    cliff_map = gacprof.build_map(folder / "sweep", name="demo")
    cliff_map.save(folder / "cliffmap.json")
    diagnosis = gacprof.diagnose(folder / OWN, cliff_map)
    save(folder, diagnosis)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in diagnosis.counts.items())
    say(f"diagnose: the sizes of {OWN} are {counts} {diagnosis.provenance}")
    elsewhere = ask_elsewhere(folder)
    models = [folder / compress_by(cliff_map, compress), folder / ROUNDED, folder / OWN, model]
    perplexities = gacprof.perplexity(models, evaluation, **TEXT)
    save(folder, perplexities)
    for row in perplexities.models:
        change = f" ({percent_interval(row.change)})" if row.change else ""
        say(f"perplexity: {row.model} {row.value:.2f}{change}")
    say(f"bench: {BENCH_S:.0f} s, four models and an A/A replicate, interleaved …")
    bench = gacprof.bench(models, prefill=TOKENS[-1], decode=4, seconds=BENCH_S)
    save(folder, bench)
    for timing in bench.timings:
        ratio = timing.ratio
        change = percent_interval(Interval(ratio.low - 1, ratio.value - 1, ratio.high - 1))
        text = "" if timing.verdict == "reference" else f" ({change}): {timing.verdict}"
        say(f"{timing.workload}: {timing.model} {time_interval(timing.latency_us)}{text}")
    results = (diagnosis, perplexities, bench)
    artefacts = [folder / "cliffmap.json", *(folder / file_name(result) for result in results)]
    artefacts += elsewhere
    return gacprof.report(artefacts, folder / "report")


def ask_elsewhere(folder: Path) -> list[Path]:
    """Say what a GPU that is not here makes of the own ranks, and what padding them takes; return
    the files of the diagnosis and of the table of what it asks of sizes."""
    diagnosis = gacprof.diagnose(folder / OWN, GPU, tokens=GPU_TOKENS)
    gacprof.table([GPU, MEASURED], out=folder / "table.json")
    plan = gacprof.plan(folder / OWN, GPU, objective="pad", tokens=GPU_TOKENS)
    padded = sum(choice.before != choice.after for choice in plan.choices)
    before, after = plan.parameters
    misaligned = diagnosis.counts["misaligned"]
    say(
        f"{GPU}, not at hand: {misaligned} of {len(diagnosis.dims)} sizes of {OWN} are misaligned "
        f"{diagnosis.provenance}; padding {padded} of them changes no output and adds "
        f"{after / before - 1:.1%} parameters (gacprof plan {folder / OWN} --gpu {GPU} "
        "--objective pad)"
    )
    paths = [folder / f"{GPU}.json", folder / "table.json"]
    write_record(paths[0], diagnosis)
    return paths


class Compress:
    """One method on one model; layers that a first call has finished are kept for the next."""

    def __init__(self, model: Path, folder: Path, calibration: Path) -> None:
        self.model = model
        self.folder = folder
        self.calibration = calibration

    def __call__(self, name: str, **sizes: Any) -> None:
        """Compress the model into a folder of that name, at these sizes."""
        result = gacprof.compress(
            self.model,
            self.folder / name,
            text=self.calibration,
            work=self.folder / "work",
            **METHOD,
            **sizes,
        )
        dense = sum(size is None for size in result.sizes.values())
        before, after = result.parameters
        say(
            f"{name}: {result.method}, {before:,} → {after:,} parameters, "
            f"{len(result.sizes) - dense} weights are factor pairs, {dense} stay dense"
        )


def compress_by(cliff_map: Any, compress: Compress) -> str:
    """Compress at ranks that the map calls safe and return the folder's name; that at multiples of
    8 where a busy machine left too many ranks undecided."""
    try:
        compress(PLANNED, source=cliff_map)
    except gacprof.GacprofError as error:
        say(f"{PLANNED}: the map decides too little, multiples of 8 instead ({error})")
        return BY_LOSS
    return PLANNED


def write_texts(folder: Path) -> tuple[Path, Path]:
    """Write a text to calibrate on and one to evaluate on: this Python's language reference, which
    is wherever Python is, every second topic each.

    Topics quote one another: a paragraph of the first text is left out of the second.
    """
    calibration = paragraphs(0)
    evaluation = [text for text in paragraphs(1) if text not in set(calibration)]
    paths = folder / "calibration.txt", folder / "evaluation.txt"
    for path, texts in zip(paths, (calibration, evaluation), strict=True):
        path.write_text("\n\n".join(texts), encoding="utf-8")
    return paths


def paragraphs(first: int) -> list[str]:
    """The paragraphs of every second topic, from one of them on."""
    texts = [topics[name] for name in sorted(topics)[first::2]]
    return [paragraph.strip() for text in texts for paragraph in text.split("\n\n")]


def fresh_folder(folder: Path) -> Path:
    """Make an empty folder that is marked as a demo's; only such a one is ever removed."""
    if folder.exists() and not (folder / MARKER).is_file():
        raise gacprof.GacprofError(f"{folder} exists and holds no demo: name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    return folder


def file_name(result: Any) -> str:
    return f"{type(result).__name__.lower()}.json"


def save(folder: Path, result: Any) -> None:
    """Write a result as its verb prints it with ``--json``."""
    write_record(folder / file_name(result), result)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
