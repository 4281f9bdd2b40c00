"""Sweeps: ``suite`` reads what to measure, ``for_model`` makes it from a checkpoint, ``engine``
measures until curves are decided or time is up, ``sweep`` is the verb, ``fleet`` sweeps on all
devices of a cluster."""
