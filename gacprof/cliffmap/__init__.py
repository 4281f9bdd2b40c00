"""Cliff maps: which sizes one device serves well, fitted and judged from a sweep's blocks.

``run_folder`` keeps blocks, ``fit`` reads them, ``judge`` calls sizes safe or misaligned, ``build``
joins these to a map, ``cliffmap`` holds it and answers for it, ``tables`` list its safe sizes.
"""
