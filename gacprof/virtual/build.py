"""Build the stand-in libraries for an installed PyTorch, once, into the user's cache.

gcc compiles the C files beside this one against CUDA's headers. The other functions that these
declare are written here: what each does says ``libraries.toml``, how it does it ``stubs.h``.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gacprof.core.errors import GacprofError
from gacprof.core.files import shipped_table

SOURCES = Path(__file__).parent
LIBRARIES_FILE = SOURCES / "libraries.toml"
LIBRARIES = shipped_table(LIBRARIES_FILE, dict[str, dict[str, Any]])
KEY_HEADERS = ("cuda.h", "cudaTypedefs.h", "cuda_runtime_api.h", "cublasLt.h", "cupti.h")


@dataclass(frozen=True)
class CudaTorch:
    """A PyTorch built for CUDA; ``cuda_major`` is the 13 of libcudart.so.13."""

    packages: Path
    release: str
    cuda_major: int


def tool_output(command: Sequence[str], text: str = "") -> str:
    """Return what a program prints, given a text. Raises GacprofError where it fails."""
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    if result.returncode:
        said = result.stderr.partition("\n")[0]
        raise GacprofError(f"{command[0]} fails: {said}")
    return result.stdout


def find_torch(python: Path) -> CudaTorch:
    """Return the CUDA build of PyTorch that a python imports, without importing it."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    try:
        packages = Path(tool_output(command).strip())
    except (OSError, GacprofError) as error:
        raise GacprofError(f"{python} does not run as a python") from error
    text = ""
    with suppress(FileNotFoundError):
        text = (packages / "torch" / "version.py").read_text(encoding="utf-8")
    versions = re.search(r"__version__ = '([^'+]+).*^cuda[^=]*= '(\d+)\.", text, re.M | re.S)
    if versions is None:
        raise GacprofError(f"{python} has no PyTorch built for CUDA: pip install 'torch===2.14.1'")
    return CudaTorch(packages, versions[1], int(versions[2]))


def header_folders(torch: CudaTorch) -> list[Path]:
    """Return the folders of CUDA headers: the wheels', then Triton's copy, then a toolkit's."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return [
        *sorted(torch.packages.glob("nvidia/*/include")),
        torch.packages / "triton" / "backends" / "nvidia" / "include",
        toolkit / "include",
        toolkit / "extras" / "CUPTI" / "include",
    ]


def header_path(header: str, folders: Iterable[Path]) -> Path:
    """Return the header that gcc includes: that of the first folder."""
    for folder in folders:
        if (folder / header).exists():
            return folder / header
    raise GacprofError(f"no {header} in PyTorch's wheels or a CUDA toolkit: set CUDA_HOME")


def cache_folder(folders: Sequence[Path]) -> Path:
    """Return the folder of the libraries built from these sources and headers."""
    digest = hashlib.sha256()
    files = [SOURCES / "build.py", LIBRARIES_FILE, *sorted(SOURCES.glob("*.[ch]"))]
    files += [header_path(header, folders) for header in KEY_HEADERS]
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gacprof" / "virtual" / digest.hexdigest()[:16]


def compile_library(
    library: str, sources: Sequence[Path], folders: Sequence[Path], folder: Path
) -> None:
    """Compile a shared library whose symbols carry its name as their version, as CUDA's do."""
    command = ["gcc", "-shared", "-O2", "-fPIC", "-w", "-Werror=implicit-function-declaration"]
    command += [f"-I{include}" for include in (SOURCES, *folders)]
    command += [*map(str, sources), "-o", str(folder / library), "-lpthread"]
    if not library.startswith("libcuda."):  # the driver, whose functions the others call
        command += ["-fvisibility=hidden", str(folder / "libcuda.so.1")]
        command += ["-Wl,--default-symver", "-Wl,-rpath,$ORIGIN"]
    tool_output([*command, f"-Wl,-soname,{library}"])
    (folder / library.rpartition(".")[0]).symlink_to(library)  # for a program that links with it


def stub_source(library: str, names: set[str]) -> str:
    """Return the C source of a library's functions that are declared: its other sources' own take
    the places of these, which are weak."""
    row = LIBRARIES[library]
    forwards = row.get("forwards", {})
    lines = [f"#define {library.upper()}", f"#define NOT_SUPPORTED {row['not_supported']}"]
    lines.append('#include "stubs.h"')
    for name in sorted(names | forwards.keys()):
        if name in forwards:
            lines.append(f"FORWARD({name}, {forwards[name]})")
        else:
            macro = "SUCCEED" if name in row.get("succeed", ()) else "REFUSE"
            lines.append(f"{macro}({name})")
    return "\n".join(lines) + "\n"


def entry_source(names: set[str], folders: Iterable[Path]) -> str:
    """Return the C table of driver functions by name and CUDA version, for cuGetProcAddress."""
    typedefs_file = header_path("cudaTypedefs.h", folders)
    typedefs = typedefs_file.read_text(encoding="utf-8", errors="replace")
    header = typedefs_file.with_name("cuda.h").read_text(encoding="utf-8", errors="replace")
    newest = dict(re.findall(r"#define (cu\w+)\s+\1_v(\d+)\s", header))
    versions: dict[str, set[int]] = {name: set() for name in names if "_v" not in name}
    for name, version in re.findall(r"PFN_(cu\w+?)_v(\d+)\)", typedefs):
        versions.setdefault(name, set()).add(int(version))
    symbols, rows = set(), []
    for name in sorted(versions):
        # cudaTypedefs.h lists the versions of a name, cuda.h the suffix of its newest: versions in
        # order are symbols in order, cuMemAlloc and cuMemAlloc_v2
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


def build(torch: CudaTorch, folders: Sequence[Path], folder: Path) -> None:
    preprocess = ["gcc", "-E", "-D__CUDA_API_VERSION_INTERNAL", *(f"-I{f}" for f in folders), "-"]
    for part, row in LIBRARIES.items():
        includes = "".join(f"#include <{header}>\n" for header in row["headers"])
        headers = tool_output(preprocess, includes)
        names = {name for name in re.findall(row["names"], headers) if not name.endswith("_t")}
        written = {f"{part}_stubs.c": stub_source(part, names)}
        if part == "driver":
            written["entries.c"] = entry_source(names, folders)
        sources = [SOURCES / source for source in row["sources"]]
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
            sources.append(folder / name)
        for library in row["libraries"]:
            compile_library(library.format(torch.cuda_major), sources, folders, folder)


def libraries(torch: CudaTorch) -> list[Path]:
    """Return the stand-ins for a PyTorch, in the order to preload; build them if needed."""
    if shutil.which("gcc") is None:
        raise GacprofError("a virtual GPU is built with gcc: install gcc and binutils")
    folders = header_folders(torch)
    folder = cache_folder(folders)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            work = Path(temporary) / "build"
            work.mkdir()
            build(torch, folders, work)
            if not folder.exists():  # another process may have been first
                work.rename(folder)
    files = []
    for row in LIBRARIES.values():
        files += [folder / library.format(torch.cuda_major) for library in row["libraries"]]
    return files
