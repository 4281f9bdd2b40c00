"""What is said of a misaligned model's trace, beside the trace of its aligned twin on one H200."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels.names import parse
from gacprof.tracing.kineto import read_kineto
from gacprof.tracing.recording import Launch
from gacprof.tracing.runs import runs_of
from gacprof.tracing.trace import trace

H200 = Path(__file__).parents[1] / "fixtures" / "h200"
TICKS_US = 3.0  # two runs of one kernel are closer: the sum of the tracer's steps and of noise
BYTES = {"bfloat16": 2, "float16": 2, "float8_e4m3": 1}


def launches_of(name: str) -> Sequence[Launch]:
    return read_kineto(H200 / f"{name}.json.gz").launches


def kind_of(launch: Launch) -> str:
    """What a launch is, alone."""
    [run] = runs_of([launch])
    return run.kind


def attention_us(launches: Sequence[Launch]) -> float:
    """The time of attention, of its padding, and of what cuDNN runs behind it."""
    parts = [launch for launch in launches if parse(launch.kernel).role.startswith("attention")]
    parts += [launch for launch in launches if parse(launch.kernel).provider == "cudnn"]
    parts += [launch for launch in launches if launch.head_dim]
    return sum({id(launch): launch.us for launch in parts}.values())


def test_misaligned_products_save_no_more_than_said() -> None:
    report = trace(H200 / "ragged.json.gz")
    twins = list(zip(launches_of("ragged"), launches_of("aligned"), strict=True))
    pairs = [(off, twin) for off, twin in twins if kind_of(off) == "misaligned"]
    saved = sum(off.us - twin.us for off, twin in pairs) / report.us
    assert {kind_of(twin) for _, twin in pairs} == {"aligned"}
    assert saved <= report.gain_at_most
    assert report.gain_like_aligned == pytest.approx(saved, abs=0.01)


def test_all_that_alignment_saved_is_misaligned_or_undecided() -> None:
    kinds = set()
    for off, twin in zip(launches_of("ragged"), launches_of("aligned"), strict=True):
        if abs(off.us - twin.us) > TICKS_US:
            kinds.add(kind_of(off))
    assert kinds == {"misaligned", "gemv"}


def test_gemv_of_these_sides_was_slower_and_is_in_no_bound() -> None:
    report = trace(H200 / "ragged.json.gz")
    total = sum(launch.us for launch in launches_of("aligned"))
    assert report.gain_at_most < 1 - total / report.us < report.gain_at_most + report.shares["gemv"]


def test_padded_heads_cost_no_more_than_said() -> None:
    report = trace(H200 / "ragged-heads.json.gz")
    [attention] = report.products
    assert attention.cause == "head_dim"
    assert attention.at_fault == {"head_dim": 106}
    assert attention.count == 5  # a prefill and four tokens
    padded, twin = attention_us(launches_of("ragged-heads")), attention_us(launches_of("aligned"))
    assert padded == pytest.approx(attention.us)
    assert 0 < padded - twin <= report.gain_at_most * report.us
    assert not report.ok


def test_an_aligned_model_is_told_nothing() -> None:
    report = trace(H200 / "aligned.json.gz")
    assert report.ok
    assert not report.products
    assert "gemv" not in report.shares


def test_no_product_is_faster_than_the_floor() -> None:
    """Every N and K of a plane: the bound rests on the data sheet's rates."""
    facts = gpu_facts("h200")
    assert facts.gb_s is not None
    with gzip.open(H200 / "planes.json.gz") as file:
        planes = json.load(file)["planes"]
    assert len(planes) == 9
    for plane in planes:
        sizes, M, dtype = plane["sizes"], plane["M"], plane["dtype"]
        for number, us in enumerate(plane["us"]):
            N, K = sizes[number // len(sizes)], sizes[number % len(sizes)]
            moved = (M * K + N * K + M * N) * BYTES[dtype]
            floor = max(2 * M * N * K / facts.tflops[dtype] / 1e6, moved / facts.gb_s / 1e3)
            assert us > floor


def test_every_kernel_of_these_files_has_a_name() -> None:
    with gzip.open(H200 / "planes.json.gz") as file:
        planes = json.load(file)["planes"]
    names = {name for plane in planes for name in plane["names"]}
    for trace_name in ("aligned", "ragged", "ragged-heads"):
        names |= {launch.kernel for launch in launches_of(trace_name)}
    assert [name for name in names if parse(name).provider == "unknown"] == []
