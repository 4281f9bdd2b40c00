"""Alignment tiers agree with the kernels that libraries hold, and with what was published."""

from __future__ import annotations

from pathlib import Path

import pytest

from gacprof.core.errors import MapError
from gacprof.kernels.names import parse
from gacprof.kernels.tiers import architecture, architectures, predict


def needed_bytes(arch: str, dtype: str, k: int) -> int | None:
    tier = predict(arch, dtype, {"K": k}).tier
    return tier.bytes if tier else None


@pytest.mark.parametrize(
    "k, expected", [(128, 16), (104, 16), (8, 16), (108, 4), (106, 4), (2, 4), (107, 2), (1, 2)]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("arch", ["sm80", "sm86", "sm90", "sm120"])
def test_half_precision_has_tiers_at_8_2_and_1(
    arch: str, dtype: str, k: int, expected: int
) -> None:
    """A: table A.3 for A100. H100: the published tensor-core data knows full, even and odd."""
    assert needed_bytes(arch, dtype, k) == needed_bytes(f"{arch}a", dtype, k) == expected


def test_tf32_has_tiers_at_4_and_1_and_fp32_has_one() -> None:
    assert [needed_bytes("sm80", "tf32", k) for k in (128, 4, 6, 7)] == [16, 16, 4, 4]
    assert {needed_bytes(arch, "float32", k) for arch in architectures() for k in (7, 8)} == {4}


def test_rows_without_any_kernel_are_said_to_have_none() -> None:
    prediction = predict("sm89", "float8_e4m3", {"K": 24})
    assert prediction.tier is None
    assert prediction.sentence == "K is no multiple of 16: no kernel is known for it"


def test_the_worse_dimension_decides_and_is_named() -> None:
    prediction = predict("sm80", "float16", {"K": 4096, "N": 107})
    assert (prediction.limiting, prediction.needs) == ("N", 2)
    assert "N is no multiple of 2" in prediction.sentence
    assert predict("sm80", "float16", {"K": 106, "N": 107}).limiting == "N"
    assert predict("sm80", "float16", {"K": 107, "N": 106}).limiting == "K"
    assert predict("sm80", "float16", {"K": 104, "N": 112}).limiting is None


@pytest.mark.parametrize(
    "arch, dtype, rows, message",
    [
        ("sm42", "float16", {"K": 8}, "no alignment rules for 'sm42'"),
        ("avx512", "float16", {"K": 8}, "measure it"),
        ("sm80", "float8_e4m3", {"K": 8}, "no alignment rules for float8_e4m3 on sm80"),
        ("sm80", "float16", {"K": 0}, "positive"),
        ("sm80", "float16", {}, "positive"),
    ],
)
def test_what_has_no_rules_is_refused(
    arch: str, dtype: str, rows: dict[str, int], message: str
) -> None:
    with pytest.raises(MapError, match=message):
        predict(arch, dtype, rows)


def test_every_real_kernel_of_sm80_and_sm90_has_an_alignment_that_is_a_tier(fixtures: Path) -> None:
    listed = (fixtures / "kernel_names" / "cublas.txt").read_text().splitlines()
    checked = 0
    for name in listed:
        kernel = parse(name)
        dtype = kernel.dtype
        known = architectures().get(kernel.arch or "")
        if known is None or not kernel.alignment or not kernel.mma or kernel.role != "gemm":
            continue
        if dtype not in ("float16", "bfloat16"):
            continue
        assert kernel.alignment in {tier.elements(dtype) for tier in known.tiers[dtype]}, name
        checked += 1
    assert checked > 40


def test_blackwell_takes_fp4_by_32_and_int8_by_4() -> None:
    """CUTLASS 4.2's manifest and libcublasLt 13.1's names; 16-bit types have align 8 alone."""
    for arch in ("sm100", "sm103", "sm120"):
        assert predict(arch, "float4_e2m1", {"K": 96, "N": 64}).limiting is None
        assert predict(arch, "float4_e2m1", {"K": 80}).tier is None
        tiers = architecture(arch).tiers_for("int8")
        assert [tier.elements("int8") for tier in tiers] == [16, 4]
        assert predict(arch, "float16", {"K": 8}).arch == arch.replace("103", "100")
        native, *old = architecture(arch).tiers_for("bfloat16")
        assert native.elements("bfloat16") == 8 and {tier.basis for tier in old} == {"expected"}
    for arch in ("sm80", "sm90"):
        with pytest.raises(MapError, match="no alignment rules for float4_e2m1"):
            predict(arch, "float4_e2m1", {"K": 64})
