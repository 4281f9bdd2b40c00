"""What a kernel's name says: one frozen value. Whatever the name does not say is None."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
