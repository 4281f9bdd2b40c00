"""What a kernel's name says, as one frozen value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
