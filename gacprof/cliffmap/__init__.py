"""The artefact: one device's cliff map. Built from samples, read by everything after it."""

from gacprof.cliffmap.candidates import Candidate, Use
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.miss import MapMiss
from gacprof.cliffmap.query import Lookup
from gacprof.cliffmap.storage import shipped_maps

__all__ = ["Candidate", "CliffMap", "Lookup", "MapMiss", "Use", "shipped_maps"]
