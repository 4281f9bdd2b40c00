"""Write the C functions that nobody has to write: the rest of what public headers declare.

Names come from the headers through ``gcc -E``, names that are written from compiled objects through
``nm``. A name is a forward to another function or a success (``forwards.toml``), or else is
refused as not supported.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from typing_extensions import TypedDict

from gacprof.core.files import shipped_table

FORWARDS = Path(__file__).with_name("forwards.toml")
NOT_SUPPORTED = {"driver": 801, "runtime": 801, "cupti": 21, "cublas": 15}
"""CUDA_ERROR_NOT_SUPPORTED, cudaErrorNotSupported, CUPTI_ERROR_NOT_SUPPORTED,
CUBLAS_STATUS_NOT_SUPPORTED. CUPTI's unwritten functions succeed instead: they only configure."""
HEADERS = {
    "driver": ("cuda.h", "cudaProfiler.h"),
    "runtime": ("cuda_runtime_api.h",),
    "cupti": ("cupti.h",),
    "cublas": ("cublas_v2.h", "cublasLt.h", "cublasXt.h"),
}
NAMES = {
    "driver": r"CUresult\s+(cu[A-Z]\w+)\s*\(",
    "runtime": r"\b(cuda[A-Z]\w+)\s*\(",
    "cupti": r"CUptiResult\s+(cupti\w+)\s*\(",
    "cublas": r"\b(cublas\w+)\s*\(",
}
PARAMETERS = ", ".join(f"long p{i}" for i in range(12))
ARGUMENTS = ", ".join(f"p{i}" for i in range(12))
"""Enough for every function: integers and pointers pass through unchanged, those not given too."""


PREAMBLE = """#include <stdio.h>
#include <stdlib.h>
#define VISIBLE __attribute__((visibility("default")))
void gacprof_runtime_start(void);
int gacprof_runtime_result(int);
static int refuse(const char *name) {
    if (getenv("GACPROF_VIRTUAL_VERBOSE")) fprintf(stderr, "no %%s on a virtual GPU\\n", name);
    return %d;
}"""


def declared(library: str, includes: Iterable[str], folders: Iterable[Path]) -> set[str]:
    """Return the function names that a library's public headers declare."""
    text = "".join(f"#include <{header}>\n" for header in includes)
    command = ["gcc", "-E", "-D__CUDA_API_VERSION_INTERNAL", *(f"-I{f}" for f in folders), "-"]
    headers = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return {name for name in re.findall(NAMES[library], headers) if not name.endswith("_t")}


def defined(objects: Iterable[Path]) -> set[str]:
    """Return the function names that compiled objects define."""
    command = ["nm", "--defined-only", "--extern-only", *map(str, objects)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[2] for line in output.splitlines() if " T " in line}


def forward(library: str, name: str, other: str) -> list[str]:
    """Return the lines of a function that does what ``other`` does with the same arguments."""
    call = f"{other}({ARGUMENTS})"
    if library == "runtime":
        call = f"(gacprof_runtime_start(), gacprof_runtime_result({call}))"
    return [f"int {other}();", f"VISIBLE int {name}({PARAMETERS}) {{ return {call}; }}"]


class Forwards(TypedDict):
    """``forwards.toml``: by library the function whose work a name does, and names that succeed."""

    driver: dict[str, str]
    runtime: dict[str, str]
    cublas: dict[str, str]
    succeed: dict[str, list[str]]


def stub_source(library: str, missing: Iterable[str]) -> str:
    """Return the C source of a library's functions that are declared and not written."""
    sections = shipped_table(FORWARDS, Forwards)
    others: Mapping[str, str] = sections.get(library, {})  # type: ignore[assignment]
    lines = [PREAMBLE % NOT_SUPPORTED[library]]
    for name in sorted(set(missing) | set(others)):
        if name in others:
            lines += forward(library, name, others[name])
        elif name in sections["succeed"]["names"] or library == "cupti":
            lines.append(f"VISIBLE int {name}(void) {{ return 0; }}")
        else:
            lines.append(f'VISIBLE int {name}(void) {{ return refuse("{name}"); }}')
    return "\n".join(lines) + "\n"


def entry_source(names: set[str], folders: Iterable[Path]) -> str:
    """Return the C table of driver functions by name and CUDA version, for cuGetProcAddress.

    cudaTypedefs.h lists the versions of a name, cuda.h the suffix of its newest: the versions of
    one name in order are its symbols in order, ``cuMemAlloc`` and ``cuMemAlloc_v2``.
    """
    folder = next(f for f in folders if (f / "cudaTypedefs.h").exists())
    typedefs = (folder / "cudaTypedefs.h").read_text(encoding="utf-8", errors="replace")
    header = (folder / "cuda.h").read_text(encoding="utf-8", errors="replace")
    newest: Mapping[str, str] = dict(re.findall(r"#define (cu\w+)\s+\1_v(\d+)\s", header))
    versions: dict[str, set[int]] = {name: {0} for name in names if "_v" not in name}
    for name, version in re.findall(r"PFN_(cu\w+?)_v(\d+)\)", typedefs):
        versions.setdefault(name, set()).add(int(version))
    rows = []
    for name in sorted(versions):
        ordered = sorted(versions[name] - {0}) or [0]
        suffix = int(newest.get(name, "1")) - len(ordered) + 1
        for version in ordered:
            symbol = name if suffix <= 1 else f"{name}_v{suffix}"
            if symbol in names:
                rows.append((name, version, symbol))
            suffix += 1
    lines = ['#include "virtual.h"']
    lines += [f"extern int {symbol}();" for symbol in sorted({row[2] for row in rows})]
    lines.append("const struct gacprof_entry gacprof_entries[] = {")
    lines += [f'    {{"{name}", {version}, {symbol}}},' for name, version, symbol in rows]
    return "\n".join([*lines, "    {0, 0, 0}};"]) + "\n"
