"""Read kernel names as identities, and the kernels of one call as groups.

Rows and patterns are data (``names.toml``). A name that no row claims is ``unknown``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from gacprof.core.dtypes import ITEMSIZE
from gacprof.core.files import row_of_word, shipped_table
from gacprof.kernels.demangle import head_of, readable, without_arguments

NAMES = Path(__file__).with_name("names.toml")
NAME_TABLES = shipped_table(NAMES, dict[str, Any])
TYPES = row_of_word({name: words.split() for name, words in NAME_TABLES["types"].items()})
MAX_NAME = 20_000  # characters of a name that is read; the longest of CUTLASS 3 have some 10,000
TMA_BYTES = 16  # rows for TMA and a 128-bit cp.async are multiples of it (cuTensorMapEncodeTiled)
PAD_ROLES = ("fill", "copy", "pad")  # constant_pad_nd fills, then copies (ATen PadNd.cpp)


@dataclass(frozen=True)
class Kernel:
    """One kernel's identity. What its name does not say is None.

    ``provider`` is who wrote it (``cublas``, ``aten`` …), ``family`` the grammar that its name
    follows, ``role`` what it does (``gemm``, ``pad`` …); ``names.toml`` has them all. ``dtype`` is
    the operands' type, ``math`` what the multipliers see (``tf32``). ``mma`` is one tensor-core
    instruction's (M, N, K). Rows of the operands and of the result are a multiple of ``alignment``
    elements. ``layout`` says by cuBLAS's letters which operands are transposed (``tn``): W of
    ``x·Wᵀ`` comes first there. ``template`` is the head_dim of an attention kernel, ``even_k``
    whether it needs one that fills it. Operands are ``padded`` by kernels before it.
    """

    name: str
    provider: str = "unknown"
    family: str = "unknown"
    role: str = "unknown"
    arch: str | None = None
    dtype: str | None = None
    math: str | None = None
    mma: tuple[int, ...] | None = None
    alignment: int | None = None
    layout: str | None = None
    template: int | None = None
    even_k: bool | None = None
    split_k: bool = False
    padded: bool = False

    @property
    def contiguous_dims(self) -> str:
        """The dims of y[M, N] = x[M, K] · W[N, K]ᵀ that have to be a multiple of ``alignment``:
        those that lie contiguous in W, in x and in y. So for ``F.linear`` (tn) N and K.

        Of 3,944 kernels of public traces 3,940 agree; the other 4 read memory that is off 16 bytes
        (reports/traces.md).
        """
        dims_by_layout = {"tn": "KN", "nn": "NK", "nt": "NM", "tt": "KMN"}
        return dims_by_layout[self.layout or "tn"]

    @property
    def mechanism(self) -> str:
        """The tier, without tile and scheduling: ``native sm80 bfloat16 m16n8k16 align8``."""
        if self.provider == "unknown":
            return f"unknown: {self.name}"
        parts = [self.family, self.arch]
        if self.role in ("gemm", "gemv"):
            parts.append(self.math)
        if self.template is not None:
            parts.append(f"d{self.template}")
            if self.even_k is not None:
                parts.append(f"even_k={str(self.even_k).lower()}")
        if self.mma:
            parts.append("m{}n{}k{}".format(*self.mma))
        if self.alignment:
            parts.append(f"align{self.alignment}")
        return " ".join(part for part in parts if part)


@cache
def pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern of the table with its macros filled in."""
    for name, macro in NAME_TABLES["macros"].items():
        text = text.replace(f"<{name}>", macro)
    return re.compile(text)


@cache
def rows() -> list[tuple[str, re.Pattern[str], Sequence[str]]]:
    """Return the table's rows: whether ``text`` or ``path`` is searched, for what, what it is."""
    compiled = []
    for group in NAME_TABLES["group"]:
        form = group.get("form", "…")
        for *identity, pattern in group["rows"]:
            compiled.append((group["on"], pattern_of(form.replace("…", pattern)), identity))
    return compiled


@lru_cache(maxsize=16384)
def parse(name: str) -> Kernel:
    """Return the identity that a kernel's name states; provider ``unknown`` for other forms."""
    # int() refuses numbers of more than 4,300 digits.
    if len(name) > MAX_NAME or re.search(r"\d{1000}", name):
        return Kernel(name)
    text = readable(name)
    head = head_of(text)
    path = without_arguments(head)
    for on, pattern, (provider, family, role) in rows():
        if pattern.search(path if on == "path" else text):
            words: dict[str, str] = {}
            for read in NAME_TABLES["read"].get(family, ()):
                match = pattern_of(read).search(head)
                groups = match.groupdict() if match else {}
                # Patterns stand in order: what an earlier one took stays.
                words = {key: value for key, value in groups.items() if value} | words
            return Kernel(name, provider, family, role, **_fields(words, path.rsplit("::", 1)[-1]))
    return Kernel(name)


def _fields(words: Mapping[str, str], function: str) -> dict[str, Any]:
    """Return a kernel's fields from the words that the patterns took out of its name."""
    dtype = _dtype(words)
    mma = words.get("mma", "")  # 16816, 16x8x16 or 16, 8, 16
    shape = NAME_TABLES["mma"].get(mma, ()) if mma.isdigit() else re.findall(r"\d+", mma)
    fields: dict[str, Any] = {
        "dtype": dtype,
        "math": _math(words, dtype),
        "mma": tuple(map(int, shape)) or None,
        "alignment": _alignment(words, dtype),
        "template": int(words["template"]) if "template" in words else None,
        "split_k": "split" in words,
        "layout": words["layout"].lower() if "layout" in words else None,
    }
    if "arch" in words:
        arch = words["arch"].lower()
        arch = NAME_TABLES["generations"].get(arch, arch)
        fields["arch"] = f"sm{arch}" if arch[0].isdigit() else arch
    if "switches" in words:  # boolean template arguments of a flash kernel
        values = words["switches"].replace(" ", "").split(",")
        names = list(NAME_TABLES["switches"].get(function, ()))
        for lacking in ("softcap", "alibi", "local"):
            if len(names) > len(values) and lacking in names:
                names.remove(lacking)
        switches = dict(zip(names, (value == "true" for value in values), strict=False))
        fields["even_k"] = switches.get("even_k")
        fields["split_k"] = switches.get("split", False)
    return fields


def _type(word: str) -> str | None:
    return TYPES.get(word.strip().rsplit("::", 1)[-1].replace(" ", "_"))


def _first_type(words: str) -> str | None:
    first = pattern_of("<type>").match(words)
    return _type(first[0]) if first else None


def _dtype(words: Mapping[str, str]) -> str | None:
    """Return the operands' type; where the name says none, the operation's (``sgemm``: float32)."""
    if "dtype" in words:
        return _type(words["dtype"])
    if "operands" in words:
        return _first_type(words["operands"])
    return NAME_TABLES["letters"].get(words.get("letters", "")[:1] or words.get("op", ""))


def _math(words: Mapping[str, str], dtype: str | None) -> str | None:
    if "products" in words:
        return f"bfloat16x{words['products']}"
    multipliers = words.get("math") or words.get("multipliers")
    if multipliers:
        return _first_type(multipliers)
    if dtype == "float32" and "tensor" in words and "mma" in words:
        return "tf32"  # tensor cores round fp32, to tf32 where no other type is named
    return dtype


def _alignment(words: Mapping[str, str], dtype: str | None) -> int | None:
    """Return the elements that rows must be a multiple of; some names say bytes or bits."""
    itemsize = ITEMSIZE.get(dtype or "")
    if itemsize and "planar" in words:
        itemsize //= 2  # real and imaginary parts lie apart
    nbytes = None
    if "align_bytes" in words:
        # The tags of xmma are bytes: fp32 kernels start at 4, fp16 at 2, and bf16f32 (fp32 result)
        # pairs aligna2 with alignc4 (all xmma names of libcublasLt 12.8 and 13.x).
        nbytes = int(words["align_bytes"])
    elif "copied_bits" in words:  # a template of CUTLASS 3 tells it by its copies
        nbytes = int(words["copied_bits"]) // 8
    elif "tma" in words or ("operands" in words and "no_tensor" not in words):
        nbytes = TMA_BYTES  # tensor-core kernels without a tag of xmma's need as much
    if itemsize and nbytes is not None:
        return max(1, nbytes // itemsize)
    return int(words["alignment"]) if "alignment" in words else None


def attach(names: Iterable[str]) -> list[Kernel]:
    """Group the main kernels of one call, in launch order.

    A split-K reduction joins the GEMM before it, which is then marked ``split_k``; so do combining
    kernels of attention. Fills and copies right before an attention kernel are its padding, and it
    is marked ``padded``, if a fill or pad is among them (a copy may be anything).
    """
    kernels: list[Kernel] = []
    for kernel in map(parse, names):
        last = kernels[-1] if kernels else None
        if last and last.role in NAME_TABLES["completes"].get(kernel.role, ()):
            if kernel.role in ("split_k_reduce", "attention_combine"):
                kernels[-1] = replace(last, split_k=True)
            continue
        if kernel.role.startswith("attention"):
            start = len(kernels)
            while start and kernels[start - 1].role in PAD_ROLES:
                start -= 1
            if any(other.role != "copy" for other in kernels[start:]):
                del kernels[start:]
                kernel = replace(kernel, padded=True)
        kernels.append(kernel)
    return kernels
