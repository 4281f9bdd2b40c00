"""What a serving engine does with a model's sizes, from its config alone.

``lint`` is the verb, ``judge`` holds a product to an engine's requirements, ``remedies`` are
changes that were tried, ``report`` is the result.
"""
