"""Devices that are measured: ``device`` has the protocol and opens one: ``cpu`` (its ``threads``
bound to cores), ``cuda`` (calls in a ``cuda_graph``, named by ``tracing``, slowed or not by
``nvml``), or ``worker`` around either. ``memory`` lends operands, ``environment`` says what was
measured, ``at_hand`` lists GPUs."""
