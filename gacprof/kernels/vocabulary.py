"""Words that kernel names are made of: data types, instruction shapes, architectures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TYPES = {
    "float16": "f16 fp16 half __half half_t __half2 _Float16 Half",
    "bfloat16": "bf16 bfloat16 bfloat16_t __nv_bfloat16 __nv_bfloat162 BFloat16 __bf16",
    "tf32": "tf32 tfloat32_t",
    "float32": "f32 fp32 float",
    "float64": "f64 fp64 double",
    "complex32": "cf16",
    "complex_bfloat16": "cbf16",
    "complex64": "cf32 cp32 float2 cuComplex",
    "complex128": "cf64 cp64 double2 cuDoubleComplex",
    "float8": "f8",
    "float8_e4m3": "e4m3 __nv_fp8_e4m3 float_e4m3_t Float8_e4m3fn",
    "float8_e5m2": "e5m2 __nv_fp8_e5m2 float_e5m2_t Float8_e5m2",
    "float4": "f4",
    "float4_e2m1": "e2m1 __nv_fp4_e2m1 float_e2m1_t",
    "int4": "i4 s4 int4b_t",
    "int8": "i8 s8 int8 int8_t char signed_char",
    "uint8": "u8 uint8 uint8_t unsigned_char",
    "complex_int8": "ci8",
    "int32": "i32 s32 int32 int int32_t",
    "int64": "int64_t long",
    "bool": "bool",
}
_BY_WORD = {word: name for name, words in _TYPES.items() for word in words.split()}

MMA = {
    "884": (8, 8, 4),  # Volta fp16, and fp64 from Ampere on
    "1684": (16, 8, 4),  # tf32
    "1688": (16, 8, 8),  # Turing fp16, Ampere tf32
    "16816": (16, 8, 16),
    "16832": (16, 8, 32),
    "16864": (16, 8, 64),
    "168128": (16, 8, 128),
    "168256": (16, 8, 256),
    "8816": (8, 8, 16),  # Turing int8
    "8832": (8, 8, 32),
    "88128": (8, 8, 128),
    "161616": (16, 16, 16),  # wmma
    "32816": (32, 8, 16),
    "83216": (8, 32, 16),
}
"""Instruction shapes as cuBLAS and CUTLASS run them together in a name (PTX ISA, mma, wmma)."""

ARCHITECTURES = {
    "kepler": "sm35",
    "maxwell": "sm50",
    "pascal": "sm60",
    "volta": "sm70",
    "turing": "sm75",
    "ampere": "sm80",
    "ada": "sm89",
    "hopper": "sm90",
    "blackwell": "sm100",
}

NVJET_TYPES = {
    "h": "float16",
    "t": "bfloat16",
    "s": "float32",
    "d": "float64",
    "c": "complex64",
    "z": "complex128",
    "q": "float8_e4m3",
    "r": "float8_e5m2",
    "o": "float4_e2m1",
    "i": "int32",
    "b": "int8",
}
"""Type letters in nvjet names, after cuBLAS's own ``HSH``, ``TST``. In public traces ``ootst`` is
what an NVFP4 product runs and ``biu`` an int8 one; i and b by analogy, u is not understood."""

OP_LETTERS = {
    "s": ("float32", "float32"),
    "h": ("float16", "float16"),
    "d": ("float64", "float64"),
    "c": ("complex64", "complex64"),
    "z": ("complex128", "complex128"),
    "gc": ("complex64", "complex64"),  # Gauss's three products for one complex product
    "gz": ("complex128", "complex128"),
    "i": ("int8", "int32"),
    "b": ("bfloat16", "bfloat16"),
}
"""BLAS letter → (operands where the name gives no other, accumulator)."""


def data_type(word: str) -> str | None:
    """The data type that a word of a kernel name stands for, or None."""
    plain = re.sub(r"^(const |volatile )|( const| \*|\*|&)+$", "", word.strip())
    scaled = re.fullmatch(r"(?:ue8m0|ue4m3)x(\w+)", plain)  # block scale × element
    plain = scaled.group(1) if scaled else plain
    return _BY_WORD.get(plain.rsplit("::", 1)[-1].replace(" ", "_"))


def data_types(words: Sequence[str]) -> list[str]:
    """Those of ``words`` that are data types, in order."""
    return [kind for word in words if (kind := data_type(word)) is not None]


def run_together(text: str) -> list[str]:
    """``e4m3e5m2f32`` → its types, in order. Empty if there is anything else in it."""
    part = r"ci8|c?bf16|tf32|c?f16|c?f32|c?f64|e4m3|e5m2|e2m1|[iu]8|i32|i4|f8"
    if not re.fullmatch(f"(?:{part})+", text):
        return []
    return data_types(re.findall(part, text))


def numbers(text: str) -> tuple[int, ...]:
    """``128x64`` → (128, 64)."""
    return tuple(int(n) for n in text.split("x"))


def sort_tokens(
    tokens: Sequence[str], kinds: Mapping[str, str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Give each token the first kind whose pattern it fully matches.

    Returns the tokens by kind, in order, and those that match none.
    """
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    rest = []
    for token in tokens:
        for kind, pattern in kinds.items():
            if re.fullmatch(pattern, token):
                found[kind].append(token)
                break
        else:
            rest.append(token)
    return found, rest
