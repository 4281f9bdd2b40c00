"""Cliffs carry their causes: by kernels where they were recorded, else by rules, else none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernel_names import ALIGN1, COPY, FILL, NATIVE, flash
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Cliff, Curve
from gacprof.core.points import Environment, Point
from gacprof.explaining.annotate import annotate, build_explained
from gacprof.kernels.evidence import write_implementations
from gacprof.kernels.onednn import CpuImplementation, LibraryCall
from gacprof.sweeping import run_sweep

A100 = Environment("cuda", "an A100", "sm80", {}, {"torch": "2.9.1", "cudnn": "91002"})
CPU = Environment("cpu", "a CPU", "x86_64-avx512", {}, {"torch": "2.13.0"})


def attention_kernels(point: Point) -> list[str]:
    d = point.dim["head_dim"]
    template = next(size for size in (64, 96, 128) if size >= d)
    pads = [FILL, COPY] * 3 if d % 8 else []
    return [*pads, flash(template, -(-d // 8) * 8 == template)]


@pytest.fixture
def swept(tmp_path: Path) -> Callable[..., Path]:
    """A folder swept on a recorded device."""

    def sweep(table: dict[str, Any], answer: Callable[[Point], float], where: Environment = A100,
              kernels: Callable[[Point], list[str]] = lambda point: []) -> Path:  # fmt: skip
        device = RecordedDevice(answer, where, kernels)
        suite = suite_of(table, processes=1, blocks=4, most_blocks=4)
        run_sweep(suite, device, tmp_path / "run")
        return tmp_path / "run"

    return sweep


ATTENTION = over(
    "head_dim", [88, 96, 104, 107, 112, 120, 128], {"batch": 1, "heads": 2, "q_len": 64},
    operator="attention", dtype="float16",
)  # fmt: skip
LINEAR = over("K", range(64, 121, 8), {"M": 64, "N": 64}, dtype="float16")


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
