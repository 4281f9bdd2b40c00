"""The papers' constraint tables for any map: A.2–A.4 and B.1–B.6.

A is arXiv 2604.09595, B its earlier draft. Each table is computed from the map's own points;
what the map does not hold stays empty, and a note names the suite that gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import ReportError
from gacprof.report.tables import Table
from gacprof.report.tables_attention import (
    a2_templates,
    b1_backends,
    b2_availability,
    b5_rescue,
)
from gacprof.report.tables_gemm import a3_gemm_tiers, b4_load_width, b6_gemm
from gacprof.report.tables_summary import a4_constraints, b3_hypotheses

TABLES: Mapping[str, Callable[[CliffMap], Table]] = {
    "A2": a2_templates,
    "A3": a3_gemm_tiers,
    "A4": a4_constraints,
    "B1": b1_backends,
    "B2": b2_availability,
    "B3": b3_hypotheses,
    "B4": b4_load_width,
    "B5": b5_rescue,
    "B6": b6_gemm,
}


def paper_table(cliff_map: CliffMap, name: str) -> Table:
    """One of the papers' tables (``A4``, ``a.4``, ``A.4``) from this map.

    Raises :class:`ReportError` for a name that is none of them.
    """
    key = name.replace(".", "").strip().upper()
    if key not in TABLES:
        raise ReportError(f"no table '{name}' (there are {', '.join(TABLES)})")
    return TABLES[key](cliff_map)


def all_tables(cliff_map: CliffMap) -> list[Table]:
    return [table(cliff_map) for table in TABLES.values()]
