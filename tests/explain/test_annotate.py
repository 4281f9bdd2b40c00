"""Cliffs carry their causes: by kernels where they were recorded, else by rules, else none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_device import RecordedDevice

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Cliff, Curve
from gacprof.core.points import Environment, Point
from gacprof.explain.annotate import annotate, build_explained
from gacprof.kernels.evidence import write_implementations
from gacprof.kernels.onednn import CpuImplementation, LibraryCall
from gacprof.sweeping import Suite, run_sweep
from gacprof.sweeping.suite import Schedule, Sweep

FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::Half>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<c10::Half>, std::array<char*, 1ul>)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() "
    "const::{lambda(c10::Half)#1}, std::array<char*, 2ul>, 4>(int)"
)
NATIVE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn"
ALIGN1 = "cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1"
A100 = Environment("cuda", "an A100", "sm80", {}, {"torch": "2.9.1", "cudnn": "91002"})
CPU = Environment("cpu", "a CPU", "x86_64-avx512", {}, {"torch": "2.13.0"})


def flash(template: int, even_k: bool) -> str:
    """FlashAttention-2's forward kernel, as torch 2.9.1 names it."""
    return (
        f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{template}, 128, 64, 4, "
        "false, false, cutlass::half_t, Flash_kernel_traits<0>>, false, false, false, false, "
        f"true, {str(even_k).lower()}, false, false>(pytorch_flash::Flash_fwd_params)"
    )


def attention_kernels(point: Point) -> list[str]:
    d = point.dim["head_dim"]
    template = next(size for size in (64, 96, 128) if size >= d)
    pads = [FILL, COPY] * 3 if d % 8 else []
    return [*pads, flash(template, -(-d // 8) * 8 == template)]


@pytest.fixture
def swept(tmp_path: Path) -> Callable[..., Path]:
    """A folder swept on a recorded device."""

    def sweep(sweep: Sweep, answer: Callable[[Point], float], where: Environment = A100,
              kernels: Callable[[Point], list[str]] = lambda point: []) -> Path:  # fmt: skip
        device = RecordedDevice(answer, where, kernels)
        timing = Schedule(processes=1, blocks=4, most_blocks=4)
        run_sweep(Suite(name="s", timing=timing, sweep=[sweep]), device, tmp_path / "run")
        return tmp_path / "run"

    return sweep


ATTENTION = Sweep(
    operator="attention", axis="head_dim", values=[88, 96, 104, 107, 112, 120, 128],
    dims={"batch": 1, "heads": 2, "q_len": 64}, dtype="float16",
)  # fmt: skip
LINEAR = Sweep(operator="linear", axis="K", values=[64, 72, 80, 88, 96, 104, 112, 120],
               dims={"M": 64, "N": 64}, dtype="float16")  # fmt: skip


def attention_us(point: Point) -> float:
    d = point.dim["head_dim"]
    return (100.0 if d <= 96 else 130.0) * (1.5 if d % 8 else 1.0)


def edges(curve: Curve) -> dict[tuple[int, int], Cliff]:
    return {(cliff.before, cliff.after): cliff for cliff in curve.cliffs}


def staircase() -> Curve:
    """The published head_dim sweep, annotated."""
    found = annotate(CliffMap.load("a100-published")).select("attention", "head_dim")
    return max(found, key=lambda curve: len(curve.points.d))


def test_the_published_a100_steps_are_templates_at_64_96_128_160_192() -> None:
    steps = {c.before: c.cause for c in staircase().cliffs if c.jump > 0 and c.remainders == [0]}
    assert steps == {
        d: f"FlashAttention-2 template {above} instead of {d} (by rules)"
        for d, above in ((64, 96), (96, 128), (128, 160), (160, 192), (192, 256))
    }


def test_the_published_107_is_padded_and_sliced() -> None:
    every = annotate(CliffMap.load("a100-published")).curves
    (curve,) = (c for c in every if (104, 107) in edges(c))
    pad = "padding q, k and v to 112 and slicing the output (by rules)"
    assert edges(curve)[104, 107].cause == pad
    assert edges(curve)[107, 112].cause == f"at 107: {pad}"


def test_nothing_but_causes_changes() -> None:
    bare = CliffMap.load("a100-published")

    def without(curve: Curve) -> dict[str, object]:
        cliffs = [cliff.model_dump(exclude={"cause"}) for cliff in curve.cliffs]
        return curve.model_dump(exclude={"cliffs"}) | {"cliffs": cliffs}

    after = annotate(bare)
    assert [without(c) for c in after.curves] == [without(c) for c in bare.curves]
    assert all(cliff.cause is None for curve in bare.curves for cliff in curve.cliffs)


def test_recorded_kernels_are_the_cause_and_pads_are_part_of_the_mechanism(swept) -> None:
    folder = swept(ATTENTION, attention_us, kernels=attention_kernels)
    (curve,) = build_explained(folder).curves
    found = edges(curve)
    assert found[96, 104].cause == "FlashAttention-2 template 128 instead of 96"
    assert found[104, 107].cause == "padding q, k and v to 112 and slicing the output"
    at_107 = curve.points.mechanism[curve.points.d.index(107)]
    assert curve.mechanisms[at_107] == "padded flash2 d128 even_k=false"


def test_a_gemm_that_switches_kernels_says_which(swept) -> None:
    folder = swept(
        LINEAR, lambda p: 10.0 if p.dim["K"] < 96 else 20.0,
        kernels=lambda p: [NATIVE if p.dim["K"] < 96 else ALIGN1],
    )  # fmt: skip
    (cliff,) = build_explained(folder).curves[0].cliffs
    assert cliff.cause is not None and cliff.cause.startswith("another kernel: cutlass2 sm75")
    assert "by rules" not in cliff.cause


def test_without_evidence_a_cliff_has_no_cause(swept) -> None:
    folder = swept(LINEAR, lambda p: 10.0 if p.dim["K"] < 96 else 20.0)
    (cliff,) = build_explained(folder).curves[0].cliffs
    assert cliff.cause is None


def test_a_cpus_tiers_and_cliffs_are_named_after_what_its_libraries_reported(swept) -> None:
    folder = swept(LINEAR, lambda p: 10.0 if p.dim["K"] < 96 else 20.0, CPU)
    (curve,) = build_explained(folder).curves
    assert curve.mechanisms == [] and curve.cliffs[0].cause is None

    def implementation(d: int) -> CpuImplementation:
        name = "brg_matmul:avx512_core_bf16" if d < 96 else "ref:any"
        point = Point.of("linear", curve.fixed | {"K": d}, curve.dtype, curve.flags)
        return CpuImplementation(point, (LibraryCall("oneDNN", "matmul", name, ""),))

    write_implementations(folder, [implementation(d) for d in curve.points.d])
    (named,) = build_explained(folder).curves
    assert [(t.last, t.mechanism) for t in named.tiers] == [
        (88, "oneDNN brg_matmul:avx512_core_bf16"),
        (120, "oneDNN ref:any"),
    ]
    assert named.cliffs[0].cause == "oneDNN ref:any instead of oneDNN brg_matmul:avx512_core_bf16"
