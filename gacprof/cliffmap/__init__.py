"""The artefact: one device's cliff map. Built from samples, read by everything after it."""

from gacprof.cliffmap.lookup import Lookup
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.selection import MapLookupError
from gacprof.cliffmap.source import Candidate, Use
from gacprof.cliffmap.storage import shipped_maps

__all__ = ["Candidate", "CliffMap", "Lookup", "MapLookupError", "Use", "shipped_maps"]
