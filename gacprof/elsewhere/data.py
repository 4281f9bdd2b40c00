"""Reading measurements that others published: the tables of the package aiconfigurator-core.

Its parquet files lie under ``systems/data/GPU/OPERATOR/FRAMEWORK/VERSION/`` and are read with
pyarrow; the package itself is never imported, and nothing of it is shipped here. Times are by CUDA
graph, in milliseconds. What was read of a GPU's matrix products is kept in the user's cache folder,
under a name that changes with the files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gacprof.core.errors import MapError, first_line
from gacprof.core.files import Record, read_json, replacing, write_json
from gacprof.devices.datasheet import sheets

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

PACKAGE = "aiconfigurator_core"
INSTALL = "pip install 'gacprof[elsewhere]'"
CACHE = "elsewhere-2"
"""The cache's format; another number leaves older files aside."""


@dataclass(frozen=True)
class Query:
    """Which rows of which table are times over two or three sizes: the columns of the data type
    and of the sizes ``m``, ``n`` and ``k`` (none: 1), and what other columns are ``fixed`` at.
    ``n`` is divided by the column ``shared_by``. Of kernels, those with ``without`` in their name
    are left out."""

    operator: str
    file: str
    dtype: str
    m: str
    n: str
    k: str = ""
    fixed: tuple[tuple[str, int | str], ...] = ()
    shared_by: str = ""
    without: str = ""

    @property
    def columns(self) -> list[str]:
        named = [self.dtype, self.m, self.n, self.k, self.shared_by, *(c for c, _ in self.fixed)]
        named.append("kernel_source" if self.without else "")
        return [*dict.fromkeys(filter(None, named)), "latency"]


ABSENT: Mapping[str, int] = {"window_size": 0}
"""Columns that older tables lack, and what all of their rows are then: full attention."""
PRODUCTS = Query("gemm", "gemm_perf", "gemm_dtype", "m", "n", "k")
"""y[m, n] = x[m, k] · W[n, k]ᵀ."""


@dataclass(frozen=True)
class Held(Record):
    """What there is of one GPU, operator, framework and version: ``rows`` measurements, of these
    data types."""

    gpu: str
    operator: str
    framework: str
    version: str
    dtypes: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class Surface:
    """Times in one framework and data type: ``latency_us`` is over the sizes ``m``, ``n`` and
    ``k``, NaN where nothing was measured. Of products y[m, n] = x[m, k] · W[n, k]ᵀ."""

    framework: str
    version: str
    dtype: str
    m: NDArray[np.int64]
    n: NDArray[np.int64]
    k: NDArray[np.int64]
    latency_us: NDArray[np.float64]


class Measurements:
    """The tables under one folder.

    >>> Measurements(Path("systems/data")).gpus  # doctest: +SKIP
    ['a100_sxm', 'b200_sxm', ...]
    """

    def __init__(self, root: Path, version: str, cache: Path | None = None) -> None:
        self.root, self.version = root, version
        self.cache = cache_folder() if cache is None else cache

    @cached_property
    def gpus(self) -> list[str]:
        """The folders that hold tables."""
        return sorted({path.parents[3].name for path in self.files("*")})

    def gpu(self, name: str) -> str:
        """The folder of a GPU by its short name (``h100``). Raises :class:`MapError` naming those
        that there are."""
        found = [
            gpu for gpu in self.gpus if short_name(name) in (short_name(gpu), gpu.replace("_", ""))
        ]
        if not found:
            there = ", ".join(map(short_name, self.gpus))
            short = next((k for k in sheets() if short_name(k) == short_name(name)), "")
            rules = f" ('gacprof lint --gpu {short}' has its rules)" if short else ""
            raise MapError(
                f"no measurements of '{name}' are known: there are some of {there}{rules}"
            )
        return found[0]

    def files(self, gpu: str, operator: str = "*") -> list[Path]:
        return sorted(self.root.glob(f"{gpu}/{operator}/*/*/*.parquet"))

    def held(self) -> list[Held]:
        """All that there is; only the column of data types is read of each file."""
        files = self.files("*")
        kept = self.cache / f"held-{_fingerprint(self.root, files)}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):
            rows = read_json(kept)
            return [Held(**row | {"dtypes": tuple(row["dtypes"])}) for row in rows]
        found = _summed([self._held(path) for path in files])
        with suppress(OSError):  # a cache that cannot be written costs time alone
            write_json(kept, [one.as_dict() for one in found])
        return found

    def _held(self, path: Path) -> Held:
        from pyarrow import ArrowException, compute, parquet

        gpu, operator, framework, version = path.relative_to(self.root).parts[:4]
        try:
            file = parquet.ParquetFile(path)
            name = next((c for c in file.schema_arrow.names if c.endswith("_dtype")), None)
            rows = file.metadata.num_rows
            seen = compute.unique(file.read([name])[name]).to_pylist() if name else []
        except (ArrowException, OSError) as error:
            raise MapError(self._refused(path, first_line(error))) from None
        return Held(gpu, operator, framework, version, tuple(sorted(map(str, seen))), rows)

    def engines(self, gpu: str) -> list[str]:
        """Frameworks that have products of the GPU."""
        return sorted({path.parts[-3] for path in self.files(self.gpu(gpu), PRODUCTS.operator)})

    def surfaces(self, gpu: str, query: Query = PRODUCTS) -> list[Surface]:
        """What a query finds of a GPU, of each framework's newest version that has it in a data
        type; nothing where it finds none.

        Raises :class:`MapError` for a GPU without any table, and for files without the columns.
        """
        folder = self.gpu(gpu)
        files = [path for path in self.files(folder, query.operator) if path.stem == query.file]
        name = f"{query.operator}-{folder}-{_fingerprint(self.root, files, query)}.npz"
        kept = self.cache / name
        with suppress(OSError, ValueError, KeyError, EOFError):
            return _unpacked(np.load(kept, allow_pickle=False))
        found: dict[tuple[str, str], Surface] = {}
        for path in sorted(files, key=lambda path: release(path.parent.name)):
            found |= {(s.framework, s.dtype): s for s in self._surfaces(path, query)}
        surfaces = [found[key] for key in sorted(found)]
        with suppress(OSError), replacing(kept) as temporary, temporary.open("wb") as file:
            np.savez(file, **_packed(surfaces))  # type: ignore[arg-type]
        return surfaces

    def _surfaces(self, path: Path, query: Query) -> list[Surface]:
        table = self.read(path, query.columns, ABSENT)
        rows = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
        here = np.isfinite(rows["latency"]) & (rows["latency"] > 0)
        for name, size in query.fixed:
            here &= (rows[name] if name in rows else ABSENT[name]) == size
        if query.without:
            kernels = rows["kernel_source"].astype(str)
            here &= np.char.find(kernels, query.without) < 0
        rows = {name: values[here] for name, values in rows.items()}
        n = rows[query.n] // rows[query.shared_by] if query.shared_by else rows[query.n]
        k = rows[query.k] if query.k else np.ones_like(n)
        framework, version = path.parts[-3:-1]
        dtypes = rows[query.dtype].astype(str)
        return [
            _surface(framework, version, str(dtype), *(each[dtypes == dtype] for each in (
                rows[query.m], n, k, rows["latency"]
            )))
            for dtype in np.unique(dtypes)
        ]  # fmt: skip

    def read(self, path: Path, columns: Sequence[str], optional: Collection[str] = ()) -> pa.Table:
        """These columns of a table, the ``optional`` ones where they are there. Raises
        :class:`MapError` where another is not."""
        from pyarrow import ArrowException, parquet

        try:
            file = parquet.ParquetFile(path)
            columns = [c for c in columns if c in file.schema_arrow.names or c not in optional]
            absent = [name for name in columns if name not in file.schema_arrow.names]
            if absent:
                raise MapError(self._refused(path, f"it has no column {', '.join(absent)}"))
            return file.read(columns)
        except (ArrowException, OSError) as error:
            raise MapError(self._refused(path, first_line(error))) from None

    def _refused(self, path: Path, why: str) -> str:
        return (
            f"the measurements of {PACKAGE} {self.version} cannot be read, {why}: "
            f"{path.relative_to(self.root)} ({INSTALL} brings a version that can)"
        )


def installed() -> Measurements:
    """The tables of the installed package. Raises :class:`MapError` where there is none."""
    try:  # a top-level package is found without importing it
        found = util.find_spec("pyarrow") and util.find_spec(PACKAGE)
    except ImportError:
        found = None
    for place in found.submodule_search_locations or () if found else ():
        root = Path(place) / "systems" / "data"
        if root.is_dir():
            return Measurements(root, metadata.version(PACKAGE))
    raise MapError(f"measurements from elsewhere are not installed: {INSTALL}")


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/gacprof`` (``~/.cache/gacprof``)."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "gacprof" / CACHE


def short_name(gpu: str) -> str:
    """``h100_sxm`` and ``H100 SXM`` → ``h100``."""
    short = "".join(c for c in gpu.lower() if c.isalnum()).removeprefix("nvidia")
    return short.removesuffix("server").removesuffix("sxm")


def release(version: str) -> tuple[int, ...]:
    """Numbers to compare by: ``1.3.0rc20`` is before ``1.3.0``, which no table has."""
    numbers = "".join(c if c.isdigit() else " " for c in version).split()
    return tuple(map(int, numbers))


def _fingerprint(root: Path, files: Sequence[Path], query: Query | None = None) -> str:
    facts = [(str(p), s.st_size, s.st_mtime_ns) for p in files for s in (p.stat(),)]
    return hashlib.sha256(repr((str(root), facts, query)).encode()).hexdigest()[:16]


def _summed(parts: Sequence[Held]) -> list[Held]:
    """Files of one operator and version counted together."""
    found: dict[tuple[str, ...], Held] = {}
    for part in parts:
        key = (part.gpu, part.operator, part.framework, part.version)
        before = found.get(key)
        dtypes = tuple(sorted({*part.dtypes, *(before.dtypes if before else ())}))
        found[key] = Held(*key, dtypes, part.rows + (before.rows if before else 0))
    return list(found.values())


def _surface(
    framework: str, version: str, dtype: str,
    m: NDArray[Any], n: NDArray[Any], k: NDArray[Any], ms: NDArray[Any],
) -> Surface:  # fmt: skip
    """Several rows of one size count by their median."""
    axes, places = [], []
    for sizes in (m, n, k):
        grid, place = np.unique(sizes.astype(np.int64), return_inverse=True)
        axes.append(grid)
        places.append(place)
    shape = [len(axis) for axis in axes]
    flat = np.ravel_multi_index(tuple(places), shape)
    order = np.argsort(flat, kind="stable")
    cells, first = np.unique(flat[order], return_index=True)
    times = ms[order] * 1e3
    us = np.full(shape, np.nan)
    if len(cells) == len(times):
        us.flat[cells] = times
    else:
        us.flat[cells] = [np.median(part) for part in np.split(times, first[1:])]
    return Surface(framework, version, dtype, axes[0], axes[1], axes[2], us)


def _packed(surfaces: Sequence[Surface]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"count": np.array(len(surfaces))}
    for i, one in enumerate(surfaces):
        arrays[f"{i}.named"] = np.array([one.framework, one.version, one.dtype])
        arrays |= {f"{i}.{axis}": getattr(one, axis) for axis in "mnk"}
        arrays[f"{i}.us"] = one.latency_us
    return arrays


def _unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[Surface]:
    found = []
    for i in range(int(arrays["count"])):
        framework, version, dtype = map(str, arrays[f"{i}.named"])
        m, n, k, us = (arrays[f"{i}.{name}"] for name in ("m", "n", "k", "us"))
        found.append(Surface(framework, version, dtype, m, n, k, us))
    return found
