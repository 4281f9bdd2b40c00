"""head_dim in the kernels that engines bring, beside what was measured of vision towers."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from gacprof.core.errors import MapError
from gacprof.devices.datasheet import sheet
from gacprof.elsewhere.data import Measurements
from gacprof.rules.head_dims import judge, vision_kernel

MEASURED = {
    ("l40s", "vllm"): 1.02, ("l40s", "sglang"): 1.36, ("l40s", "tensorrt-llm"): 1.04,
    ("h100", "vllm"): 1.03, ("h100", "sglang"): 1.10, ("h100", "tensorrt-llm"): 0.98,
    ("b200", "vllm"): 0.93, ("b200", "sglang"): 0.93, ("b200", "tensorrt-llm"): 3.01,
    ("b300", "vllm"): 1.34, ("b300", "sglang"): 2.80, ("b300", "tensorrt-llm"): 3.41,
}  # fmt: skip
"""Time at 72 over that at 80 (aiconfigurator-core 0.12.0, 16 heads, 8 images of 1024 patches)."""


@pytest.mark.parametrize(("gpu", "engine"), MEASURED)
def test_72_is_misaligned_only_where_it_was_measured_to_be(gpu: str, engine: str) -> None:
    arch = sheet(gpu).arch
    kernel = vision_kernel(engine, arch)
    assert kernel is not None
    found = judge(kernel, arch, 72)
    assert found.verdict == ("misaligned" if kernel in ("triton", "trtllm")
                             and MEASURED[gpu, engine] > 1.2 else "undecided")  # fmt: skip
    assert found.better == (80 if found.verdict == "misaligned" else None)


@pytest.mark.parametrize(
    ("kernel", "arch", "safe", "refused"),
    [
        ("fa3", "sm90", [64, 96, 128, 192, 256], [107, 264]),
        ("fa4", "sm100", [16, 64, 80, 96, 112, 128, 256], [107, *range(136, 249, 8), 264]),
        ("fa4", "sm90", [64, 144, 192, 256], [107, 264]),
        ("triton", "sm90", [16, 32, 64, 128, 256], []),
    ],
)
def test_safe_is_what_a_kernel_works_on_as_it_is(
    kernel: str, arch: str, safe: list[int], refused: list[int]
) -> None:
    assert {judge(kernel, arch, d).verdict for d in safe} == {"safe"}
    assert {judge(kernel, arch, d).verdict for d in refused} <= {"refused"}
    for d in range(8, 257):
        found = judge(kernel, arch, d)
        assert (found.runs_as == d) == (found.verdict == "safe")
        assert found.runs_as is None or found.runs_as >= d
        assert found.better is None or d < found.better <= (found.runs_as or 0)


def test_a_kernel_that_nobody_measured_is_not_named() -> None:
    assert vision_kernel("vllm", "sm80") is None and vision_kernel("llama.cpp", "sm90") is None


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs gacprof[elsewhere]")
@pytest.mark.parametrize("gpu", ["l40s", "h100", "b200", "b300", "rtxpro6000"])
def test_the_verdict_on_72_is_right_in_every_engine_that_was_measured(
    gpu: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    found = find_spec("aiconfigurator_core")
    assert found is not None and found.submodule_search_locations
    root = Path(found.submodule_search_locations[0]) / "systems" / "data"
    script = Path(pytestconfig.rootpath) / "benchmarks" / "rules_by_evidence.py"
    rows = list(runpy.run_path(str(script))["head_dims"](Measurements(root, "0", tmp_path), gpu))
    try:
        arch = sheet(gpu).arch
    except MapError:
        pytest.skip(f"no data sheet of {gpu}")
    assert rows
    for row in rows:
        engine, ratio = row.split("|")[2].split()[0], float(row.split("|")[3])
        kernel = vision_kernel({"trtllm": "tensorrt-llm"}.get(engine, engine), arch)
        assert kernel is not None
        if judge(kernel, arch, 72).verdict == "misaligned":
            assert ratio > 1.2
