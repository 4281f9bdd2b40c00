"""Recorded answers of PyTorch's dispatchers: which kernel serves a size on a GPU not at hand.

A table (made by ``gacprof dispatch``) holds what an unmodified PyTorch chose on a virtual GPU. A
size that was not asked has no answer: nothing is interpolated.
"""

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import InvalidVersion, Version

from gacprof.core.errors import ConfigError, GacprofError
from gacprof.kernels.flash import key_parts

SCHEMA = "gacprof.dispatch/1"
FOLDER = Path(__file__).parent.parent / "dispatch"
FLASH_MULTIPLE = 8  # SDPA pads head_dim to a multiple of it for flash (attention.cpp)
SDPA_SHAPES = {
    "q = kv = 1": (1, 1),
    "q = 1 < kv": (1, 1024),
    "q > kv = 1": (64, 1),
    "q = kv > 1": (1024, 1024),
    "1 < q < kv": (17, 1024),
    "q > kv > 1": (1024, 17),
}
"""Kinds of (queries, keys) that SDPA tells apart, by the pair that was asked for each."""
SCOPE = (
    "Attention is that of inference, of dense tensors, views and broadcast masks; training "
    "(gradients, dropout) may take another kernel."
)


def sdpa_shape(q_len: int, kv_len: int) -> str:
    """Return the kind of a pair of lengths, a key of SDPA_SHAPES."""
    if q_len == kv_len:
        return "q = kv = 1" if q_len == 1 else "q = kv > 1"
    if 1 in (q_len, kv_len):
        return "q = 1 < kv" if q_len == 1 else "q > kv = 1"
    return "1 < q < kv" if q_len < kv_len else "q > kv > 1"


def refuse_uneven_heads(heads: int, kv_heads: int) -> None:
    """Raise :class:`ConfigError` for heads that PyTorch's attention refuses."""
    if min(heads, kv_heads) < 1 or heads % kv_heads:
        raise ConfigError(
            f"{heads} query heads cannot share {kv_heads} key heads evenly, which PyTorch refuses: "
            "give a number of key heads that divides them"
        )


@dataclass(frozen=True)
class SdpaAnswer:
    """SDPA's backend and its kernel; None for cuDNN's, math's, and where it was not asked."""

    backend: str
    kernel: str | None

    def __str__(self) -> str:
        plain = {"math": "no fused kernel", "cudnn": "its own choice of kernel"}
        otherwise = plain.get(self.backend, "a kernel that was not recorded")
        return f"SDPA {self.backend}: {self.kernel or otherwise}"


@dataclass(frozen=True)
class Section:
    """Answers to one kind of question, by key, for whole ranges of a size.

    A run ``[first, last, [a, b, …]]`` says that size s has answer number ``[a, b, …][s mod n]``,
    n the length of the list. ``by`` names the parts of a key; a row is a key and the number of its
    runs. ``common`` are the facts of all its questions, ``asked`` in the file.
    """

    by: Sequence[str]
    range: Sequence[int]
    answers: Sequence[Any]
    runs: Sequence[Sequence[Sequence[Any]]]
    rows: Sequence[Sequence[Any]]
    common: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def keys(self) -> Mapping[tuple, int]:
        """By key: the number of its runs."""
        return {tuple(row[:-1]): row[-1] for row in self.rows}

    def lookup(self, size: int, *key: object) -> Any:
        """Return the answer for a size; None where it was not asked."""
        runs = self.runs[self.keys[key]] if key in self.keys else []
        index = bisect.bisect_right(runs, size, key=lambda run: run[0]) - 1
        if index < 0 or size > runs[index][1]:
            return None
        pattern = runs[index][2]
        return self.answers[pattern[size % len(pattern)]]


@dataclass(frozen=True)
class DispatchTable:
    """What one release of PyTorch dispatches on one GPU; ``profile`` is what a driver told it."""

    schema: ClassVar[str] = SCHEMA
    gpu: str
    device: str
    release: str
    provenance: str
    versions: Mapping[str, str]
    profile: Mapping[str, int]
    sections: Mapping[str, Section]

    def sdpa(
        self,
        head_dim: int,
        dtype: str = "bfloat16",
        q_len: int = 1024,
        kv_len: int = 1024,
        *,
        causal: bool = False,
        mask: str = "none",
        gqa: bool = False,
        heads: int | None = None,
        kv_heads: int | None = None,
        batch: int | None = None,
    ) -> SdpaAnswer | None:
        """Return SDPA's choice at inference (:data:`SCOPE`); None where it was not asked.

        ``mask`` is "none", "float" or "bool"; ``gqa`` whether keys have fewer heads than queries,
        which ``heads`` and ``kv_heads`` (by default as many) tell too. FlashAttention-2's tile
        depends on them and on ``batch``: without one of them its template alone is named. Raises
        :class:`ConfigError` for key heads that do not divide the query heads.
        """
        if heads and not gqa:
            kv_heads = kv_heads or heads
        if heads and kv_heads:
            refuse_uneven_heads(heads, kv_heads)
            gqa = heads != kv_heads
        key = (dtype, mask, causal, gqa, sdpa_shape(q_len, kv_len))
        backend = self.sections["sdpa"].lookup(head_dim, *key)
        if backend is None:
            return None
        kernel = None
        if backend == "flash":
            parts, tile = 1, "its tile depends on heads × batch"
            grid: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
            if all(grid.values()):
                parts = key_parts(head_dim, q_len, kv_len, sms=self.profile["sms"], **grid)
                tile = "tile {tile[0]} × {tile[1]}, {warps} warps"
            if parts > 1:
                tile += f", keys in {parts} parts"
            # A tile depends on whether keys are split; only a whole one on causal, and not with one
            # query, which sees all keys. Of the shapes that were asked prefill has whole keys on
            # every GPU, decode split ones.
            shape = "decode" if parts > 1 else "prefill"
            is_causal = causal and q_len > 1 and parts == 1
            flash = self.fa2(head_dim, dtype, shape, causal=is_causal, gqa=gqa)
            if flash is not None:
                padded = ", head_dim padded before" if head_dim % FLASH_MULTIPLE else ""
                text = f"FlashAttention-2 for head_dim {{template}}, {tile}{padded}"
                kernel = text.format_map(flash)
        elif backend == "efficient":
            shape = "decode" if q_len == 1 else "prefill"
            kernel = self.sections["efficient"].lookup(head_dim, dtype, mask, causal, gqa, shape)
        return SdpaAnswer(backend, kernel)

    def fa2(
        self,
        head_dim: int,
        dtype: str = "bfloat16",
        shape: str = "prefill",
        *,
        causal: bool = False,
        gqa: bool = False,
    ) -> Mapping[str, Any] | None:
        """Return FlashAttention-2's kernel; None where it was not asked or is refused.

        ``template`` is the head_dim it is compiled for, ``tile`` queries × keys, ``splits`` the
        parts of the keys, ``shared_bytes`` dynamic shared memory of a block. ``shape`` is one of
        ``sections["fa2"].common["shapes"]``, (batch, queries, keys) by name.
        """
        answer = self.sections["fa2"].lookup(head_dim, dtype, "none", causal, gqa, shape)
        return answer if isinstance(answer, dict) else None

    def rows(
        self, operator: str, size: int, *, dtype: str = "bfloat16", tokens: int = 16
    ) -> str | None:
        """Return the kernels of an operator on rows of a length; None where it was not asked."""
        return self.sections["rows"].lookup(size, operator, dtype, tokens)

    def stream(self, operator: str, size: int, dtype: str = "bfloat16") -> str:
        """Return how Triton compiles gacprof's "row_sum" or "row_copy" for rows of a length up to
        256, which is their stride too."""
        answer = self.sections["stream"].lookup(size, operator, dtype)
        return "loads of {load_bytes} bytes, {registers} registers".format_map(answer)

    def product(self, operator: str, axis: str, size: int) -> str | None:
        """Return the kernels of a product over one axis, or "refused: …"; None: not asked."""
        return self.sections["products"].lookup(size, operator, axis)


def parse_table(text: str) -> DispatchTable:
    """Return the table of a JSON text. Raises :class:`GacprofError` for another schema."""
    data = json.loads(text)
    if data.get("schema") != SCHEMA:
        raise GacprofError(f"a dispatch table is {SCHEMA}, this one {data.get('schema')!r}")
    values = {word.name: data[word.name] for word in fields(DispatchTable)}
    sections = {}
    for name, row in data["sections"].items():
        sections[name] = Section(common=row.pop("asked", {}), **row)
    return DispatchTable(**values | {"sections": sections})


def shipped_tables() -> list[tuple[str, str]]:
    """Return the (gpu, release) pairs that ship with the package, newest releases last."""
    stems = [path.stem.partition("-torch") for path in FOLDER.glob("*-torch*.json")]
    pairs = [(gpu, release) for gpu, _, release in stems]
    return sorted(pairs, key=lambda pair: (pair[0], Version(pair[1])))


def plain_name(gpu: str) -> str:
    """Return a GPU's name as tables and virtual GPUs have it: ``rtx4090`` for ``RTX-4090``."""
    return gpu.lower().replace("-", "").replace(" ", "")


def table_path(gpu: str, release: str | None = None) -> Path | None:
    """Return the file of :func:`load_table`; None where there is none."""
    gpu = plain_name(gpu)
    releases = [version for name, version in shipped_tables() if name == gpu]
    if release is not None:
        releases = [version for version in releases if is_same_minor(version, release)]
    return FOLDER / f"{gpu}-torch{releases[-1]}.json" if releases else None


def is_same_minor(version: str, other: str) -> bool:
    """Return whether two releases of PyTorch have the same kernels: ``2.14``, ``2.14.1+cu130``."""
    try:
        return Version(version).release[:2] == Version(other).release[:2]
    except InvalidVersion:
        return False


@cache
def load_table(gpu: str, release: str | None = None) -> DispatchTable | None:
    """Return the shipped table of a GPU and a release of torch, by default the newest."""
    path = table_path(gpu, release)
    return parse_table(path.read_text(encoding="utf-8")) if path else None
