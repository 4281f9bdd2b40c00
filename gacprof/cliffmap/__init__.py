"""Cliff maps: ``run_folder`` keeps a sweep's blocks, ``fit`` reads them, ``judge`` calls sizes safe
or misaligned, ``build`` joins these to a map, ``cliffmap`` holds it and answers for it, ``tables``
list its safe sizes and make the constraint table."""
