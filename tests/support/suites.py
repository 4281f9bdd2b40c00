"""Suites of products, as tests sweep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gacprof.sweeping import Suite
from gacprof.sweeping.suite import parse_suite


def over(axis: str, values: Iterable[Any], dims: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A table of a suite: a linear product over that axis, unless ``more`` says otherwise."""
    table = {"operator": "linear", "axis": axis, "values": list(values), "dims": dict(dims)}
    return table | more


def suite_of(*tables: Mapping[str, Any], **timing: Any) -> Suite:
    return parse_suite({"name": "t", "timing": timing, "sweep": list(tables)}, "a test")
