"""Evidence without a GPU: what load and which MMA a compiler picks, by divisibility.

Triton compiles for any architecture on any machine, and its wheel carries ptxas and nvdisasm.
Our own probes (:mod:`probes`) are compiled with their dims declared divisible by 16, 8, 4, 2
and 1, and the load instructions are read out of PTX and SASS. Nothing runs, nothing is timed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.files import Record

ARCHITECTURES = ("sm80", "sm90", "sm100")
DIVISORS = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Probe:
    """One Triton function: its parameters' types, which of them are dims, its tile sizes."""

    function: str
    pointers: int
    dims: int
    tiles: tuple[int, ...]


PROBES = {
    "row_copy": Probe("gacprof_row_copy", 2, 2, (1024,)),
    "row_sum": Probe("gacprof_row_sum", 2, 3, (32, 64)),
    "gemm": Probe("gacprof_gemm", 3, 6, (64, 64, 32)),
}

SHOWN = ("row_copy", "gemm")
"""The probes of the table; ``row_sum`` is for the L2 dispute."""


@dataclass(frozen=True)
class CompiledProbe(Record):
    """What one probe became on one architecture with dims divisible by ``divisible_by``.

    ``load_bytes`` is the narrowest global load; ``asynchronous`` whether loads go past the
    registers (cp.async); instructions are None where there are none, with ``reason`` set
    where the disassembly is missing.
    """

    probe: str
    arch: str
    divisible_by: int
    ptx_load: str | None
    sass_load: str | None
    load_bytes: int | None
    asynchronous: bool
    ptx_mma: str | None
    sass_mma: str | None
    reason: str = ""


def table(
    probes: Sequence[str] = SHOWN,
    architectures: Sequence[str] = ARCHITECTURES,
    divisors: Sequence[int] = DIVISORS,
) -> tuple[CompiledProbe, ...]:
    """Compile every combination (about 0.1 s each). fp16 operands.

    Raises :class:`MeasurementError` where Triton is absent or cannot compile, and for a probe
    or an architecture that there is not.
    """
    _triton()
    for probe in probes:
        if probe not in PROBES:
            raise MeasurementError(f"no probe '{probe}' (there are {', '.join(PROBES)})")
    for arch in architectures:
        if not re.fullmatch(r"sm\d{2,3}", arch):
            raise MeasurementError(f"'{arch}' is no architecture such as sm80 or sm100")
    with _own_cache():
        return tuple(_row(*each) for each in product(probes, architectures, divisors))


def version() -> str:
    """Triton's version. Raises :class:`MeasurementError` without Triton."""
    return str(_triton().__version__)


def _triton() -> Any:
    if importlib.util.find_spec("triton") is None:
        raise MeasurementError(
            "static evidence needs Triton, which is not installed: pip install 'gacprof[triton]'"
        )
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise MeasurementError("TRITON_INTERPRET=1 makes Triton interpret: unset it to compile")
    import triton

    return triton


@contextmanager
def _own_cache() -> Iterator[None]:
    """Compile afresh in a temporary folder: a stale cache would be no evidence.

    Triton's own temporary files go there too: it leaves them behind where ptxas fails.
    """
    before, usual = os.environ.get("TRITON_CACHE_DIR"), tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="gacprof-static-") as folder:
        os.environ["TRITON_CACHE_DIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = usual
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before


def _row(name: str, arch: str, divisor: int) -> CompiledProbe:
    ptx, cubin = _compile(PROBES[name], arch, divisor)
    sass, reason = _disassemble(cubin)
    loads = _loads(ptx)
    narrowest = min(loads, key=lambda pair: pair[1], default=None)
    return CompiledProbe(
        probe=name,
        arch=arch,
        divisible_by=divisor,
        ptx_load=narrowest[0] if narrowest else None,
        sass_load=_instruction(sass, r"LDGSTS[.\w]*|LDG\.[.\w]*|UTMALDG[.\w]*"),
        load_bytes=narrowest[1] if narrowest else None,
        asynchronous=bool(narrowest and narrowest[0].startswith("cp.async")),
        ptx_mma=_instruction(ptx, r"(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)[.:\w]*"),
        sass_mma=_instruction(sass, r"(?:H|Q|I)G?MMA[.\w]*|UTC\w*MMA[.\w]*"),
        reason=reason,
    )


def _compile(probe: Probe, arch: str, divisor: int) -> tuple[str, bytes]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from gacprof.extras.evidence import probes

    function = getattr(probes, probe.function)
    kinds = ["*fp16"] * probe.pointers + ["i32"] * probe.dims + ["constexpr"] * len(probe.tiles)
    first_dim, first_tile = probe.pointers, probe.pointers + probe.dims
    hints = {(i,): [["tt.divisibility", 16]] for i in range(first_dim)}  # as allocators align
    if divisor > 1:
        hints |= {(i,): [["tt.divisibility", divisor]] for i in range(first_dim, first_tile)}
    sizes = {(first_tile + i,): size for i, size in enumerate(probe.tiles)}
    try:
        source = ASTSource(
            function, dict(zip(function.arg_names, kinds, strict=True)), sizes, hints
        )
        target = GPUTarget("cuda", int(arch.removeprefix("sm")), 32)
        made = compile(source, target=target, options={"num_warps": 4, "num_stages": 3})
    except Exception as error:  # Triton raises many types, its C++ side RuntimeError
        raise MeasurementError(
            f"Triton {version()} cannot compile {probe.function} for {arch}: "
            f"{type(error).__name__}: {str(error)[:300]}"
        ) from error
    return str(made.asm["ptx"]), bytes(made.asm["cubin"])


def _disassemble(cubin: bytes) -> tuple[str, str]:
    """(SASS, "") or ("", why there is none)."""
    bundled = Path(_triton().__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    program = os.environ.get("TRITON_NVDISASM_PATH", str(bundled))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [program, "-c", file.name], capture_output=True, text=True, timeout=120, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            return "", f"no SASS: {program} failed ({error})"
    return done.stdout, ""


def _loads(ptx: str) -> list[tuple[str, int]]:
    """Global loads of a PTX text as (instruction, bytes)."""
    found = []
    for text in re.findall(r"\bld\.global[.\w]*", ptx):
        count = re.search(r"\.v(\d)\b", text)
        width = re.search(r"\.[busf](\d+)$", text)
        if width:
            found.append((text, int(width[1]) // 8 * (int(count[1]) if count else 1)))
    for text, size in re.findall(
        r"\b(cp\.async\.c[ag]\.shared\.global)[^;]*?\],\s*\[[^\]]*\],\s*(0x[0-9a-f]+|\d+)", ptx
    ):
        found.append((text, int(size, 0)))
    return found


def _instruction(text: str, pattern: str) -> str | None:
    """The most frequent instruction of a kind, None where there is none."""
    found = re.findall(rf"\b(?:{pattern})", text)
    return max(sorted(set(found)), key=found.count) if found else None
