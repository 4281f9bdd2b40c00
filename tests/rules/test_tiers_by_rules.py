"""What the rules say, on the cases that are known from libraries, code, threads and measurements:
tiers, head_dim in the kernels that engines bring, and where a step along M or N is likely."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof import operators
from gacprof.core.errors import MapError
from gacprof.core.points import Point
from gacprof.devices.datasheet import sheet
from gacprof.rules import NoRuleError, RefusedError, serve, step, target
from gacprof.rules.head_dims import judge, vision_kernel
from gacprof.rules.waves import TILE, likely_edges

HEADS = {"heads": 32, "q_len": 2048}


def best_head_dims(gpu, torch, **flags):
    about, found = target(gpu, torch), []
    for d in range(8, 257):
        point = operators.point("attention", HEADS | {"head_dim": d}, "float16", flags)
        served = serve(point, about)
        if served.tier == 1 and not served.open:
            found.append(d)
    return found


def test_the_published_cost_is_of_the_gpu_that_was_measured_and_of_k():
    def relative(gpu, **dims):
        point = operators.point("linear", {"M": 512, "N": 4096} | dims, "float16")
        return serve(point, target(gpu, "2.11.0")).relative

    others = "h200", "h100-pcie", "h100-nvl", "a100-40gb", "a100-pcie-80gb", "a10"
    assert {relative(gpu, K=k) for gpu in others for k in (104, 106, 107)} == {None}
    assert [relative("a100", K=k) for k in (104, 106, 107)] == [1.0, 1.6, 3.0]
    assert relative("b200", K=107) is None
    assert relative("h100", K=4096, N=107) is None  # nobody published N's
    assert relative("h100", K=107, M=1) is None


def test_consumer_blackwell_does_not_split_k_of_few_rows(tier):
    """sgl-project/sglang#37491: M·N·K below 2^21, N=48, K=5120: a cliff from M=8 to 9."""
    tiers = [tier("rtx5090", "linear", "bfloat16", M=m, N=48, K=5120) for m in (8, 9)]
    assert tiers[0] > tiers[1] == 1
    assert tier("b200", "linear", "bfloat16", M=8, N=48, K=5120) == 1


def test_eight_bit_types_demand_and_prefer(tier):
    def refused(gpu, dtype, **dims):
        try:
            tier(gpu, "quantised", dtype, **dims)
        except RefusedError:
            return True
        return False

    assert refused("h100", "float8_e4m3", M=512, N=4096, K=104)
    assert not refused("h100", "float8_e4m3", M=512, N=4096, K=112)
    assert refused("a100", "int8", M=16, N=4096, K=128)  # torch._int_mm: more than 16 rows
    assert tier("a100", "quantised", "int8", M=32, N=4096, K=120) == 2
    assert tier("a100", "quantised", "int8", M=32, N=4096, K=128) == 1


def test_head_dims_are_the_templates_of_the_release():
    assert best_head_dims("a100", "2.9.1") == [32, 64, 96, 128, 160, 192, 256]
    assert best_head_dims("a100", "2.11.0") == [32, 64, 96, 128, 192, 256]
    assert best_head_dims("a100", "2.6.0") == [32, 64, 96, 128, 160, 192, 224, 256]


def test_cudnn_goes_first_on_hopper_with_the_cudnn_of_torch_2_11():
    assert best_head_dims("h100", "2.10.0") == [32, 64, 96, 128, 160, 192, 256]
    assert best_head_dims("h100", "2.11.0") == [128]
    point = operators.point("attention", HEADS | {"head_dim": 104}, "float16")
    assert serve(point, target("h100", "2.11.0")).open  # its steps are not known
    assert best_head_dims("rtx4090", "2.11.0") == [32, 64, 96, 128, 192, 256]


def test_112_is_worse_than_128_and_107_worse_than_both(tier):
    tiers = [tier("a100", "attention", torch="2.9.1", head_dim=d, **HEADS) for d in (128, 112, 107)]
    assert tiers == [1, 2, 3]


def test_with_a_mask_a_head_dim_that_is_no_eight_falls_to_math(tier):
    masked = {"mask": "float"}
    assert tier("h100", "attention", torch="2.9.1", flags=masked, head_dim=104, **HEADS) == 1
    point = operators.point("attention", HEADS | {"head_dim": 107}, "float16", masked)
    served = serve(point, target("h100", "2.9.1"))
    assert served.tier > 1 and served.mechanism == "SDPA math"


def test_triton_is_told_of_multiples_of_16_only(tier):
    """What it compiles then is in tests/operators/test_stream.py."""
    assert [tier("a10", "row_copy", rows=64, K=k) for k in (112, 104)] == [1, 2]


def test_what_no_rule_covers_says_so_and_a_release_may_be_short_or_carry_its_build():
    about = target("a100", "2.11")
    assert about.torch == target("a100", "2.11.0+cu130").torch == "2.11.0"
    for release in ("2.7", "3.0", "next"):
        with pytest.raises(MapError, match=r"not known.*2\.6\.0, .*2\.13\.0"):
            target("h100", release)
    with pytest.raises(MapError, match=r"no rules for fp8: there are .*int8"):
        about.dtype("fp8")
    with pytest.raises(NoRuleError, match="no rule for the operator 'own'"):
        serve(Point.of("own", {"K": 8}, "float16", {}), about)


MEASURED = {
    ("l40s", "vllm"): 1.02, ("l40s", "sglang"): 1.36, ("l40s", "tensorrt-llm"): 1.04,
    ("h100", "vllm"): 1.03, ("h100", "sglang"): 1.10, ("h100", "tensorrt-llm"): 0.98,
    ("b200", "vllm"): 0.93, ("b200", "sglang"): 0.93, ("b200", "tensorrt-llm"): 3.01,
    ("b300", "vllm"): 1.34, ("b300", "sglang"): 2.80, ("b300", "tensorrt-llm"): 3.41,
}  # fmt: skip
"""Time at 72 over that at 80 (aiconfigurator-core 0.12.0, 16 heads, 8 images of 1024 patches)."""


@pytest.mark.parametrize(("gpu", "engine"), MEASURED)
def test_72_is_misaligned_only_where_it_was_measured_to_be(gpu, engine):
    arch = sheet(gpu).arch
    kernel = vision_kernel(engine, arch)
    assert kernel is not None
    found = judge(kernel, arch, 72)
    assert found.verdict == ("misaligned" if kernel in ("triton", "trtllm")
                             and MEASURED[gpu, engine] > 1.2 else "undecided")  # fmt: skip
    assert found.better == (80 if found.verdict == "misaligned" else None)
    assert vision_kernel("llama.cpp", arch) is None


@pytest.mark.parametrize(
    ("kernel", "arch", "safe", "refused"),
    [
        ("fa3", "sm90", [64, 96, 128, 192, 256], [107, 264]),
        ("fa4", "sm100", [16, 64, 80, 96, 112, 128, 256], [107, *range(136, 249, 8), 264]),
        ("fa4", "sm90", [64, 144, 192, 256], [107, 264]),
        ("triton", "sm90", [16, 32, 64, 128, 256], []),
    ],
)
def test_safe_is_what_a_kernel_works_on_as_it_is(kernel, arch, safe, refused):
    assert {judge(kernel, arch, d).verdict for d in safe} == {"safe"}
    assert {judge(kernel, arch, d).verdict for d in refused} <= {"refused"}
    for d in range(8, 257):
        found = judge(kernel, arch, d)
        assert (found.runs_as == d) == (found.verdict == "safe")
        assert found.runs_as is None or found.runs_as >= d
        assert found.better is None or d < found.better <= (found.runs_as or 0)


SMS = {"a100": 108, "h100": 132, "b200": 148, "l40s": 142}


def steps(gpu, axis, sizes, **fixed):
    about = target(gpu, "2.11.0")
    points = (operators.point("linear", fixed | {axis: size}, "bfloat16") for size in sizes)
    return [step(point, axis, about) for point in points]


def test_an_edge_is_where_the_tiles_of_one_wave_are_used_up():
    """A100, M=2048, K=128: 13 columns of 128 by 8 rows of 256 are 104 tiles for 108 SMs."""
    found = steps("a100", "N", [1536, 1664, 1665, 1700], M=2048, K=4096)
    assert found[0] == found[1] < found[2] == found[3]
    # 128 → 129 rows of N = 4096 read 32 MiB either way; an L4's number of SMs is not known
    assert len(set(steps("h100", "M", [1, 64, 129, 256], N=4096, K=4096))) == 1
    assert steps("l4", "M", [1, 128, 129, 256, 257], N=4096, K=4096) == [1, 1, 2, 2, 3]


@given(
    along_m=st.booleans(), across=st.integers(1, 70_000), sms=st.sampled_from(sorted(SMS.values())),
    per_column=st.floats(0, 2000),
)  # fmt: skip
def test_edges_ascend_at_whole_tiles(along_m, across, sms, per_column):
    edges = likely_edges(along_m, across, sms, per_column)
    assert list(edges) == sorted(set(edges)) and all(e > 0 and e % TILE == 0 for e in edges)
