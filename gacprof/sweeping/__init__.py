"""Sweeps: ``suite`` reads what to measure, ``for_model`` makes it from a checkpoint,
``preparation`` counts what a GPU does first, ``engine`` measures until every curve is decided,
``sweep`` is the verb, ``fleet`` sweeps on all devices of a cluster."""
