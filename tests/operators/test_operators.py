"""Each operator computes what it says, and counts its work."""

import pytest
import torch

from gacprof import operators
from gacprof.core.errors import SuiteError

CPU = torch.device("cpu")


def test_points_are_spelt_out_and_equal_however_written():
    a = operators.point("linear", {"M": 4, "N": 8, "K": 16}, "float32")
    b = operators.point("linear", {"K": 16, "N": 8, "M": 4}, "float32", {"cache": "warm"})
    assert a == b and a.id == b.id
    assert a.flag == {"bias": False, "cache": "warm", "layout": "tn"}
    assert len({a.id, a.with_dim("K", 17).id}) == 2


@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_gives_m_by_n_and_counts_two_mnk(layout, bias):
    point = operators.point(
        "linear", {"M": 3, "N": 5, "K": 7}, "float32", {"bias": bias, "layout": layout}
    )
    kind = operators.get("linear")
    assert kind.prepare(point, CPU)().shape == (3, 5)
    assert kind.flops(point) == 2 * 3 * 5 * 7
    assert kind.bytes_moved(point) == 4 * (3 * 7 + 5 * 7 + 3 * 5 + 5 * bias)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_operands_have_the_dtype_and_are_the_same_every_time(dtype):
    point = operators.point("linear", {"M": 2, "N": 3, "K": 4}, dtype)
    first, second = (operators.get("linear").prepare(point, CPU)() for _ in range(2))
    assert first.dtype == getattr(torch, dtype)
    assert torch.equal(first, second)
    assert first.abs().max() > 0


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"causal": True},
        {"mask": "float"},
        {"mask": "bool"},
        {"backend": "math"},
    ],
)
def test_attention_runs_with_grouped_heads(flags):
    dims = {"heads": 4, "kv_heads": 2, "q_len": 8, "head_dim": 12}
    point = operators.point("attention", dims, "float32", flags)
    out = operators.get("attention").prepare(point, CPU)()
    assert out.shape == (1, 4, 8, 12)
    assert torch.isfinite(out).all()


def test_both_masks_hide_the_same_keys():
    dims = {"heads": 1, "q_len": 16, "head_dim": 8}
    outs = [
        operators.get("attention").prepare(
            operators.point("attention", dims, "float32", {"mask": mask}), CPU
        )()
        for mask in ("none", "float", "bool")
    ]
    assert torch.allclose(outs[1], outs[2], atol=1e-6)
    assert not torch.allclose(outs[0], outs[1], atol=1e-3)


def test_attention_counts_its_work():
    dims = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 8, "kv_len": 16, "head_dim": 12}
    point = operators.point("attention", dims, "float16")
    kind = operators.get("attention")
    assert kind.flops(point) == 2 * 2 * 2 * 4 * 8 * 16 * 12
    assert kind.bytes_moved(point) == 2 * 2 * (2 * 4 * 8 + 2 * 2 * 16) * 12


@pytest.mark.parametrize(
    ("name", "dims", "dtype", "flags", "told"),
    [
        ("linear", {"M": 1, "N": 1}, "float32", {}, "needs a size for its dim 'K'"),
        ("linear", {"M": 1, "N": 1, "K": 2**31}, "float32", {}, "from 1 to"),
        ("linear", {"M": 1, "N": 1, "K": True}, "float32", {}, "must be an integer"),
        ("linear", {"M": 1, "N": 1, "K": 1}, "float13", {}, "no dtype 'float13'"),
        ("linear", {"M": 1, "N": 1, "K": 1}, "float32", {"bias": 1}, "flag 'bias'"),
        (
            "attention",
            {"heads": 3, "kv_heads": 2, "q_len": 1, "head_dim": 8},
            "float32",
            {},
            "not a multiple of kv_heads",
        ),
        (
            "attention",
            {"heads": 1, "q_len": 4, "head_dim": 8},
            "float32",
            {"causal": True, "mask": "bool"},
            "not both",
        ),
        ("nonesuch", {}, "float32", {}, "unknown operator"),
    ],
)
def test_impossible_points_are_refused_with_the_reason(name, dims, dtype, flags, told):
    with pytest.raises(SuiteError, match=told):
        operators.point(name, dims, dtype, flags)
