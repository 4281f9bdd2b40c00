"""Cliff maps: which sizes one device serves well, fitted and judged from a sweep's blocks.

``cliffmap`` holds the map and answers for it, ``judge`` calls sizes safe or misaligned, ``fit``,
``noise`` and ``multiples`` read blocks, ``build`` joins them, ``tables`` writes them out.
"""
