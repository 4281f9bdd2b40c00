"""Times that others measured and published, for GPUs that are not at hand.

:mod:`~gacprof.elsewhere.data` reads them, :mod:`~gacprof.elsewhere.levels` interpolates between
their sizes with errors, :mod:`~gacprof.elsewhere.model` adds up a model's products. They say
nothing of alignment along N and K: what misaligned sizes cost beside that is the rules' to say.
"""
