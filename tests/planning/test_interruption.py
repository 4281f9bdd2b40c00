"""A long search can be ended: what it has found is kept, with its gap, and said to be so."""

import json
import signal
import subprocess
import sys

import pytest
from planted import TOKENS

from gacprof.planning import Plan

STAGED = """
import sys, time
import gacprof.planning.solving as solving
solve = solving.solve

def slow(*arguments, progress=None, **options):
    def tell(value, bound, what):
        if progress:
            progress(value, bound, what)
        print("searching", flush=True, file=sys.stderr)
        time.sleep(60)
    return solve(*arguments, progress=tell, **options)

solving.solve = slow
from gacprof.cli import main
main()
"""
"""The real search, made to last: it pauses whenever it tells of its progress."""


@pytest.fixture
def interrupt(asvd, planted_map, tmp_path):
    """Run ``gacprof plan`` on a search that lasts, and press Ctrl-C in the middle of it."""

    def run(*arguments):
        planted_map.save(tmp_path / "map.json")
        command = [
            sys.executable, "-c", STAGED, "plan", str(asvd), "--map", str(tmp_path / "map.json"),
            "--tokens", "1,64", "--out", str(tmp_path / "plan.json"), *arguments,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert process.stderr.readline() == "searching\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=50)
        return process.returncode, out, err

    return run


def test_ctrl_c_writes_the_best_plan_so_far_with_its_gap(interrupt, tmp_path):
    code, out, err = interrupt("--budget-params", "2700000", "--json")
    assert code == 130 and "Traceback" not in err and "interrupted" in err
    assert json.loads(out) == json.loads((tmp_path / "plan.json").read_text())
    made = Plan.load(tmp_path / "plan.json")
    proof = made.certificate
    assert proof.interrupted and not proof.proved
    assert proof.gap == pytest.approx(proof.bound - proof.value) and proof.gap >= 0
    assert made.budget.used <= made.budget.limit
    assert made.budget.checkpoint_after <= 2_700_000


def test_ctrl_c_ends_a_pareto_for_good(asvd, planted_map, monkeypatch):
    """The solver keeps what it has on Ctrl-C; many plans in a row must not go on to the next."""
    from gacprof.checkpoint import scan
    from gacprof.planning import solving
    from gacprof.planning.pareto import pareto

    solve, calls = solving.solve, []

    def pressed(value, bound, what):
        raise KeyboardInterrupt

    def interrupted(*arguments, progress=None, **options):
        calls.append(1)
        return solve(*arguments, progress=pressed if len(calls) > 2 else progress, **options)

    monkeypatch.setattr(solving, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pareto(scan(asvd), planted_map, tokens=TOKENS, budgets=9)
    assert len(calls) < 9
