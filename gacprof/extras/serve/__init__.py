"""A checkpoint in the form that an engine serves: one file a format, each checked after writing."""

from gacprof.extras.serve.request import Check
from gacprof.extras.serve.run import FORMATS, ExportResult, export

__all__ = ["FORMATS", "Check", "ExportResult", "export"]
