"""Launches of one product in kernels of one tier as one run, and what the kernel's name tells."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gacprof.core.dtypes import ITEMSIZE
from gacprof.hardware.datasheet import GpuFacts
from gacprof.kernels.names import NAME_TABLES, PAD_ROLES, Kernel, parse
from gacprof.tracing.recording import Launch, RecordedProduct

VECTOR_BYTES = 16  # the widest loads, which the best tier uses
NO_TIERS = ("float32", "float64", "complex64", "complex128")
"""What plain multipliers compute: kernels load single elements, so alignment hardly matters."""
ATTENTION_ROLES = (*PAD_ROLES, "attention", "attention_combine")

Kind = Literal[
    "misaligned", "aligned", "no tiers", "gemv", "not judged", "attention", "other", "unknown"
]
"""What a kernel is. A product's name says that it is ``aligned`` or ``misaligned``, that it has
``no tiers`` (plain float32, a ``gemv`` of aligned sides), or nothing of alignment (``not judged``:
engines' kernels, convolutions). A ``gemv`` of other sides, or of sides that were not recorded, is
undecided: on an H200 aligned ones take nvjet, which is faster at 4096 × 4096, slower at 136 × 1024;
on an A100 they take gemv too. Attention that pads its head_dim is ``misaligned``, with the padding;
else it is ``attention``. The rest is some ``other`` kernel, or its name is ``unknown``."""


@dataclass(eq=False)
class Run:
    """All runs of one product, or other kernel, in kernels of one tier, for ``us`` in all."""

    kernel: Kernel
    product: RecordedProduct | None
    layer: str
    count: int = 0
    kernels: int = 0  # with those that complete the product
    us: float = 0.0
    head_dim: int | None = None  # of attention, if no multiple of 8

    @cached_property
    def kind(self) -> Kind:
        """What the kernel is, by its name."""
        kernel = self.kernel
        if kernel.provider == "unknown":
            return "unknown"
        if kernel.role.startswith("attention"):
            return "misaligned" if self.lengths_at_fault else "attention"
        if kernel.role not in ("gemm", "gemv", "dot", "convolution"):
            return "other"
        if kernel.role == "dot" or (kernel.role != "convolution" and kernel.math in NO_TIERS):
            return "no tiers"
        if kernel.role == "gemv":
            is_aligned = max(self.lengths_at_fault.values(), default=1) == 1  # a vector's side is 1
            return "no tiers" if self.product and kernel.dtype and is_aligned else "gemv"
        if kernel.family == "nvjet" and "_align" not in kernel.name:
            return "aligned"  # rows come by TMA, whose strides are multiples of 16 bytes
        if kernel.role == "convolution" or kernel.dtype is None or kernel.alignment is None:
            return "not judged"
        return "aligned" if kernel.alignment >= best_alignment(kernel) else "misaligned"

    @property
    def contiguous_lengths(self) -> Mapping[str, int]:
        """The lengths that a kernel's alignment has to divide, by dim; none without a shape."""
        if self.head_dim is not None:
            return {"head_dim": self.head_dim}
        if self.product is None:
            return {}
        return {dim: getattr(self.product, dim) for dim in self.kernel.contiguous_dims}

    @property
    def lengths_at_fault(self) -> Mapping[str, int]:
        """The lengths that are no multiple of what the widest load holds, by dim."""
        multiple = best_alignment(self.kernel)
        return {dim: n for dim, n in self.contiguous_lengths.items() if n % multiple}

    def floor_us(self, facts: GpuFacts | None) -> float | None:
        """Return what all runs take at the data sheet's rates, by arithmetic or by bytes; None
        where the shape or the rates are not known. None was faster of 186 products in public traces
        and of 38,025 on an H200 (tests/fixtures/h200/planes.json.gz)."""
        if facts is None or self.product is None or self.kernel.dtype is None:
            return None
        times = []
        rate = facts.tflops.get(self.kernel.math or "")
        if rate is not None:
            times.append(self.product.flops / rate / 1e6)
        if facts.gb_s is not None:
            moved = self.product.elements * ITEMSIZE[self.kernel.dtype]
            times.append(moved / facts.gb_s / 1e3)
        return self.count * max(times) if times else None


def runs_of(launches: Iterable[Launch]) -> list[Run]:
    """Return the launches, those of one product in kernels of one tier together, with kernels that
    complete it (the sum of split K); the padding of a head_dim belongs to the attention."""
    runs: dict[object, Run] = {}
    last_of: dict[RecordedProduct | None, Run] = {}
    for launch in launches:
        kernel = parse(launch.kernel)
        run = last_of.get(launch.product)
        completed = NAME_TABLES["completes"].get(kernel.role, ())
        if launch.head_dim is not None and kernel.role in ATTENTION_ROLES:
            new = Run(kernel, None, launch.layer, head_dim=launch.head_dim)
            run = runs.setdefault(launch.head_dim, new)
            if kernel.role == "attention":
                run.kernel = kernel  # its padding ran before it
                run.count += launch.count
        elif run is None or run.kernel.role not in completed:
            key = kernel.mechanism, kernel.role, kernel.layout, launch.product
            run = runs.setdefault(key, Run(kernel, launch.product, launch.layer))
            run.count += launch.count
            if launch.product is not None:
                last_of[launch.product] = run
        run.kernels += launch.count
        run.us += launch.us
    return list(runs.values())


def best_alignment(kernel: Kernel) -> int:
    """Return how many elements the widest load holds; 1 where their type is not known."""
    return VECTOR_BYTES // ITEMSIZE[kernel.dtype] if kernel.dtype else 1
