"""The solver beside HiGHS, OR-Tools CP-SAT and the paper's dynamic programming, in one run.

    pip install "gacprof[bench]"
    python benchmarks/solver.py [--limit 20] [--models 8B 70B 405B MoE] [--part one two hard more]

Instances: the linear layers of Llama-3 8B, 70B, 405B and of a mixture of experts with 46,380 of
them, each a factor pair of rank d, d·(in + out) parameters, with d* around 55 % of dense. "w64":
up to 64 ranks, multiples of 8, between d*/2 and 2d*; "s4": the four multiples of 8 around d*.
Values: (a) Eq. 4 with random scores, (b) tail energy of a decaying spectrum per layer. Two
resources: latency in µs, limited so that both bind. "layers": each layer has a speed of its own,
0.5 to 1.5 times the usual. The hard ones, where both resources nearly measure the same: "noise",
proportional to the parameters but for 15 % where 16 does not divide d and 2 % of noise for every
candidate; "stairs", the same for all ranks of a tile of 64 and for all layers of one shape.

Ours is the best of several runs, the others run once, in a process of their own that is ended
after --limit seconds; a solver that returns what it has within the limit is shown with its gap.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gacprof.solver import solve, solve_gac

ATTENTION_8B = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)]
ATTENTION_70B = [(8192, 8192), (1024, 8192), (1024, 8192), (8192, 8192)]
ATTENTION_405B = [(16384, 16384), (1024, 16384), (1024, 16384), (16384, 16384)]
EXPERT = [(2048, 7168), (2048, 7168), (7168, 2048)]
MODELS = {  # layers, (out, in) of each linear layer; config.json of the Llama-3 checkpoints
    "8B": (32, [*ATTENTION_8B, (14336, 4096), (14336, 4096), (4096, 14336)]),
    "70B": (80, [*ATTENTION_70B, (28672, 8192), (28672, 8192), (8192, 28672)]),
    "405B": (126, [*ATTENTION_405B, (53248, 16384), (53248, 16384), (16384, 53248)]),
    "MoE": (60, [(7168, 7168), (1536, 7168), *(EXPERT * 257)]),
}
PARTS = ("one", "two", "hard", "more")
Result = dict[str, Any]


class Instance:
    """Costs, values and latencies of one model, window and objective, with budget and limit."""

    def __init__(
        self, model: str, window: str, objective: str, latency: str = "layers", seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        layers, shapes = MODELS[model]
        self.name = f"{model} {window} {objective}"
        self.costs: list[Any] = []
        self.values: list[Any] = []
        self.latency: list[Any] = []
        dense = 0
        for rows, columns in shapes * layers:
            full, unit = min(rows, columns), rows + columns
            dense += rows * columns
            star = min(0.95 * full, 0.55 * rows * columns / unit * rng.uniform(0.7, 1.3))
            ranks = _window(window, star, full)
            cost = ranks * unit
            self.costs.append(cost)
            self.values.append(_values(rng, objective, cost, ranks, star * unit, full))
            tiles = _tiles(ranks, latency, rng)
            tail = np.where(ranks % 16, 1.15, 1.0)
            self.latency.append(np.round((3.0 + tiles * unit * 6e-5) * tail, 3))
        low, high = (sum(int(f(c)) for c in self.costs) for f in (np.min, np.max))
        self.budget = int(0.55 * dense) if window == "w64" else (low + high) // 2
        self.budget = min(max(self.budget, low), high)
        self.unit = 8 * min(rows for rows, _ in shapes)  # the paper's u = 8 · M_min
        self.limit: float | None = None

    def limited(self) -> Instance:
        """With a latency limit a little under what the best choice for the budget alone takes."""
        free = solve(self.values, [(self.costs, self.budget)])
        taken = math.fsum(self.latency[i][j] for i, j in enumerate(free.choice))
        fastest = math.fsum(row.min() for row in self.latency)
        self.limit = taken - 0.02 * (taken - fastest)
        return self

    @property
    def limits(self) -> list[tuple[Any, float]]:
        time = [] if self.limit is None else [(self.latency, self.limit)]
        return [(self.costs, self.budget), *time]


def _tiles(ranks: Any, latency: str, rng: np.random.Generator) -> Any:
    if latency == "stairs":
        return np.ceil(ranks / 64)
    if latency == "noise":
        return ranks / 64 * rng.normal(1, 0.02, len(ranks))
    return ranks / 64 * rng.uniform(0.5, 1.5)


def _window(window: str, star: float, full: int) -> Any:
    if window == "s4":
        below = int(star // 8) * 8
        return np.array([d for d in range(below - 8, below + 17, 8) if 8 <= d <= full])
    low, high = star / 2, min(2 * star, full)
    step = max(8, math.ceil((high - low) / 64 / 8) * 8)
    return np.arange(math.ceil(low / step) * step, high + 1e-9, step)[:64].astype(np.int64)


def _values(
    rng: np.random.Generator, objective: str, cost: Any, ranks: Any, cost_star: float, full: int
) -> Any:
    if objective == "a":
        return rng.uniform(0.1, 1) * (cost - cost_star)
    decay, scale, fall = rng.uniform(0.3, 1.2), rng.lognormal(0, 0.7), rng.uniform(0, 2)
    k = np.arange(full)
    energy = scale * (k + 1.0) ** (-2 * decay) * np.exp(-fall * k / full)
    kept = np.concatenate([[0.0], np.cumsum(energy)])
    return kept[ranks] - kept[-1]


def ours(instance: Instance, rounds: int) -> Result:
    best, solution = math.inf, None
    for _ in range(rounds):
        started = time.perf_counter()
        solution = solve(instance.values, instance.limits)
        best = min(best, time.perf_counter() - started)
    tracemalloc.start()
    solve(instance.values, instance.limits)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert solution is not None
    return {"seconds": best, "proved": solution.proved, "value": solution.value, "peak": peak}


def highs(instance: Instance, limit: float) -> Result:
    import highspy

    costs, values = np.concatenate(instance.costs), np.concatenate(instance.values)
    classes, items = len(instance.costs), len(costs)
    owner = np.repeat(np.arange(classes), [len(c) for c in instance.costs])
    rows = [costs.astype(float)]
    upper = [float(instance.budget)]
    if instance.limit is not None:
        rows.append(np.concatenate(instance.latency))
        upper.append(instance.limit)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = items, classes + len(rows)
    lp.col_cost_ = -values
    lp.col_lower_, lp.col_upper_ = np.zeros(items), np.ones(items)
    lp.row_lower_ = np.concatenate([np.ones(classes), np.full(len(rows), -highspy.kHighsInf)])
    lp.row_upper_ = np.concatenate([np.ones(classes), upper])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(items + 1) * (1 + len(rows))
    index = np.column_stack([owner, *(np.full(items, classes + k) for k in range(len(rows)))])
    lp.a_matrix_.index_ = index.ravel()
    lp.a_matrix_.value_ = np.column_stack([np.ones(items), *rows]).ravel()
    lp.integrality_ = [highspy.HighsVarType.kInteger] * items
    solver = highspy.Highs()
    for option, setting in (
        ("output_flag", False),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.0),
        ("time_limit", limit),
    ):
        solver.setOptionValue(option, setting)
    started = time.perf_counter()
    solver.passModel(lp)
    solver.run()
    seconds = time.perf_counter() - started
    found = solver.getInfo()
    proved = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return {"seconds": seconds, "proved": proved, "value": -found.objective_function_value}


def cp_sat(instance: Instance, limit: float) -> Result:
    """Integers only: values (and latencies) are rounded to 10^9 steps of their range."""
    from ortools.sat.python import cp_model

    values = np.concatenate(instance.values)
    scale = 1e9 / max(float(np.abs(values).max()), 1e-300)
    started = time.perf_counter()
    model = cp_model.CpModel()
    goal, cost, slow = [], [], []
    for i, row in enumerate(instance.costs):
        picks = [model.new_bool_var("") for _ in row]
        model.add_exactly_one(picks)
        goal += [
            int(v) * x for v, x in zip(np.rint(instance.values[i] * scale), picks, strict=True)
        ]
        cost += [int(c) * x for c, x in zip(row, picks, strict=True)]
        whole = np.ceil(instance.latency[i] * 1000 - 1e-6)
        slow += [int(t) * x for t, x in zip(whole, picks, strict=True)]
    model.add(sum(cost) <= instance.budget)
    if instance.limit is not None:
        model.add(sum(slow) <= math.floor(instance.limit * 1000 + 1e-6))
    model.maximize(sum(goal))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(1.0, limit - (time.perf_counter() - started))
    status = solver.solve(model)
    seconds = time.perf_counter() - started
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return {"seconds": seconds, "proved": False, "value": -math.inf}
    return {
        "seconds": seconds,
        "proved": status == cp_model.OPTIMAL,
        "value": solver.objective_value / scale,
    }


def paper(instance: Instance, limit: float) -> Result:
    started = time.perf_counter()
    found = solve_gac(instance.costs, instance.values, instance.budget, instance.unit)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "proved": None, "value": found.value, "overrun": found.overrun}


def apart(solver: Callable[[Instance, float], Result], instance: Instance, limit: float) -> Result:
    """In a process of its own, ended a little after the limit."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_child, args=(solver, instance, limit, queue))
    process.start()
    process.join(1.5 * limit + 5)
    if process.is_alive():
        process.kill()
        process.join()
        return {"failed": f"> {1.5 * limit:.0f} s"}
    return queue.get() if not queue.empty() else {"failed": "died"}


def _child(solver: Any, instance: Instance, limit: float, queue: Any) -> None:
    try:
        queue.put(solver(instance, limit))
    except ImportError:
        queue.put({"failed": "not installed"})
    except Exception as error:
        queue.put({"failed": str(error).split(":")[0]})


def shown(result: Result, best: float) -> str:
    """Time if proved; else what was missing from the best value when the time was over."""
    if "failed" in result:
        return str(result["failed"])
    text = _seconds(result["seconds"])
    short = (best - result["value"]) / abs(best)
    if result["proved"]:
        return text + (f", {short:.0e} off" if abs(short) > 1e-8 else "")
    if result.get("overrun"):
        return f"{text}, {result['overrun']:,} over budget"
    if result["proved"] is None:
        return text + (f", {short:.0e} off" if abs(short) > 1e-12 else "")
    missing = f"{short:.0e} off" if math.isfinite(short) else "nothing"
    return f"{text} unproved, {missing if short > 1e-12 else 'best found'}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def table(models: list[str], limit: float, latency: str | None, *, others: bool = True) -> None:
    """One row an instance; with ``others``, or alone."""
    others: list[tuple[str, Callable[[Instance, float], Result]]] = []
    if others:
        others = [("HiGHS, gap 0", highs), ("CP-SAT", cp_sat)]
        others += [] if latency else [("paper's DP", paper)]
    heads = ["instance", "classes × candidates", "ours", "memory", *(name for name, _ in others)]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for model in models:
        for window in ("w64", "s4"):
            for objective in ("a", "b"):
                instance = Instance(model, window, objective, latency or "layers")
                if latency:
                    instance.limited()
                mine = ours(instance, rounds=3 if model == "MoE" or not others else 9)
                items = sum(len(row) for row in instance.costs)
                proof = "" if mine["proved"] else " unproved"
                cells = [
                    instance.name,
                    f"{len(instance.costs):,} × {items / len(instance.costs):.0f}",
                    f"**{_seconds(mine['seconds'])}**{proof}",
                    f"{mine['peak'] / 2**20:.0f} MB",
                    *(shown(apart(p, instance, limit), mine["value"]) for _, p in others),
                ]
                print(f"| {' | '.join(cells)} |", flush=True)


def more() -> None:
    """Many budgets."""
    print("| | points | time |\n|---|---|---|")
    instance = Instance("8B", "w64", "b")
    budgets = np.linspace(*(sum(int(f(c)) for c in instance.costs) for f in (np.min, np.max)), 200)
    best = math.inf
    for _ in range(3):
        started = time.perf_counter()
        proved = [solve(instance.values, [(instance.costs, int(b))]).proved for b in budgets]
        best = min(best, time.perf_counter() - started)
    print(f"| exact budgets, 8B w64 b | {sum(proved)} of 200 proved | {_seconds(best)} |")


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    for name in ("highspy", "ortools"):
        try:
            from importlib.metadata import version

            versions.append(f"{name} {version(name)}")
        except ImportError:
            versions.append(f"no {name}")
    return f"{model}, {os.cpu_count()} cores; {', '.join(versions)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each other solver")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    print(f"{machine()}. Limit for the others: {given.limit:.0f} s.\n")
    if "one" in given.part:
        print("One resource:\n")
        table(given.models, given.limit, None)
    if "two" in given.part:
        print("\nTwo resources, layers of different speed:\n")
        table(given.models, given.limit, "layers")
    if "hard" in given.part:
        for latency in ("noise", "stairs"):
            print(f"\nTwo resources, latencies with {latency}:\n")
            table(given.models, given.limit, latency, others=False)
    if "more" in given.part:
        print("\nMany at once:\n")
        more()


if __name__ == "__main__":
    main()
