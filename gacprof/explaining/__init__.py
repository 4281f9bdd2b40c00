"""Why a dim is slow: causes with shares and evidence.

This room stands above the map: it reads its curves, the kernels recorded in them
(:mod:`gacprof.kernels`) and counters. It never changes a latency.
"""
