"""Generated kernels → canonical name → the same kernels; real names → themselves."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.kernels.canonical import canonical
from gacprof.kernels.families.attention import SWITCHES
from gacprof.kernels.kernel import Kernel, Types
from gacprof.kernels.names import parse

EVEN = st.sampled_from([8, 16, 32, 64, 96, 128, 192, 256])
STAGES = st.integers(1, 20)
LAYOUT = st.sampled_from(["nn", "nt", "tn", "tt"])
HALVES = st.sampled_from(["float16", "bfloat16"])


def flags(**given: str | int | bool | None) -> tuple[tuple[str, str | int | bool], ...]:
    return tuple(sorted((k, v) for k, v in given.items() if v is not None))


@st.composite
def native(draw: st.DrawFn) -> Kernel:
    kind = draw(HALVES)
    out = draw(st.sampled_from(["float32", kind]))
    return Kernel(
        "",
        "cublas",
        "native",
        "gemm",
        arch=draw(st.sampled_from(["sm70", "sm75", "sm80"])),
        types=Types(kind, kind, kind, "float32", out),
        tile=(draw(EVEN), draw(EVEN), draw(EVEN)),
        stages=draw(STAGES),
        mma=(16, 8, 16),
        alignment=draw(st.sampled_from([2, 8])),
        layout=draw(LAYOUT),
        flags=flags(
            op="s16816gemm",
            epilogue=draw(st.sampled_from([None, "relu", "f2f", "relu_f2f"])),
            sliced=draw(st.sampled_from([None, "1x2", "1x4"])),
        ),
    )


@st.composite
def xmma(draw: st.DrawFn) -> Kernel:
    a, b = draw(HALVES), None
    align = draw(st.sampled_from([None, 2, 4]))
    pipelined = draw(st.booleans())
    split = draw(st.sampled_from(["", "split", "on", "off"]))
    return Kernel(
        "",
        "cublas",
        "xmma",
        "gemm",
        arch=draw(st.sampled_from(["sm80", "sm90"])),
        types=Types(a, b or a, a, "float32", draw(st.sampled_from([a, "float32"]))),
        tile=(draw(EVEN), draw(EVEN), draw(EVEN)),
        stages=draw(STAGES) if pipelined else None,
        cluster=draw(st.sampled_from([None, (1, 1, 1), (2, 1, 1)])),
        mma=(16, 8, 16) if pipelined else None,
        alignment=(align or 16) // 2,
        layout=draw(LAYOUT),
        split_k=split == "split",
        flags=flags(
            op="gemm",
            scale="float32",
            warps="2x2x1",
            align_a_bytes=align,
            align_c_bytes=4 if align else None,
            segment_k={"on": True, "off": False}.get(split),
            epilogue=draw(st.sampled_from([None, "bgrada", "bias_f16_aux_f16_gelu", "drelu"])),
        ),
    )


@st.composite
def nvjet(draw: st.DrawFn) -> Kernel:
    kind = draw(st.sampled_from(["float16", "bfloat16", "float8_e4m3", "float8_e5m2"]))
    five = kind.startswith("float8")
    words = draw(
        st.sets(st.sampled_from(["bz", "bias", "badd", "coopA", "coopB", "splitK", "2cta"]))
    )
    return Kernel(
        "",
        "cublas",
        "nvjet",
        "gemm",
        arch=draw(st.sampled_from([None, "sm90", "sm100", "sm103"])),
        types=Types(kind, kind, kind, "float32", "bfloat16" if five else kind),
        tile=(draw(EVEN), draw(EVEN), draw(EVEN)),
        stages=draw(STAGES),
        cluster=(draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        layout=draw(st.sampled_from(["tnn", "nnt", "tnt"])),
        split_k="splitK" in words,
        flags=flags(
            raster=draw(st.sampled_from(["v", "h"])),
            c_type="bfloat16" if five else None,
            **dict.fromkeys(words, True),
        ),
    )


@st.composite
def cutlass2(draw: st.DrawFn) -> Kernel:
    kind = draw(HALVES)
    return Kernel(
        "",
        "cutlass",
        "cutlass2",
        "gemm",
        arch=draw(st.sampled_from(["sm70", "sm75", "sm80"])),
        types=Types(kind, kind, kind, "float32", draw(st.sampled_from([kind, "float32"]))),
        tile=(draw(EVEN), draw(EVEN), draw(EVEN)),
        stages=draw(STAGES),
        mma=(16, 8, 16),
        alignment=draw(st.sampled_from([1, 2, 4, 8])),
        layout=draw(LAYOUT),
        flags=flags(
            op="s16816gemm",
            unit=draw(st.sampled_from(["tensorop", "wmma_tensorop"])),
            epilogue=draw(st.sampled_from([None, "relu", "dgelu", "planar_complex"])),
        ),
    )


@st.composite
def cutlass3(draw: st.DrawFn) -> Kernel:
    a = draw(st.sampled_from(["float16", "bfloat16", "float8_e4m3", "float8_e5m2"]))
    mma = (draw(EVEN), draw(EVEN), 16)
    return Kernel(
        "",
        "cutlass",
        "cutlass3",
        "gemm",
        arch=draw(st.sampled_from(["sm90", "sm100", "sm120"])),
        types=Types(a, a, a, "float32", draw(st.sampled_from(["float32", "float16"]))),
        tile=(draw(EVEN), draw(EVEN), draw(EVEN)),
        stages=draw(st.none() | STAGES),
        cluster=draw(st.sampled_from([None, (1, 1, 1), (2, 1, 1)])),
        mma=mma,
        alignment=draw(st.sampled_from([4, 8, 16])),
        layout=draw(st.sampled_from(["tnn", "ntn", "nnn", "ttn"])),
        flags=flags(
            op="s{}x{}x{}gemm".format(*mma),
            unit="tensorop",
            epilogue=draw(st.sampled_from([None, "2sm_epi_tma", "1sm_bias_f16_relu_stream_k"])),
        ),
    )


@st.composite
def flash2(draw: st.DrawFn) -> Kernel:
    base = draw(st.sampled_from(sorted(SWITCHES)))
    if base.endswith("loop_kernel"):
        base = "flash_fwd_kernel"
    names = draw(st.sampled_from(sorted(SWITCHES[base].values()))).split()
    switches = {name: draw(st.booleans()) for name in names}
    kind = draw(HALVES)
    return Kernel(
        "",
        "flash_attention",
        "flash2",
        "attention" if "fwd" in base else "attention_backward",
        types=Types(kind, kind, kind, "float32", kind),
        tile=(draw(EVEN), draw(EVEN)),
        template=draw(st.sampled_from([32, 64, 96, 128, 160, 192, 256])),
        split_k=switches.get("split", False),
        flags=flags(warps=draw(st.sampled_from([4, 8])), **switches),
    )


@given(st.one_of(native(), xmma(), nvjet(), cutlass2(), cutlass3(), flash2()))
def test_generated_kernels_come_back(kernel: Kernel) -> None:
    name = canonical(kernel)
    assert parse(name) == replace(kernel, name=name)


def test_real_names_of_regular_families_come_back(fixtures: Path) -> None:
    listed = (fixtures / "kernel_names" / "cublas.txt").read_text().splitlines()
    tried = 0
    for name in listed:
        kernel = parse(name)
        try:
            again = canonical(kernel)
        except ValueError:
            continue
        tried += 1
        assert replace(parse(again), name=name) == kernel
        if kernel.family in ("native", "cutlass2"):
            assert set(again.split("_")) <= set(re.split(r"[_<>(): ]+", name)), name
    assert tried > 200


def test_a_family_without_grammar_says_so() -> None:
    with pytest.raises(ValueError, match="family 'aten' has no canonical name"):
        canonical(Kernel("x", "aten", "aten"))
