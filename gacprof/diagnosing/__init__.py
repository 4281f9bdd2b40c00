"""Inventory × cliff map → per-weight cost, penalty, and what to do."""

from gacprof.diagnosing.diagnosis import diagnose
from gacprof.diagnosing.findings import Diagnosis, DimFinding, WeightFinding

__all__ = ["Diagnosis", "DimFinding", "WeightFinding", "diagnose"]
