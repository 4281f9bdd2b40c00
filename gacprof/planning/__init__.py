"""Choose a size for every dim: the most quality, or the least padding, within limits.

``planner`` is the verb. ``candidates`` lists sizes for each dim, ``options`` joins those of coupled
dims, ``quality`` gives each a value, ``solver`` chooses, and ``plan`` is the result.
"""
