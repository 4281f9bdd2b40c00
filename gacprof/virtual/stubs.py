"""Write the C functions that nobody has to write: the rest of what public headers declare.

Names come from the headers through ``gcc -E``, names that are written from compiled objects through
``nm``. What each does says ``libraries.toml``, how it does it ``stubs.h``.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gacprof.core.files import shipped_table

LIBRARIES_FILE = Path(__file__).with_name("libraries.toml")
LIBRARIES = shipped_table(LIBRARIES_FILE, dict[str, dict[str, Any]])


def declared(library: str, folders: Iterable[Path]) -> set[str]:
    """Return the function names that a library's public headers declare."""
    row = LIBRARIES[library]
    text = "".join(f"#include <{header}>\n" for header in row["headers"])
    command = ["gcc", "-E", "-D__CUDA_API_VERSION_INTERNAL", *(f"-I{f}" for f in folders), "-"]
    headers = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return {name for name in re.findall(row["names"], headers) if not name.endswith("_t")}


def defined(objects: Iterable[Path]) -> set[str]:
    """Return the function names that compiled objects define."""
    command = ["nm", "--defined-only", "--extern-only", *map(str, objects)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[2] for line in output.splitlines() if " T " in line}


def stub_source(library: str, missing: Iterable[str]) -> str:
    """Return the C source of a library's functions that are declared and not written."""
    row = LIBRARIES[library]
    forwards, not_supported = row.get("forwards", {}), row["not_supported"]
    lines = [f"#define {library.upper()}", f"#define NOT_SUPPORTED {not_supported}"]
    lines.append('#include "stubs.h"')
    for name in sorted({*missing, *forwards}):
        if name in forwards:
            lines.append(f"FORWARD({name}, {forwards[name]})")
        elif name in row.get("succeed", ()) or not not_supported:
            lines.append(f"SUCCEED({name})")
        else:
            lines.append(f"REFUSE({name})")
    return "\n".join(lines) + "\n"


def entry_source(names: set[str], folders: Iterable[Path]) -> str:
    """Return the C table of driver functions by name and CUDA version, for cuGetProcAddress.

    cudaTypedefs.h lists the versions of a name, cuda.h the suffix of its newest: the versions of
    one name in order are its symbols in order, ``cuMemAlloc`` and ``cuMemAlloc_v2``.
    """
    folder = next(f for f in folders if (f / "cudaTypedefs.h").exists())
    typedefs = (folder / "cudaTypedefs.h").read_text(encoding="utf-8", errors="replace")
    header = (folder / "cuda.h").read_text(encoding="utf-8", errors="replace")
    newest = dict(re.findall(r"#define (cu\w+)\s+\1_v(\d+)\s", header))
    versions: dict[str, set[int]] = {name: set() for name in names if "_v" not in name}
    for name, version in re.findall(r"PFN_(cu\w+?)_v(\d+)\)", typedefs):
        versions.setdefault(name, set()).add(int(version))
    symbols, rows = set(), []
    for name in sorted(versions):
        ordered = sorted(versions[name]) or [0]
        first = int(newest.get(name, "1")) - len(ordered) + 1
        for suffix, version in enumerate(ordered, first):
            symbol = name if suffix <= 1 else f"{name}_v{suffix}"
            if symbol in names:
                symbols.add(symbol)
                rows.append(f'    {{"{name}", {version}, {symbol}}},')
    externs = [f"extern int {symbol}();" for symbol in sorted(symbols)]
    head = "const struct gacprof_entry gacprof_entries[] = {"
    return "\n".join(['#include "virtual.h"', *externs, head, *rows, "    {0, 0, 0}};"]) + "\n"
