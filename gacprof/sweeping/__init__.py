"""Sweeps: every size of an axis timed in randomised blocks, in several processes.

``suite`` reads what to measure, ``for_model`` makes it from a checkpoint, ``schedule`` says when a
curve has blocks enough, ``engine`` measures, ``sweep`` is the verb.
"""
