"""A kernel's name taken apart: as C++ into path and template arguments, and into words.

Names come from several tools, each with its own spelling. The PyTorch profiler prints
``void f<128, false>(Params)``, Nsight Compute ``f<(int)128, (bool)0>``, symbol tables
``_Z1fILi128ELb0EEvP6Params``, and tables cut long names short. All of them end up as the
same :class:`Signature`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.kernels.demangle import demangle, identifiers

_CAST = re.compile(r"\((?:unsigned )?(?:int|long|short|char|bool)(?: long)?\)(-?\d+)")
_BOOL_CAST = re.compile(r"\(bool\)([01])")
_LAUNCHER = re.compile(r"^(?:cutlass::(?:Kernel2?|device_kernel)|(?:\w+::)*enable_\w*sm\w+)$")
"""Entry points that only carry the kernel proper as their first template argument."""
_OPEN, _CLOSE = "<({[", ">)}]"

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


@dataclass(frozen=True)
class Signature:
    """``path`` is the function's qualified name without template arguments."""

    text: str
    path: str
    arguments: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("::", 1)[-1]

    @property
    def integers(self) -> list[int]:
        return [int(a) for a in self.arguments if re.fullmatch(r"-?\d+", a)]

    @property
    def booleans(self) -> list[bool]:
        return [a == "true" for a in self.arguments if a in ("true", "false")]


def take_apart(name: str) -> Signature:
    """Never fails: what is not C++ comes back as a path without arguments."""
    text = " ".join(name.split())
    if text.startswith("_Z"):
        readable = demangle(text)
        if readable is None:
            return Signature(text, "::".join(identifiers(text)) or text)
        text = readable
    text = _BOOL_CAST.sub(lambda m: "true" if m.group(1) == "1" else "false", text)
    text = _CAST.sub(r"\1", text)
    text = re.sub(r"(?<=\d)u?l?l?(?=[,>])", "", text)
    path, arguments = template(_head(text))
    while _LAUNCHER.match(path) and arguments:
        path, arguments = template(arguments[0])
    return Signature(text, path, tuple(arguments))


def template(text: str) -> tuple[str, list[str]]:
    """``ns::name<a, b>`` → ``("ns::name", ["a", "b"])``; of several groups, the last."""
    cut = text.find("<") if "<" in text else len(text)
    depth = 0
    for at, letter in enumerate(text):
        if letter == "<":
            cut = at if depth == 0 else cut
            depth += 1
        elif letter == ">" and text[at - 1] != "-":
            depth -= 1
    path = re.sub(r"<.*>", "", text[:cut])
    inside = text[cut + 1 :].rstrip()
    inside = inside[:-1] if inside.endswith(">") else re.sub(r"[.…]+$", "", inside)
    return path, split_arguments(inside)


def split_arguments(text: str) -> list[str]:
    """``a, b<c, d>`` → ``["a", "b<c, d>"]``."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _head(text: str) -> str:
    """The text without return type and parameters."""
    marked = text.replace("(anonymous namespace)", "{anonymous}")
    depth = 0
    start, end = 0, len(marked)
    for at, letter in enumerate(marked):
        if letter == "(" and depth == 0 and at > start:
            end = at
            break
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == " " and depth == 0 and re.match(r" [A-Za-z_{]", marked[at : at + 2]):
            start = at + 1
    return marked[start:end]


class Words:
    """A name's words sorted by what they look like.

    Each word goes to the first kind whose pattern it fully matches; if the pattern has a
    group, that is what is kept of the word. ``rest`` is what matches none.
    """

    def __init__(self, words: Sequence[str], kinds: Mapping[str, str]) -> None:
        self.found: dict[str, list[str]] = {kind: [] for kind in kinds}
        self.rest: list[str] = []
        for word in words:
            for kind, pattern in kinds.items():
                if match := re.fullmatch(pattern, word):
                    self.found[kind].append(match[match.lastindex or 0])
                    break
            else:
                self.rest.append(word)

    def get(self, kind: str, index: int = 0) -> str | None:
        listed = self.found[kind]
        return listed[index] if len(listed) > index else None

    def shapes(self, kind: str) -> list[tuple[int, ...]]:
        return [numbers(text) for text in self.found[kind]]

    def fields(self) -> dict[str, Any]:
        """Words of the kinds that are fields of a kernel, as values of those fields."""
        made: dict[str, Any] = {}
        for kind, listed in self.found.items():
            if listed and kind in ("tile", "cluster", "mma"):
                made[kind] = numbers(listed[0])
            elif listed and kind in ("stages", "alignment", "template"):
                made[kind] = int(listed[-1])
            elif listed and kind == "arch":
                made[kind] = listed[0]
            elif listed and kind == "layout":
                made[kind] = listed[-1].lower()
        return made


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
