"""Kernel names → identities, and the kernels of one call → groups.

The rows and patterns are data (``names.toml``). A name that no row claims is ``unknown`` and kept.
Nothing here raises: names come from libraries not yet written.

Groups of the patterns and what they become: ``arch`` (``80``, ``Sm90``, ``ampere``), ``tile``,
``cluster``, ``mma`` (numbers), ``depth`` (K × stages), ``stages``, ``template``, ``warps``; the
operands' type from ``dtype``, ``operands`` (run together, ``bf16f32``), ``letters`` (nvjet's) or
the operation's letter ``op``; the multipliers' from ``math``, ``multipliers`` or ``products``;
``alignment`` (elements), or ``align_bytes``, ``copied_bits`` and ``tma``, which give it in bytes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from gacprof.core.files import Record
from gacprof.core.formatting import visible
from gacprof.kernels.spelling import head_of, readable, without_arguments

LONGEST = 20_000
"""Characters of a name that is read; the longest known, of CUTLASS 3, have some 10,000."""
TMA_BYTES = 16
"""Rows that TMA or a 128-bit ``cp.async`` can load are multiples of it (CUDA driver API,
cuTensorMapEncodeTiled)."""
COMPLETES = {
    "split_k_reduce": ("gemm", "gemv"),
    "epilogue": ("gemm", "gemv"),
    "dot_reduce": ("dot",),
    "attention_combine": ("attention",),
    "attention_convert": ("attention_backward",),
}
"""Roles that complete the work of a kernel before them → the roles that they complete."""
PAD_ROLES = ("fill", "copy", "pad")
"""Roles that ``constant_pad_nd`` is made of: it fills, then copies (ATen PadNd.cpp)."""
ELEMENT_BYTES = {
    **dict.fromkeys(("int8", "uint8", "float8", "float8_e4m3", "float8_e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "complex_int8"), 2),
    **dict.fromkeys(("float32", "tf32", "complex32", "complex_bfloat16"), 4),
    **dict.fromkeys(("float64", "complex64"), 8),
    "complex128": 16,
}
ARCHITECTURES = {
    **{"kepler": "35", "maxwell": "50", "pascal": "60", "volta": "70", "turing": "75"},
    **{"ampere": "80", "ada": "89", "hopper": "90", "blackwell": "100"},
}
MMA = {
    "".join(map(str, shape)): shape
    for shape in (
        *((8, 8, k) for k in (4, 16, 32, 128)),  # Volta fp16 and Ampere fp64; Turing int8
        *((16, 8, k) for k in (4, 8, 16, 32, 64, 128, 256)),  # from Turing on
        *((16, 16, 16), (32, 8, 16), (8, 32, 16)),  # wmma
    )
}
"""Instruction shapes as cuBLAS and CUTLASS run them together in a name (PTX ISA, mma, wmma)."""


@dataclass(frozen=True)
class Kernel:
    """One kernel's identity.

    ``provider`` is who wrote it (``cublas``, ``cutlass``, ``flash_attention``, ``cudnn``,
    ``mem_efficient``, ``triton``, ``aten``, ``cuda`` …, or ``unknown``), ``family`` the
    grammar that its name follows, ``role`` what it does (``gemm``, ``gemv``, ``attention``,
    ``split_k_reduce``, ``pad``, ``copy``, ``fill`` …).

    ``dtype`` is the operands' type, ``math`` what the multipliers see (``tf32``). ``tile`` is
    (M, N) or (M, N, K) in elements; attention tiles are (rows of q, rows of k, v). ``mma`` is one
    tensor-core instruction's (M, N, K). ``alignment`` is in elements of the operands: what the
    kernel needs their rows to be a multiple of. ``template`` is the head_dim an attention kernel
    was compiled for, ``even_k`` whether it asks that the head_dim fills it, ``warps`` a block's.
    """

    name: str
    provider: str = "unknown"
    family: str = "unknown"
    role: str = "unknown"
    arch: str | None = None
    dtype: str | None = None
    math: str | None = None
    tile: tuple[int, ...] | None = None
    stages: int | None = None
    cluster: tuple[int, ...] | None = None
    mma: tuple[int, ...] | None = None
    alignment: int | None = None
    template: int | None = None
    even_k: bool | None = None
    warps: int | None = None
    split_k: bool = False

    @property
    def known(self) -> bool:
        return self.provider != "unknown"

    @property
    def mechanism(self) -> str:
        """The tier that this kernel stands for: what serves, without tile and scheduling."""
        if not self.known:
            return f"unknown: {self.name}"
        parts = [self.family, self.arch, self.math if self.role in ("gemm", "gemv") else None]
        if self.template is not None:
            even = self.even_k
            parts += [f"d{self.template}", None if even is None else f"even_k={str(even).lower()}"]
        if self.mma:
            parts.append("m{}n{}k{}".format(*self.mma))
        if self.alignment:
            parts.append(f"align{self.alignment}")
        return " ".join(part for part in parts if part)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.tile)) if self.tile else ""
        extra = [shape, f"stages {self.stages}" if self.stages else ""]
        extra.append("split-k" if self.split_k else "")
        return " ".join(part for part in (self.mechanism, *extra) if part)

    def as_dict(self) -> dict[str, Any]:
        """Everything that the name says; what it does not say is left out."""
        full = asdict(self) | {"mechanism": self.mechanism}
        return {key: value for key, value in full.items() if value not in (None, False)}


class NamePattern(NamedTuple):
    """Names in whose ``path`` or ``text`` the pattern is found."""

    provider: str
    family: str
    role: str
    pattern: re.Pattern[str]
    on: str


class NameTable(NamedTuple):
    """The data, compiled: rows in order, patterns by family, switches, types and letters."""

    rows: tuple[NamePattern, ...]
    read: Mapping[str, tuple[re.Pattern[str], ...]]
    switches: Mapping[str, list[str]]
    types: Mapping[str, str]
    letters: Mapping[str, str]
    run_together: re.Pattern[str]


@cache
def table() -> NameTable:
    data = tomllib.loads(files("gacprof.kernels").joinpath("names.toml").read_text("utf-8"))
    macros = data["macros"]

    def compiled(pattern: str) -> re.Pattern[str]:
        for name, text in macros.items():
            pattern = pattern.replace(f"<{name}>", text)
        return re.compile(pattern)

    return NameTable(
        tuple(
            NamePattern(provider, family, role, compiled(form.replace("…", pattern)), group["on"])
            for group in data["group"]
            for form in [group.get("form", "…")]
            for provider, family, role, pattern in group["rows"]
        ),
        {family: tuple(map(compiled, listed)) for family, listed in data["read"].items()},
        {kernel: names.split() for kernel, names in data["switches"].items()},
        {word: name for name, words in data["types"].items() for word in words.split()},
        data["letters"],
        compiled("<type>"),
    )


@lru_cache(maxsize=16384)
def parse(name: str) -> Kernel:
    """What ``name`` says. Unknown names give ``provider="unknown"``; never raises.

    Control characters are escaped. No more is read of a name longer than any kernel's, or with
    a number of a thousand digits.
    """
    name = visible(name.replace("\n", " ").replace("\t", " "))
    if len(name) > LONGEST or re.search(r"\d{1000}", name):
        return Kernel(name)
    text = readable(name)
    head = head_of(text)
    places = {"text": text, "path": without_arguments(head)}
    found = next((row for row in table().rows if row.pattern.search(places[row.on])), None)
    if found is None:
        return Kernel(name)
    words: dict[str, str] = {}
    for pattern in table().read.get(found.family, ()):
        if match := pattern.search(head):
            given = {key: value for key, value in match.groupdict().items() if value}
            words = given | words
    fields = _fields(words, places["path"].rsplit("::", 1)[-1])
    return Kernel(name, found.provider, found.family, found.role, **fields)


# fields ------------------------------------------------------------------------------------


def _numbers(text: str) -> tuple[int, ...]:
    """``128x64``, ``128, 64`` and ``C<128>, C<64>`` → (128, 64)."""
    return tuple(map(int, re.findall(r"\d+", text)))


def _arch(text: str) -> str | None:
    number = ARCHITECTURES.get(text.lower(), text.lower().removeprefix("sm"))
    return f"sm{number}" if number[:1].isdigit() else None


def _mma(text: str) -> tuple[int, ...] | None:
    return MMA.get(text) if text.isdigit() else _numbers(text)


_AS_FIELD: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tile", "cluster"), _numbers),
    **dict.fromkeys(("alignment", "template", "warps"), int),
    "stages": lambda text: int(text) or None,  # 0: as many as fit
    "arch": _arch,
    "mma": _mma,
}


def _fields(words: Mapping[str, str], base: str) -> dict[str, Any]:
    fields = {key: of(words[key]) for key, of in _AS_FIELD.items() if key in words}
    if depth := words.get("depth"):
        k, fields["stages"] = _numbers(depth)
        fields["tile"] = (*fields["tile"], k)
    dtype = _dtype(words)
    fields |= {"dtype": dtype, "math": _math(words, dtype), "split_k": "split" in words}
    if (size := ELEMENT_BYTES.get(dtype or "")) and (asked := _bytes_asked(words)):
        size //= 2 if "planar" in words else 1  # real and imaginary parts lie apart
        fields["alignment"] = max(1, asked // size)
    if switches := words.get("switches"):
        fields |= _switches(base, switches.replace(" ", "").split(","))
    return fields


def _type(word: str) -> str | None:
    plain = word.strip().rsplit("::", 1)[-1].replace(" ", "_")
    return table().types.get(plain)


def _dtype(words: Mapping[str, str]) -> str | None:
    """Of the operands; where the name says none, the operation's own (``sgemm``: fp32)."""
    if "operands" in words or "dtype" in words:
        word = words.get("dtype") or table().run_together.match(words["operands"])[0]  # type: ignore[index]
        return _type(word)
    return table().letters.get(words.get("letters", "")[:1] or words.get("op", ""))


def _math(words: Mapping[str, str], dtype: str | None) -> str | None:
    """What the multipliers see: fp32 is rounded on tensor cores, to tf32 if not named."""
    if products := words.get("products"):
        return f"bfloat16x{products}"
    if named := words.get("math") or words.get("multipliers"):
        found = table().run_together.match(named)
        return _type(found[0]) if found else None
    return "tf32" if dtype == "float32" and words.get("tensor") and words.get("mma") else dtype


def _bytes_asked(words: Mapping[str, str]) -> int | None:
    """What rows must be a multiple of. The tags of xmma are **bytes**: fp32 kernels start at 4,
    complex fp32 at 8, fp16 at 2, and ``bf16f32`` (fp32 result) pairs ``aligna2`` with ``alignc4``
    (all xmma names of libcublasLt 12.8 and 13.x). Without a tag a tensor-core kernel asks for 16.
    A template of CUTLASS 3 tells it by how its operands are copied."""
    if "align_bytes" in words:
        return int(words["align_bytes"])
    if "copied_bits" in words:
        return int(words["copied_bits"]) // 8
    untagged = "operands" in words and "no_tensor" not in words
    return TMA_BYTES if untagged or "tma" in words else None


def _switches(kernel: str, values: list[str]) -> dict[str, Any]:
    names = list(table().switches.get(kernel, ()))
    for lacking in ("softcap", "alibi", "local"):
        if len(names) > len(values) and lacking in names:
            names.remove(lacking)
    given = dict(zip(names, (value == "true" for value in values), strict=False))
    return {"even_k": given.get("even_k"), "split_k": given.get("split", False)}


# groups ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelGroup(Record):
    """One piece of work: its main kernel, what prepared its operands, what completed it."""

    main: Kernel
    before: tuple[Kernel, ...] = ()
    after: tuple[Kernel, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (*self.before, self.main, *self.after)


def attach(names: Iterable[str]) -> list[KernelGroup]:
    """Kernels of one call, in launch order, as groups.

    A split-K reduction joins the GEMM before it, which is then marked ``split_k``; likewise
    combining kernels of attention. Fills and copies right before an attention kernel are its
    padding if there is a fill or pad among them (a copy alone may be anything).
    """
    groups: list[KernelGroup] = []
    for kernel in map(parse, names):
        last = groups[-1] if groups else None
        if last and last.main.role in COMPLETES.get(kernel.role, ()):
            split = kernel.role in ("split_k_reduce", "attention_combine")
            main = replace(last.main, split_k=True) if split else last.main
            groups[-1] = replace(last, main=main, after=(*last.after, kernel))
        elif kernel.role.startswith("attention") and kernel.known:
            before = _padding(groups)
            del groups[len(groups) - len(before) :]
            groups.append(KernelGroup(kernel, before))
        else:
            groups.append(KernelGroup(kernel))
    return groups


def _padding(groups: list[KernelGroup]) -> tuple[Kernel, ...]:
    run: list[Kernel] = []
    for group in reversed(groups):
        if group.main.role not in PAD_ROLES or group.after:
            break
        run.insert(0, group.main)
    return tuple(run) if any(kernel.role != "copy" for kernel in run) else ()
