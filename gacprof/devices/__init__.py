"""Devices that are measured: a CPU, a CUDA GPU, each by choice in a worker process.

``device`` has the protocol and opens one: ``cpu`` (its ``threads`` bound to cores), ``cuda`` (calls
in a ``cuda_graph``, named by ``tracing``, slowed or not by ``nvml``), or ``worker`` around either.
``memory`` lends operands, ``environment`` says what was measured.
"""
