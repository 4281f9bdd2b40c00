"""A checkpoint in the form that an engine serves: one file a format, each checked after writing."""

from __future__ import annotations

from gacprof.exporting.format import Check, Request, Written
from gacprof.exporting.run import FORMATS, Exported, export

__all__ = ["FORMATS", "Check", "Exported", "Request", "Written", "export"]
