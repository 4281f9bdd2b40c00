"""A size for every dim: the most quality, or the least padding, within limits.

``planner`` is the verb: ``candidates`` for each dim, joint ``options`` of coupled dims, each with a
value by ``quality``, of which ``solver`` chooses; ``plan`` is the result.
"""
