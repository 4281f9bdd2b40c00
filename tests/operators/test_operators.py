"""Each operator computes what it says, and counts its work."""

import warnings

import pytest
import torch

from gacprof import operators
from gacprof.core.errors import MeasurementError, SuiteError
from gacprof.operators.attention import refusal

CPU = torch.device("cpu")


def test_points_are_spelt_out_and_equal_however_written():
    a = operators.point("linear", {"M": 4, "N": 8, "K": 16}, "float32")
    b = operators.point("linear", {"K": 16, "N": 8, "M": 4}, "float32", {"cache": "warm"})
    assert a == b and a.id == b.id
    assert a.flag == {"bias": False, "cache": "warm", "layout": "tn"}
    assert len({a.id, a.with_dim("K", 17).id}) == 2
    # a flag that came later changes no id
    assert operators.point("linear", {"M": 4, "N": 8, "K": 16}, "float32", {"offset": 0}) == a


def prepared(name, dims, dtype="float32", flags=None):
    point = operators.point(name, dims, dtype, flags)
    kind = operators.get(name)
    return kind.prepare(point, CPU), kind, point


@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_gives_m_by_n(layout, bias):
    flags = {"bias": bias, "layout": layout}
    assert prepared("linear", {"M": 3, "N": 5, "K": 7}, flags=flags)[0]().shape == (3, 5)


HEADS = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 8, "kv_len": 16, "head_dim": 12}


@pytest.mark.parametrize(
    ("name", "dims", "dtype", "flops", "moved"),
    [
        ("linear", {"M": 3, "N": 5, "K": 7}, "float32",
         2 * 3 * 5 * 7, 4 * (3 * 7 + 5 * 7 + 3 * 5)),
        ("bmm", {"batch": 3, "M": 2, "N": 5, "K": 4}, "float32",
         3 * 2 * 2 * 5 * 4, 4 * 3 * (2 * 4 + 4 * 5 + 2 * 5)),
        ("attention", HEADS, "float16",
         2 * 2 * 2 * 4 * 8 * 16 * 12, 2 * 2 * (2 * 4 * 8 + 2 * 2 * 16) * 12),
        ("experts", {"experts": 4, "tokens": 42, "N": 16, "K": 8}, "bfloat16",
         2 * 42 * 16 * 8, 2 * (42 * (8 + 16) + 4 * 8 * 16)),
        ("experts", {"experts": 64, "tokens": 2, "N": 4, "K": 8}, "bfloat16",  # those without
         2 * 2 * 4 * 8, 2 * (2 * 12 + 2 * 32)),  # tokens are not read
        ("quantised", {"M": 20, "N": 8, "K": 16}, "int8",
         2 * 20 * 8 * 16, 20 * 16 + 8 * 16 + 4 * 20 * 8),
        ("quantised", {"M": 16, "N": 32, "K": 64}, "float8_e4m3",
         2 * 16 * 32 * 64, (16 + 32) * 64 + 2 * 16 * 32),
        ("row_sum", {"rows": 1024, "K": 4000}, "float16",
         1024 * 4000, 2 * 1024 * 4000 + 4 * 1024),
        ("row_copy", {"rows": 1024, "K": 4000}, "float16", 0, 2 * 2 * 1024 * 4000),
    ],
)  # fmt: skip
def test_work_and_traffic_are_counted(name, dims, dtype, flops, moved):
    point, kind = operators.point(name, dims, dtype), operators.get(name)
    assert (kind.flops(point), kind.bytes_moved(point)) == (flops, moved)
    if name == "linear":
        biased = operators.point(name, dims, dtype, {"bias": True})
        assert kind.bytes_moved(biased) == moved + 4 * dims["N"]
    if name == "attention":
        assert kind.flops(operators.point(name, dims, dtype, {"causal": True})) == flops // 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_operands_have_the_dtype_and_are_the_same_every_time(dtype):
    dims = {"M": 2, "N": 3, "K": 4}
    first, second = (prepared("linear", dims, dtype)[0]() for _ in range(2))
    assert first.dtype == getattr(torch, dtype)
    assert torch.equal(first, second) and first.abs().max() > 0


@pytest.mark.parametrize("flags", [{}, {"causal": True}, {"mask": "float"}, {"backend": "math"}])
def test_attention_runs_with_grouped_heads(flags):
    dims = {"heads": 4, "kv_heads": 2, "q_len": 8, "head_dim": 12}
    out = prepared("attention", dims, flags=flags)[0]()
    assert out.shape == (1, 4, 8, 12) and torch.isfinite(out).all()


def test_both_masks_hide_the_same_keys():
    dims = {"heads": 1, "q_len": 16, "head_dim": 8}
    none, as_float, as_bool = (
        prepared("attention", dims, flags={"mask": mask})[0]() for mask in ("none", "float", "bool")
    )
    assert torch.allclose(as_float, as_bool, atol=1e-6)
    assert not torch.allclose(none, as_float, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "dims", "dtype", "flags", "message"),
    [
        ("linear", {"M": 1, "N": 1}, "float32", {}, "needs a size for its dim 'K'"),
        ("linear", {"M": 1, "N": 1, "K": 2**31}, "float32", {}, "from 1 to"),
        ("linear", {"M": 1, "N": 1, "K": True}, "float32", {}, "must be an integer"),
        ("linear", {"M": 1, "N": 1, "K": 1}, "float13", {}, "no dtype 'float13'"),
        ("linear", {"M": 1, "N": 1, "K": 1}, "float32", {"bias": 1}, "flag 'bias'"),
        ("attention", {"heads": 3, "kv_heads": 2, "q_len": 1, "head_dim": 8}, "float32", {},
         "not a multiple of kv_heads"),
        ("attention", {"heads": 1, "q_len": 4, "head_dim": 8}, "float32",
         {"causal": True, "mask": "bool"}, "not both"),
        ("nonesuch", {}, "float32", {}, "unknown operator"),
        ("linear", {"M": 1, "N": 1, "K": 1}, "float32", {"offset": 1, "cache": "cold"},
         "measured warm"),
        ("quantised", {"M": 16, "N": 32, "K": 64}, "int8", {"fast_accum": True}, "for float8"),
    ],
)  # fmt: skip
def test_impossible_points_are_refused_with_the_reason(name, dims, dtype, flags, message):
    with pytest.raises(SuiteError, match=message):
        operators.point(name, dims, dtype, flags)


@pytest.mark.parametrize("offset", [1, 4])
def test_an_offset_moves_the_address_and_nothing_else(offset):
    dims = {"M": 3, "N": 5, "K": 7}
    moved, _, _ = prepared("linear", dims, "bfloat16", {"offset": offset})
    plain, _, _ = prepared("linear", dims, "bfloat16")
    for there, here in zip(moved.operands[:2], plain.operands[:2], strict=True):
        assert (there.data_ptr() - 2 * offset) % 64 == 0 and here.data_ptr() % 64 == 0
        assert there.is_contiguous() and torch.equal(there, here)


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_bmm_is_the_products_one_by_one(layout):
    work, _, _ = prepared("bmm", {"batch": 3, "M": 2, "N": 5, "K": 4}, flags={"layout": layout})
    x, w = work.operands
    each = [a @ (b if layout == "nn" else b.T) for a, b in zip(x, w, strict=True)]
    assert torch.allclose(work(), torch.stack(each), atol=1e-6)


@pytest.mark.parametrize("routing", ["even", "skewed"])
def test_grouped_experts_give_what_the_loop_gives(routing):
    dims = {"experts": 4, "tokens": 42, "N": 16, "K": 8}
    grouped, _, _ = prepared("experts", dims, "bfloat16", {"routing": routing})
    loop, _, _ = prepared("experts", dims, "bfloat16", {"routing": routing, "call": "loop"})
    assert torch.allclose(grouped().float(), torch.cat(loop()).float(), atol=0.05, rtol=0.02)


def test_int8_products_are_exact():
    work, _, _ = prepared("quantised", {"M": 20, "N": 8, "K": 16}, "int8")
    x, w = work.operands
    assert torch.equal(work(), x.int() @ w.int().T)
    assert x.min() < -100 and x.max() > 100


def test_fp8_products_are_those_of_the_rounded_operands():
    work, _, _ = prepared("quantised", {"M": 16, "N": 32, "K": 64}, "float8_e4m3")
    x, w, _ = work.operands
    assert x.dtype == torch.float8_e4m3fn
    assert torch.allclose(work().float(), x.float() @ w.float().T, rtol=0.02, atol=0.1)


def test_a_backend_that_refuses_says_so():
    dims = {"heads": 2, "q_len": 8, "head_dim": 8}
    with pytest.raises(MeasurementError, match="the cudnn backend refuses"):
        prepared("attention", dims, flags={"backend": "cudnn"})


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_attention_on_transposed_views_is_the_same_attention(kv_heads):
    dims = {"heads": 4, "kv_heads": kv_heads, "q_len": 8, "kv_len": 6, "head_dim": 12}
    plain, _, before = prepared("attention", dims)
    views, _, point = prepared("attention", dims, flags={"layout": "bshd"})
    shapes = [(1, 8, 4, 12), (1, 6, kv_heads, 12), (1, 6, kv_heads, 12)]
    assert [tuple(o.shape) for o in views.operands[:3]] == shapes
    q, k, v = (operand.transpose(1, 2).contiguous() for operand in views.operands[:3])
    assert torch.allclose(views(), plain.call(q, k, v, None), atol=1e-6)
    assert "layout" not in before.flag and point.flag["layout"] == "bshd"


def test_fast_accumulation_is_a_flag_of_float8_alone():
    dims = {"M": 16, "N": 32, "K": 64}
    fast, _, point = prepared("quantised", dims, "float8_e4m3", {"fast_accum": True})
    plain, _, before = prepared("quantised", dims, "float8_e4m3")
    assert torch.allclose(fast().float(), plain().float(), rtol=0.02, atol=0.1)
    assert before.flag == {"cache": "warm"} and point.flag["fast_accum"] is True


def test_a_refusal_tells_the_backends_own_reason_only():
    def flash(*operands):
        for text in (
            "Flash attention kernel not used because:",
            "Flash attention requires q,k,v to have the same last dimension and to be ≤ 256.",
            "Memory efficient kernel not used because:",
            "Memory Efficient attention has been runtime disabled.",
        ):
            warnings.warn(f"{text} (Triggered internally at sdp_utils.cpp:679.)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    message = refusal(flash, (), "flash")
    assert message == (
        "the flash backend refuses: "
        "Flash attention requires q,k,v to have the same last dimension and to be ≤ 256."
    )


def test_a_lack_of_memory_is_no_refusal():
    def full(*operands):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        refusal(full, (), "math")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "padded"])
def test_compiled_products_are_the_same_products(how):
    dims = {"M": 8, "N": 9, "K": 7}
    plain, _, _ = prepared("linear", dims)
    try:
        compiled, _, point = prepared("linear", dims, flags={"compiled": how})
    except MeasurementError as error:  # a machine without a C++ compiler cannot try it
        pytest.skip(str(error))
    assert point.flag["compiled"] == how
    assert torch.allclose(compiled(), plain(), atol=1e-5)


def test_any_number_of_shapes_is_compiled_or_it_is_told_why_not(monkeypatch):
    """Dynamo compiles eight shapes of one function, and a session holds many."""
    seen = []
    real = torch.compile

    def count(graph, inputs):
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda f, dynamic, options: real(f, backend=count))
    made = [
        prepared("linear", {"M": 2, "N": 3, "K": k}, flags={"compiled": "plain"})[0]
        for k in range(4, 16)
    ]
    assert len(seen) == 12
    with torch.inference_mode():
        for work in made:
            work()
    assert len(seen) == 12

    def refuse(product, **options):
        def call(*operands):
            raise RuntimeError("backend='inductor' raised:\nRuntimeError: No C compiler.\n\nSet …")

        return call

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(MeasurementError, match="not work here: RuntimeError: No C compiler"):
        prepared("linear", {"M": 8, "N": 9, "K": 7}, flags={"compiled": "plain"})
