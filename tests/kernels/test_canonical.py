"""Generated kernels → canonical name → the same kernels; real names → themselves.

The writers here are the inverse of the readers in the package: identity → name, for families
whose names follow a grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.kernels.kernel import ARCHITECTURES, OP_LETTERS, Kernel, Types
from gacprof.kernels.names import parse
from gacprof.kernels.template_names import SWITCHES
from gacprof.kernels.word_names import NVJET_TYPES

_ARCH_NAMES = {number: word for word, number in ARCHITECTURES.items()}
_NVJET_LETTERS = {kind: letter for letter, kind in NVJET_TYPES.items()}
_SHORT = {
    "float16": "f16",
    "bfloat16": "bf16",
    "tf32": "tf32",
    "float32": "f32",
    "float64": "f64",
    "complex32": "cf16",
    "complex_bfloat16": "cbf16",
    "complex64": "cf32",
    "complex128": "cf64",
    "float8": "f8",
    "float4": "f4",
    "float4_e2m1": "e2m1",
    "float8_e4m3": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "i8",
    "int32": "i32",
}
_CUTLASS_SHORT = _SHORT | {"int8": "s8", "int32": "s32"}
_NATIVE_LONG = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_CPP = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}


def canonical(kernel: Kernel) -> str:
    """The name that :func:`~gacprof.kernels.names.parse` reads as ``kernel``.

    Raises ValueError where the family has no writer or the kernel lacks a field that its
    name is made of: a caller's mistake, not bad input.
    """
    writer = _WRITERS.get(kernel.family)
    if writer is None:
        raise ValueError(f"family '{kernel.family}' has no canonical name")
    try:
        return writer(kernel)
    except (KeyError, StopIteration) as missing:
        raise ValueError(f"no canonical name for {kernel}: it lacks {missing}") from missing


def _join(parts: Sequence[object]) -> str:
    return "_".join(str(part) for part in parts if part not in (None, ""))


def _by(sizes: Sequence[int] | None) -> str:
    return "x".join(map(str, sizes or ()))


def _operation_types(kernel: Kernel, short: Mapping[str, str]) -> tuple[str, str]:
    """(result, operands), each empty where the operation's letter already says it.

    Integer kernels name their operands always: ``igemm_int8``.
    """
    op = str(kernel.flag["op"])
    letter = op[:2] if op[:2] in OP_LETTERS else op[:1]
    operands, accumulator = OP_LETTERS[letter]
    a, out = kernel.types.a or "", kernel.types.out or ""
    return (
        "" if out == accumulator else short.get(out, out),
        "" if a == operands and letter != "i" else short.get(a, a),
    )


def _native(k: Kernel) -> str:
    out, operand = _operation_types(k, _NATIVE_LONG)
    sliced = f"sliced{k.flag['sliced']}" if "sliced" in k.flag else ""
    load = f"ldg{k.alignment}" if k.alignment else ""
    depth = ["stages", _by([k.tile[2], k.stages])] if k.tile and k.stages else []
    head = [_ARCH_NAMES.get(k.arch or "", ""), out, k.flag["op"], operand]
    tile = _by(k.tile[:2] if depth and k.tile else k.tile)
    return _join([*head, tile, sliced, load, k.flag.get("epilogue"), *depth, k.layout])


def _xmma(k: Kernel) -> str:
    t = k.types
    data = [t.a, t.out] if t.b == t.a else [t.a, t.b, t.out]
    work = [t.math, t.accumulate] if t.b == t.a else [t.a, t.b, t.accumulate]
    groups = ["".join(_SHORT[x or ""] for x in group) for group in (data, work)]
    align = [f"align{x}{k.flag[key]}" for x in "ac" if (key := f"align_{x}_bytes") in k.flag]
    parts = [k.arch, "xmma", k.flag["op"], *groups, _SHORT[str(k.flag["scale"])]]
    parts += [k.layout, "n", f"tilesize{_by(k.tile)}"]
    parts += [f"cgasize{_by(k.cluster)}" if k.cluster else ""]
    parts += [f"stage{k.stages}" if k.stages else ""]
    warps = "warpsize" if k.stages else "warpgroupsize"
    parts += [f"{warps}{k.flag['warps']}" if "warps" in k.flag else ""]
    parts += [f"tensor{_by(k.mma)}" if k.mma else "", *align, k.flag.get("epilogue")]
    end = "split_k_" if k.split_k else ""
    if "segment_k" in k.flag:
        end = f"segment_k_{'on' if k.flag['segment_k'] else 'off'}_"
    return _join([*parts, f"execute_{end}kernel"])


def _nvjet(k: Kernel) -> str:
    t = k.types
    letters = [t.a, t.accumulate, t.out]
    if "c_type" in k.flag:
        letters = [t.a, t.b, str(k.flag["c_type"]), t.accumulate, t.out]
    words = [name for name, value in k.flags if value is True]
    first = [word for word in ("2cta",) if word in words]
    rest = [word for word in words if word not in first]
    types = "".join(_NVJET_LETTERS[x or ""] for x in letters)
    tile = k.tile or (0, 0, 0)
    shape = [_by(tile[:2]), _by([tile[2], k.stages or 0]), _by(k.cluster)]
    layout = (k.layout or "").upper()
    return _join(["nvjet", k.arch, types, *shape, *first, k.flag.get("raster"), *rest, layout])


def _cutlass2(k: Kernel) -> str:
    out, operand = _operation_types(k, _CUTLASS_SHORT)
    tile = k.tile or ()
    depth = _by([tile[2], k.stages]) if k.stages and len(tile) == 3 else ""
    head = ["cutlass", (k.arch or "")[2:], k.flag["unit"], out, k.flag["op"]]
    tail = [k.flag.get("epilogue"), operand, _by(tile[:2]), depth, k.layout, f"align{k.alignment}"]
    return _join([*head, *tail])


def _cutlass3(k: Kernel) -> str:
    t = k.types
    types = [_CUTLASS_SHORT[x or ""] for x in (t.a, t.b, t.accumulate, t.out, t.out)]
    head = ["cutlass3x", k.arch, k.flag["unit"], k.flag["op"], *types, _by(k.tile)]
    tail = [_by(k.cluster), k.stages or 0, k.layout, f"align{k.alignment}", k.flag.get("epilogue")]
    return _join([*head, *tail])


def _flash2(k: Kernel) -> str:
    base = "flash_fwd_splitkv_kernel" if "split" in k.flag else "flash_fwd_kernel"
    base = base if k.role == "attention" else "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    given = set(k.flag) - {"warps"}
    names = next(v.split() for v in SWITCHES[base].values() if set(v.split()) == given)
    switches = ", ".join(str(bool(k.flag[name])).lower() for name in names)
    sizes = f"{k.template}, {_by(k.tile).replace('x', ', ')}, {k.flag['warps']}"
    kind = _CPP[k.types.a or ""]
    side = "bwd" if k.role == "attention_backward" else "fwd"
    extra = "4, 4, 4, false, false" if side == "bwd" else "false, false"
    traits = f"Flash_{side}_kernel_traits<{sizes}, {extra}, {kind}>"
    return f"void flash::{base}<{traits}, {switches}>(flash::Flash_{side}_params)"


_WRITERS: Mapping[str, Callable[[Kernel], str]] = {
    "native": _native,
    "xmma": _xmma,
    "nvjet": _nvjet,
    "cutlass2": _cutlass2,
    "cutlass3": _cutlass3,
    "flash2": _flash2,
}


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
