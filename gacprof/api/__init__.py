"""The verbs that join rooms, each once: the command line and ``import gacprof`` call the same.

What one room does alone (``diagnose``, ``plan``, ``realign``, ``verify``, ``bench``) is exported
from there by :mod:`gacprof`.
"""
