"""What a kernel's name says, as one frozen value, and the words that names are made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Fields = dict[str, Any]
"""Fields of :class:`~gacprof.kernels.kernel.Kernel` that a name gives."""

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
ELEMENT_BYTES = {
    **dict.fromkeys(("int8", "uint8", "float8", "float8_e4m3", "float8_e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "complex_int8"), 2),
    **dict.fromkeys(("float32", "tf32", "complex32", "complex_bfloat16"), 4),
    **dict.fromkeys(("float64", "complex64"), 8),
    "complex128": 16,
}
TMA_BYTES = 16
"""Rows that TMA or a 128-bit ``cp.async`` can load are multiples of it (CUDA driver API,
cuTensorMapEncodeTiled)."""
ARCHITECTURES = {
    **{"kepler": "sm35", "maxwell": "sm50", "pascal": "sm60", "volta": "sm70", "turing": "sm75"},
    **{"ampere": "sm80", "ada": "sm89", "hopper": "sm90", "blackwell": "sm100"},
}
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
MMA = {
    "".join(map(str, shape)): shape
    for shape in (
        *((8, 8, k) for k in (4, 16, 32, 128)),  # Volta fp16 and Ampere fp64; Turing int8
        *((16, 8, k) for k in (4, 8, 16, 32, 64, 128, 256)),  # from Turing on
        *((16, 16, 16), (32, 8, 16), (8, 32, 16)),  # wmma
    )
}
"""Instruction shapes as cuBLAS and CUTLASS run them together in a name (PTX ISA, mma, wmma)."""


def data_type(word: str) -> str | None:
    """The data type that a word of a kernel name stands for, or None."""
    plain = re.sub(r"^(const |volatile )|( const| \*|\*|&)+$", "", word.strip())
    plain = re.sub(r"^(?:ue8m0|ue4m3)x", "", plain)  # block scale × element
    return _BY_WORD.get(plain.rsplit("::", 1)[-1].replace(" ", "_"))


def data_types(words: Iterable[str]) -> list[str]:
    """Those of ``words`` that are data types, in order."""
    return [kind for word in words if (kind := data_type(word)) is not None]


def run_together(text: str) -> list[str]:
    """``e4m3e5m2f32`` → its types, in order. Empty if there is anything else in it."""
    part = r"ci8|c?bf16|tf32|c?f16|c?f32|c?f64|e4m3|e5m2|e2m1|[iu]8|i32|i4|f8"
    return data_types(re.findall(part, text)) if re.fullmatch(f"(?:{part})+", text) else []


def first(pattern: str, text: str, of: Callable[[str], Any] = str) -> Any:
    """What the pattern's group finds in the text, by ``of``; None where it finds nothing."""
    found = re.search(pattern, text)
    return of(found[found.lastindex or 0]) if found else None


def numbers(text: str) -> tuple[int, ...]:
    """``128x64`` → (128, 64)."""
    return tuple(int(n) for n in text.split("x"))


_AS_FIELD: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tile", "cluster", "mma"), numbers),
    **dict.fromkeys(("stages", "alignment", "template"), int),
    **{"arch": str, "layout": str.lower},
}


class Words:
    """A name's words sorted by what they look like.

    Each word goes to the first kind whose pattern it fully matches; if the pattern has a
    group, that is what is kept of the word. ``rest`` is what matches none.
    """

    def __init__(self, words: Sequence[str], kinds: Mapping[str, str]) -> None:
        self.found: dict[str, list[str]] = {}
        self.rest: list[str] = []
        for word in words:
            for kind, pattern in kinds.items():
                if match := re.fullmatch(pattern, word):
                    self.found.setdefault(kind, []).append(match[match.lastindex or 0])
                    break
            else:
                self.rest.append(word)

    def get(self, kind: str, index: int = 0) -> str | None:
        listed = self.found.get(kind, ())
        return listed[index] if len(listed) > index else None

    def fields(self) -> Fields:
        """Words of the kinds that are fields of a kernel, as values of those fields.

        Pairs are M×N, K×stages and the cluster; a triple is the whole tile, its number the stages.
        """
        made: Fields = {
            kind: _AS_FIELD[kind](listed[-1])
            for kind, listed in self.found.items()
            if kind in _AS_FIELD
        }
        pairs = [numbers(text) for text in self.found.get("pair", ())]
        if triple := self.get("triple"):
            made |= {"tile": numbers(triple), "stages": int(self.get("number") or 0) or None}
        elif len(pairs) > 1:
            made |= {"tile": (*pairs[0], pairs[1][0]), "stages": pairs[1][1]}
            made["cluster"] = pairs[2] if len(pairs) > 2 else None
        elif pairs:
            made["tile"] = pairs[0]
        return made


Flag = str | int | bool


@dataclass(frozen=True)
class Types:
    """Data types by their part in the work; ``math`` is what the multipliers see (``tf32``)."""

    a: str | None = None
    b: str | None = None
    math: str | None = None
    accumulate: str | None = None
    out: str | None = None


@dataclass(frozen=True)
class Kernel:
    """One kernel's identity.

    ``provider`` is who wrote it (``cublas``, ``cutlass``, ``flash_attention``, ``cudnn``,
    ``mem_efficient``, ``triton``, ``aten``, ``cuda`` …, or ``unknown``), ``family`` the
    grammar that its name follows, ``role`` what it does (``gemm``, ``gemv``, ``attention``,
    ``split_k_reduce``, ``pad``, ``copy``, ``fill`` …).

    ``tile`` is (M, N) or (M, N, K) in elements; attention tiles are (rows of q, rows of k, v).
    ``mma`` is one tensor-core instruction's (M, N, K). ``alignment`` is in elements of the
    operands: what the kernel needs their rows to be a multiple of. ``layout`` is BLAS's
    ``tn`` and so on; ``template`` the head_dim an attention kernel was compiled for.
    """

    name: str
    provider: str = "unknown"
    family: str = "unknown"
    role: str = "unknown"
    arch: str | None = None
    types: Types = Types()
    tile: tuple[int, ...] | None = None
    stages: int | None = None
    cluster: tuple[int, ...] | None = None
    mma: tuple[int, ...] | None = None
    alignment: int | None = None
    layout: str | None = None
    template: int | None = None
    split_k: bool = False
    flags: tuple[tuple[str, Flag], ...] = ()

    @property
    def known(self) -> bool:
        return self.provider != "unknown"

    @property
    def flag(self) -> dict[str, Flag]:
        return dict(self.flags)

    @property
    def mechanism(self) -> str:
        """The tier that this kernel stands for: what serves, without tile and scheduling."""
        if not self.known:
            return f"unknown: {self.name}"
        math = self.types.math if self.role in ("gemm", "gemv") else None
        parts = [self.family, self.arch or "", math or ""]
        if self.template is not None:
            even = self.flag.get("even_k")
            parts += [f"d{self.template}", "" if even is None else f"even_k={str(even).lower()}"]
        if self.mma:
            parts.append("m{}n{}k{}".format(*self.mma))
        if self.alignment:
            parts.append(f"align{self.alignment}")
        return " ".join(part for part in parts if part)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.tile)) if self.tile else ""
        extra = [shape, f"stages {self.stages}" if self.stages else "", self.layout or ""]
        extra.append("split-k" if self.split_k else "")
        return " ".join(part for part in (self.mechanism, *extra) if part)

    def as_dict(self) -> dict[str, Any]:
        """Everything that the name says; what it does not say is left out."""
        full = asdict(self) | {"flags": self.flag, "mechanism": self.mechanism}
        full["types"] = {part: kind for part, kind in full["types"].items() if kind}
        return {key: value for key, value in full.items() if value not in (None, {}, False)}
