"""The whole chain once, on the device at hand, with a model that shows what it is for."""

from __future__ import annotations

from gacprof.demo.run import Demo, run_demo

__all__ = ["Demo", "run_demo"]
