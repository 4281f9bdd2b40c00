"""One command that measures a device and writes it up: map, tables, figures, disputes, models.

    python reports/paper/survey.py --device cuda:0 --out DIR --budget 8m [--resume]

A second call with --resume goes on where the first stopped, and deepens what is thin. See
README.md beside this file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from condition import look
from disputes import chosen, measure, settle
from disputes import write as write_disputes
from end_to_end import EndToEnd, results
from figures import draw_all
from llama import LLAMA_3_8B, LLAMA_3_8B_EIGHTH, Shape
from prediction import FILE as PREDICTION
from prediction import compare
from steps import Clock, SkippedError, Step, begin, read_json, read_log, run_steps
from tables import PUBLISHED, TABLES, write_beside
from typer import Option
from variants import Variant, all_variants, candidate_suite, shapes_suite

import gacprof
from gacprof.cli.app import main
from gacprof.cli.printing import progress, say
from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.storage import map_facts
from gacprof.core import Progress
from gacprof.core.files import write_json, write_text
from gacprof.core.formatting import percent
from gacprof.core.points import Environment, Point
from gacprof.core.texts import budget_seconds
from gacprof.devices.doctor import examine
from gacprof.devices.opening import device_name, open_device
from gacprof.explaining.annotate import edge_points
from gacprof.extras.evidence.collecting import collect
from gacprof.kernels.evidence import read_counters, write_counters
from gacprof.reporting.tables import Column, Table, render
from gacprof.sweeping import Suite, load_suite, read_blocks
from gacprof.sweeping.store import read_notes

MAP, VARIANTS, DOCTOR, REPORT = (
    "cliffmap.json", "variants.json", "doctor.json", "evidence/edges.ncu-rep",
)  # fmt: skip
DEFAULT_SUITES = {"cuda": "full", "cpu": "cpu"}
MOST_POINTS = 48
"""Profiling replays every kernel many times: about a second a point, and the report stays small."""
LONGEST_S = 900.0
FILES = {
    "index.html": "the map, with figures",
    "tables.md": "the papers' tables, beside the published A100 and H100",
    "figures": "the papers' figures",
    "disputes.md": "what the papers disagree about",
    "end_to_end.md": "whole models, predicted against measured",
    MAP: "the cliff map; its samples are in sweeps/suite",
    REPORT: "Nsight Compute's counters at the cliffs' edges",
    DOCTOR: "what could be measured here, and the device's state at each look",
}


@dataclass
class Survey:
    """One call. ``device`` is swept, the models run on ``models_on``."""

    folder: Path
    device: str
    environment: Environment
    suite: Suite
    shape: Shape
    models_on: str
    clock: Clock
    tell: Callable[[str], None] = print
    progress: Progress = lambda done, total, what: None

    @cached_property
    def steps(self) -> list[Step]:
        """In order, each with the share of the budget by which it should have ended."""
        return [
            Step("doctor", 0.02, self.doctor),
            Step("candidates", 0.16, self.candidates),
            Step("sweep", 0.50, self.sweep),
            Step("map", 0.52, self.map),
            Step("shapes", 0.62, self.shapes),
            Step("tables", 0.63, self.tables),
            Step("figures", 0.64, self.figures),
            Step("disputes", 0.67, self.disputes),
            Step("counters", 0.75, self.counters),
            Step("end_to_end", 0.98, self.end_to_end),
            Step("prediction", 0.99, self.prediction),
            Step("page", 1.0, self.page),
        ]

    def run(self) -> bool:
        """All steps, then README.md, also after an interrupt; false where a step failed."""
        try:
            run_steps(self.steps, self.folder, self.clock, self.tell)
        finally:
            self._write_readme()
        steps = read_log(self.folder)["steps"].values()
        return all(step["status"] != "failed" for step in steps)

    def doctor(self) -> str:
        checks = examine()
        write_json(self.folder / DOCTOR, self._known | {"checks": [c.as_dict() for c in checks]})
        lacking = [f"{c.name}: {c.note}" for c in checks if c.available is False]
        return "; ".join([*self._look(), *lacking]) or "nothing is known to spoil timings"

    @property
    def _known(self) -> dict[str, Any]:
        """``looks`` at the device so far, and the ``checks``."""
        path = self.folder / DOCTOR
        return read_json(path, "checks", "looks") if path.exists() else {"looks": []}

    def _look(self) -> list[str]:
        """What the device suffers from now; a device may change under a long survey."""
        found, known = look(self.device), self._known
        known["looks"].append({"at": time.time(), "findings": [asdict(f) for f in found]})
        write_json(self.folder / DOCTOR, known)
        return [finding.words for finding in found if finding.mark]

    def candidates(self) -> str:
        return self._sweep("candidates", candidate_suite(self.shape))

    def sweep(self) -> str:
        said = self._sweep("suite", self.suite)
        return "; ".join([said, *(f"after it: {words}" for words in self._look())])

    def _sweep(self, name: str, suite: Suite) -> str:
        """Begin the sweep of that name, or go on with it, for the time that is left."""
        folder, left = self.folder / "sweeps" / name, self.clock.left_s()
        if self.clock.is_up:
            raise SkippedError(f"the time was up before the sweep of {name}: go on with --resume")
        done = gacprof.sweep(
            suite, device=self.device, out=folder,
            resume=folder.is_dir() and any(folder.iterdir()),
            budget_s=left, progress=self.progress,
        )  # fmt: skip
        parts = [f"{done.blocks} blocks, {done.calls} calls so far in {name}"]
        if done.unfinished:
            parts.append(f"{done.unfinished} curves are not finished: the time was up")
        failed = [note.failed for note in read_notes(folder).values() if note.failed]
        if failed:
            parts.append(f"{len(failed)} points failed, the first: {failed[0]}")
        return "; ".join(parts)

    def _map_of(self, name: str) -> CliffMap:
        samples = self.folder / "sweeps" / name
        if not samples.exists() or not read_blocks(samples):
            raise SkippedError(f"the sweep of {name} measured nothing yet: go on with --resume")
        return gacprof.build_map(samples)

    def map(self) -> str:
        made = self._map_of("suite")
        made.save(self.folder / MAP)
        facts = map_facts(made.file)
        return (
            f"{facts.curves} curves, {facts.points} points, {facts.cliffs} cliffs, "
            f"{facts.undecided} dims undecided; A/A floor {percent(made.floor) or 'unknown'}"
        )

    def shapes(self) -> str:
        """Our plan, then every product of every variant. A plan is made once; where the samples
        did not carry one, a later call tries again."""
        path = self.folder / VARIANTS
        if not path.exists() or read_json(path, "unplanned")["unplanned"]:
            variants, unplanned = all_variants(self.shape, self._map_of("candidates"))
            plain = [asdict(variant) for variant in variants]
            write_json(path, {"variants": plain, "unplanned": unplanned})
        said = self._sweep(f"shapes-{self._plan}", shapes_suite(self.shape, self._variants()))
        return "; ".join([said, *read_json(path, "unplanned")["unplanned"]])

    def _variants(self) -> list[Variant]:
        if not (self.folder / VARIANTS).exists():
            raise SkippedError("there are no variants yet: the candidates left no map")
        return [Variant(**v) for v in read_json(self.folder / VARIANTS, "variants")["variants"]]

    @property
    def _plan(self) -> str:
        """Another plan has other shapes, and its sweep and models another folder."""
        return shapes_suite(self.shape, self._variants()).hash[:8]

    @property
    def cliff_map(self) -> CliffMap:
        if not (self.folder / MAP).exists():
            raise SkippedError("there is no map yet: the sweep left nothing to build one from")
        return CliffMap.load(self.folder / MAP)

    def tables(self) -> str:
        filled = write_beside(self.cliff_map, [CliffMap.load(p) for p in PUBLISHED], self.folder)
        return f"{filled} of {len(TABLES)} tables have rows of this device"

    def figures(self) -> str:
        drawn, missing = draw_all(self.cliff_map, self.folder / "figures")
        return "; ".join([f"{len(drawn)} figures", *missing])

    def disputes(self) -> str:
        """The experiments on a GPU; anywhere those that need none."""
        results = None
        if self._is_gpu:
            if self.clock.is_up:
                raise SkippedError("the time was up: go on with --resume")
            folder = self.folder / "sweeps" / "disputes"
            results = measure(chosen(), self.device, folder, self.clock.left_s(), self.progress)
        verdicts = settle(results=results)
        write_disputes(self.folder, verdicts, f"{self.environment.name} ({self.environment.arch})")
        counts = Counter(verdict.status for verdict in verdicts)
        return ", ".join(f"{count} {status}" for status, count in counts.items())

    def counters(self) -> str:
        """Nsight Compute at the steepest cliffs, and the map's causes from what it counts."""
        samples, points = self.folder / "sweeps" / "suite", edges(self.cliff_map)
        if not self._is_gpu:
            raise SkippedError("counters are a GPU's: not measured on a CPU")
        if not points:
            raise SkippedError("the map has no cliffs to look into")
        known, problem = read_counters(samples), ""
        if not known.keys() >= set(points):
            left = self.clock.left_s()
            longest_s = LONGEST_S if left is None else min(LONGEST_S, left)
            if longest_s < 1:
                raise SkippedError("the time was up")
            index = int(self.device.partition(":")[2] or 0)
            found = collect(points, self.folder / REPORT, longest_s, index)
            known |= {p: found.counters[p.id] for p in points if p.id in found.counters}
            problem = found.problem
            if not known:
                raise SkippedError(problem)
            write_counters(samples, known)
            self.map()
        counted = sum(point in known for point in points)
        said = f"{counted} of {len(points)} edge points have counters"
        return "; ".join(filter(None, [said, problem]))

    def end_to_end(self) -> str:
        folder = self.folder / "models" / self._plan
        models = EndToEnd(
            folder, self.models_on, self.shape, self._variants(), self.clock, self.progress
        )
        said = models.measure()
        return "; ".join([said, *(f"after it: {words}" for words in self._look())])

    def prediction(self) -> str:
        timed = results(self.folder / "models" / self._plan)
        if not timed:
            raise SkippedError("no model was timed end to end")
        shapes = self._map_of(f"shapes-{self._plan}")
        return "; ".join(compare(timed, self.shape, self._variants(), shapes, self.folder))

    def page(self) -> str:
        if not (self.folder / MAP).exists():
            raise SkippedError("there is no map yet")
        title = f"gacprof survey: {self.environment.name}"
        page = gacprof.report(out=self.folder, cliff_map=self.folder / MAP, title=title)
        return page.name

    @property
    def _is_gpu(self) -> bool:
        return self.environment.kind == "cuda"

    def _write_readme(self) -> None:
        """What the folder holds, how the device was, what every step came to."""
        here, log = self.environment, read_log(self.folder)
        stack = ", ".join(f"{name} {version}" for name, version in here.stack.items() if version)
        said = {f["words"] for entry in self._known["looks"] for f in entry["findings"]}
        rows = tuple((n, s["status"], s["seconds"], s["note"]) for n, s in log["steps"].items())
        columns = (Column("step"), Column("status"), Column("seconds", 0), Column("what of it"))
        path = self.folder / PREDICTION
        lines = [
            f"# {here.name}",
            f"{here.arch}; {stack}; suite {self.suite.name}.",
            "## State of the device, at each look",
            "\n".join(f"- {words}" for words in sorted(said)) or "not looked at",
            "## Whole models, predicted against measured",
            "\n".join(f"- {line}" for line in read_json(path)["headlines"])
            if path.exists()
            else "not measured",
            "## Files",
            "\n".join(
                f"- [{name}]({name}): {what}"
                for name, what in FILES.items()
                if (self.folder / name).exists()
            ),
            "## Steps",
            render(Table("", "seconds are of the last call", columns, rows)),
        ]
        write_text(self.folder / "README.md", "\n\n".join(lines))


def edges(cliff_map: CliffMap) -> list[Point]:
    """The edges of the curves with the steepest cliffs first, no point twice."""
    cut = [curve for curve in cliff_map.curves if curve.cliffs]
    cut.sort(key=lambda curve: max(abs(cliff.jump) for cliff in curve.cliffs), reverse=True)
    return list(dict.fromkeys(p for curve in cut for p in edge_points(curve)))[:MOST_POINTS]


script = typer.Typer(name="survey.py", add_completion=False, rich_markup_mode=None)


@script.command(help=__doc__)
def survey(
    out: Annotated[Path, Option(help="The survey's folder.")],
    device: Annotated[
        str | None, Option(help="cpu, cuda or cuda:N. Default: the first GPU.")
    ] = None,
    budget: Annotated[
        float | None, Option(parser=budget_seconds, metavar="8m", help="How long it may take.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the survey in --out.")] = False,
    suite: Annotated[
        str | None, Option(help="A suite's name or TOML file. Default: full, on a CPU cpu.")
    ] = None,
) -> None:
    clock, name = Clock(budget), device_name(device)
    with open_device(name) as opened:
        here = opened.environment
    begun = read_log(out)["about"] if resume else {}
    suite = suite or begun.get("suite") or DEFAULT_SUITES[here.kind]
    loaded = load_suite(suite)
    loaded.points(here.kind)  # refused now rather than later
    about = {"suite": suite, "suite_hash": loaded.hash, "device": here.name, "arch": here.arch}
    begin(out, about | {"stack": here.stack}, resume)
    shape = LLAMA_3_8B if here.kind == "cuda" else LLAMA_3_8B_EIGHTH
    with progress("survey") as advance:
        if not Survey(out, name, here, loaded, shape, name, clock, say, advance).run():
            raise typer.Exit(1)


if __name__ == "__main__":
    main(script)
