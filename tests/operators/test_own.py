"""A user's function as an operator: swept, mapped, in workers too."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

import gacprof
from gacprof import operators
from gacprof.core.errors import SuiteError
from gacprof.operators import OPERATORS
from gacprof.operators.own import OwnOperator, own_operators, register_pickled
from gacprof.sweeping.suite import parse_suite


@pytest.fixture(autouse=True)
def restored():
    before = dict(OPERATORS)
    yield
    OPERATORS.clear()
    OPERATORS.update(before)


def scaled() -> OwnOperator:
    @gacprof.operator(x=("rows", "K"), w=("K",), weights=["w"], flops=lambda rows, K: rows * K)
    def scaled(x, w):
        """Each column by its weight."""
        return x * w

    return scaled


def test_it_computes_counts_and_stays_callable():
    made = scaled()
    assert made.dims == ("rows", "K") and made.__doc__ == "Each column by its weight."
    point = operators.point("scaled", {"rows": 3, "K": 5}, "float32")
    prepared = operators.get("scaled").prepare(point, torch.device("cpu"))
    x, w = prepared.operands
    assert torch.equal(prepared(), x * w) and prepared.inputs == (0,) and prepared.weights == (1,)
    assert made.flops(point) == 15 and made.bytes_moved(point) == 4 * (15 + 5)
    assert torch.equal(made(x, w), x * w)


def test_a_numpy_function_gets_arrays():
    import numpy as np

    @gacprof.operator(x=("K", 4), numpy=True)
    def total(x):
        assert isinstance(x, np.ndarray) and x.shape == (6, 4)
        return x.sum()

    point = operators.point("total", {"K": 6}, "float32")
    assert np.isfinite(operators.get("total").prepare(point, torch.device("cpu"))())


def test_its_suite_is_checked_as_any_other():
    made = scaled()
    suite = parse_suite(made.over("K", range(64, 67), rows=[2, 4]), "a test")
    assert [len(curve.points) for curve in suite.curves("cpu")] == [3, 3]
    with pytest.raises(SuiteError, match="axis 'N' is no dim of 'scaled'"):
        parse_suite(made.over("N", [1, 2], rows=1, K=2), "a test").curves("cpu")
    with pytest.raises(SuiteError, match="needs a size for its dim 'rows'"):
        parse_suite(made.over("K", [1, 2]), "a test").curves("cpu")


def test_names_and_shapes_that_are_none_are_refused():
    with pytest.raises(SuiteError, match="'linear' is an operator of gacprof's own"):
        gacprof.operator(name="linear", x=("K",))(torch.relu)
    with pytest.raises(SuiteError, match="the shape of x is 'K'"):
        gacprof.operator(x="K")(torch.relu)
    with pytest.raises(SuiteError, match="has no dim"):
        gacprof.operator()(torch.relu)
    with pytest.raises(SuiteError, match="no operand 'w'"):
        gacprof.operator(x=("K",), weights=["w"])(torch.relu)


def test_it_travels_to_a_worker_by_value():
    scaled()
    sent = own_operators()
    del OPERATORS["scaled"]
    assert own_operators() == b""
    register_pickled(b"")
    register_pickled(sent)
    assert OPERATORS["scaled"].dims == ("rows", "K")


def test_what_cannot_be_sent_is_said():
    import threading

    lock = threading.Lock()

    @gacprof.operator(x=("K",))
    def locked(x):
        with lock:
            return x

    with pytest.raises(SuiteError, match="isolate=False"):
        own_operators()


def test_a_script_sweeps_its_own_function_in_workers(tmp_path):
    """As a user has it: ten lines in a file, the function defined in __main__."""
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import torch
            import gacprof

            @gacprof.operator(x=("M", "K"), w=("N", "K"))
            def gelu_linear(x, w):
                return torch.nn.functional.gelu(x @ w.T)

            suite = gelu_linear.over("K", range(64, 72), M=16, N=32)
            suite["timing"] = {{"blocks": 6, "most_blocks": 6, "processes": 1}}
            gacprof.sweep(suite, device="cpu", out={str(tmp_path / "run")!r})
            curve = gacprof.build_map({str(tmp_path / "run")!r}).curve("gelu_linear", "K")
            print(curve.points.d, curve.fixed)
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[0] == f"{list(range(64, 72))} {{'M': 16, 'N': 32}}", done.stderr
