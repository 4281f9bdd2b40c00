"""What oneDNN and MKL report is read; what they keep quiet about is not guessed."""

from __future__ import annotations

import pytest

from gacprof.core.points import Point
from gacprof.kernels.onednn import SILENT, LibraryCall, calls, implementations, read

# recorded with torch 2.13.0 (oneDNN 3.12.0, MKL 2024.0) on an AVX-512 machine, 107 → 128
RECORDED = """\
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,exec_time
gacprof-point 0 \n\
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,\
src:bf16::blocked:ab::f0 wei:bf16::blocked:ba::f0 dst:bf16::blocked:ab::f0,\
attr-scratchpad:user,,64x107:107x128,6.65308
gacprof-point 1 \n\
MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture
MKL_VERBOSE SGEMM(T,N,128,64,107,0x7ffc,0x5616,107,0x5616,107,0x7ffc,0x5616,128) 15.41us CNR:OFF
gacprof-point 2 \n\
gacprof-point 3 RuntimeError: addmm_impl_cpu_ not implemented for 'Float8_e4m3fn'
"""


def linear(dtype: str, K: int = 107) -> Point:
    return Point.of("linear", {"M": 64, "N": 128, "K": K}, dtype, {"bias": False, "cache": "warm"})


def test_recorded_output_is_sorted_by_point() -> None:
    points = [linear(d) for d in ("bfloat16", "float32", "float16", "bfloat16", "float32")]
    one, two, three, four, five = read(points, RECORDED)
    assert one.mechanism == "oneDNN brg_matmul:avx512_core_bf16"
    assert one.calls[0].primitive == "matmul"
    assert "64x107:107x128" in one.calls[0].detail
    assert two.mechanism == "MKL SGEMM"
    assert two.calls[0].detail.startswith("T,N,128,64,107")
    assert (three.mechanism, three.reason) == (None, SILENT)
    assert four.mechanism is None and four.reason.startswith("RuntimeError: addmm")
    assert five.reason == "the run ended before this point"


def test_older_spellings_and_reorders() -> None:
    text = """\
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:ab:f0,,,64x107,0.01
dnnl_verbose,exec,cpu,matmul,gemm:jit,undef,src_f32::blocked:ab:f0,,,64x107:107x128,0.2
onednn_verbose,exec,cpu,inner_product,brgemm:avx512_core,forward_inference,src_f32,,,mb64,0.2
onednn_verbose,primitive,create:cache_miss,cpu,matmul,brg:avx512_core,undef,x,,,y,0.1
"""
    assert [(c.primitive, c.implementation) for c in calls(text)] == [
        ("matmul", "gemm:jit"), ("inner_product", "brgemm:avx512_core"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "onednn_verbose", "onednn_verbose,exec", "MKL_VERBOSE x"])
def test_broken_lines_are_passed_over(text: str) -> None:
    assert calls(text) == []


def test_the_machine_at_hand_answers_for_every_point() -> None:
    nonsense = Point.of("no_such_operator", {"M": 1}, "float32")
    points = [linear("float32"), linear("bfloat16"), linear("bfloat16", K=128), nonsense]
    answered = implementations(points)
    assert [answer.point for answer in answered] == points
    for answer in answered:
        assert bool(answer.calls) != bool(answer.reason)
        assert all(isinstance(call, LibraryCall) and call.implementation for call in answer.calls)
    assert "no_such_operator" in answered[-1].reason and answered[-1].mechanism is None
