"""Results as people read them: on a terminal, as figures, and as one HTML page.

``sections`` has the sentences and tables of every result, ``figures`` draws, ``page`` is the verb
``report``.
"""
