"""What a profiler recorded: launches of kernels, and the products that they computed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordedProduct:
    """A matrix product ``y[M, N] = x[M, K] · W[N, K]ᵀ``, ``batch`` of them, as an operator was
    called.

    ``is_batched`` where the operator takes stacks of matrices, so that W is rarely a weight.
    ``elements`` are those of x, W and y together, repeated ones once. ``has_short_rows`` where the
    rows of x or W do not start at multiples of 16 bytes.
    """

    is_batched: bool
    batch: int
    M: int
    N: int
    K: int
    elements: int
    has_short_rows: bool

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.batch * self.M * self.N * self.K

    def __str__(self) -> str:
        stack = f"{self.batch} × " if self.batch > 1 else ""
        rows = ", rows off 16 bytes" if self.has_short_rows else ""
        return f"{stack}M={self.M} N={self.N} K={self.K}{rows}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that ran ``count`` times, for ``us`` microseconds in all. ``product`` is None where
    no shape was recorded; ``layer`` is the module that called it. ``head_dim`` is that of the
    attention that called it, if no multiple of 8."""

    kernel: str
    us: float
    count: int = 1
    product: RecordedProduct | None = None
    layer: str = ""
    is_in_graph: bool = False
    head_dim: int | None = None


@dataclass(frozen=True)
class Recording:
    """The launches of a file, in order, and the driver's name of the ``device``; empty where the
    file has none. ``operators`` is how many operators of the host it holds."""

    launches: Sequence[Launch]
    device: str = ""
    operators: int = 0
