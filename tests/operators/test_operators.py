"""Each operator computes what it says, at the cost it says; points are completed and checked."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Flag, Point
from gacprof.devices.memory import Arenas
from gacprof.operators import canonical

CPU = torch.device("cpu")


def prepared(point: Point) -> partial[Any]:
    """The point's call with operands, which are its ``args``."""
    complete = canonical(point)
    arenas = Arenas(CPU, memory_bytes=1 << 30)
    arenas.reserve(complete, reuse_bytes=0)
    call = operators.get(point.operator).call(complete, CPU)
    bound = arenas.bind(complete, call, replicate=False)
    assert isinstance(bound, partial)
    return bound


@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("offset", [0, 1])
def test_linear_multiplies_by_its_weight(layout: str, bias: bool, offset: int) -> None:
    flags: dict[str, Flag] = {"layout": layout, "bias": bias, "offset": offset}
    work = prepared(Point("linear", {"M": 5, "N": 6, "K": 7}, "float32", flags))
    x, weight, *rest = work.args
    expected = x @ (weight.T if layout == "tn" else weight) + sum(rest)
    torch.testing.assert_close(work(), expected)
    assert weight.storage_offset() == offset


@pytest.mark.parametrize("mask", ["none", "float", "bool"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_attention_is_a_softmax_over_keys(mask: str, layout: str) -> None:
    dims = {"heads": 4, "kv_heads": 2, "q_len": 5, "kv_len": 6, "head_dim": 8}
    work = prepared(Point("attention", dims, "float32", {"mask": mask, "layout": layout}))
    q, k, v, *masks = work.args
    if layout == "bshd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    scores = q @ k.transpose(2, 3) / 8**0.5
    if mask == "bool":
        scores = scores.masked_fill(~masks[0], float("-inf"))
    elif mask == "float":
        scores = scores + masks[0]
    torch.testing.assert_close(work(), scores.softmax(-1) @ v)


def test_a_forced_backend_is_the_one_that_serves() -> None:
    dims = {"heads": 2, "q_len": 5, "head_dim": 8}
    by_math = prepared(Point("attention", dims, "float32", {"backend": "math", "causal": True}))
    torch.testing.assert_close(
        by_math(), prepared(Point("attention", dims, "float32", {"causal": True}))()
    )
    with pytest.raises(RuntimeError):
        prepared(Point("attention", dims, "float32", {"backend": "cudnn"}))()


def test_int8_products_are_exact() -> None:
    work = prepared(Point("quantised", {"M": 32, "N": 16, "K": 24}, "int8"))
    x, weight = work.args
    assert torch.equal(work(), x.int() @ weight.int().T)


def test_flops_and_bytes_are_those_of_the_textbook() -> None:
    point = canonical(Point("linear", {"M": 3, "N": 5, "K": 7}, "bfloat16"))
    linear = operators.get("linear")
    assert linear.flops(point) == 2 * 3 * 5 * 7
    assert linear.bytes_moved(point) == 2 * (3 * 7 + 5 * 7 + 3 * 5)
    copy = canonical(Point("row_copy", {"rows": 3, "K": 5}, "float16"))
    assert operators.get("row_copy").bytes_moved(copy) == 2 * 2 * 15
    dims = {"heads": 2, "q_len": 4, "head_dim": 8}
    full = canonical(Point("attention", dims, "float16"))
    causal = canonical(Point("attention", dims, "float16", {"causal": True}))
    attention = operators.get("attention")
    assert attention.flops(full) == 4 * 2 * 4 * 4 * 8 == 2 * attention.flops(causal)


def test_a_canonical_point_spells_out_every_dim_and_flag() -> None:
    point = canonical(Point("attention", {"heads": 8, "q_len": 16, "head_dim": 64}, "float16"))
    assert point.dims["kv_heads"] == 8 and point.dims["kv_len"] == 16 and point.dims["batch"] == 1
    assert set(point.flags) == set(operators.get("attention").flags)
    assert canonical(point) == point


@pytest.mark.parametrize(
    "point",
    [
        Point("conv", {"M": 1}, "float16"),
        Point("linear", {"M": 1, "N": 1}, "float16"),
        Point("linear", {"M": 1, "N": 1, "K": 0}, "float16"),
        Point("linear", {"M": 1, "N": 1, "K": 1, "rank": 1}, "float16"),
        Point("linear", {"M": 1, "N": 1, "K": 1}, "int8"),
        Point("linear", {"M": 1, "N": 1, "K": 1}, "float16", {"bias": 1}),
        Point("attention", {"heads": 3, "kv_heads": 2, "q_len": 1, "head_dim": 8}, "float16"),
        Point("quantised", {"M": 1, "N": 1, "K": 1}, "int8", {"fast_accum": True}),
    ],
)
def test_a_point_that_no_operator_takes_is_refused(point: Point) -> None:
    with pytest.raises(MeasurementError):
        canonical(point)


def test_a_function_becomes_an_operator() -> None:
    @operators.operator(
        x=("M", "K"), w=("N", "K"), weights=("w",), flops=lambda M, N, K: 2 * M * N * K
    )
    def gelu_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w.T)

    point = canonical(Point("gelu_linear", {"M": 2, "N": 3, "K": 5}, "float32", {"cache": "cold"}))
    assert gelu_linear.flops(point) == 60
    work = prepared(point)
    torch.testing.assert_close(work(), gelu_linear(*work.args))
    with pytest.raises(MeasurementError):
        canonical(Point("gelu_linear", {"M": 2, "K": 4}, "float32"))
    with pytest.raises(MeasurementError):
        operators.operator(name="linear", x=("M",))(lambda x: x)


def test_suites_are_read_without_torch() -> None:
    code = "import sys, gacprof.operators; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
