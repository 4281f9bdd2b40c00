"""Operators: what is timed. A module with a class that it registers.

A new operator is a module with a class derived from :class:`gacprof.operators.base.Operator` and
:func:`register`, imported below. Torch is imported once one is prepared: suites are read without.
"""

from gacprof.operators import attention, linear, stream  # registers them
from gacprof.operators.base import Operand, Operator, canonical, get, register
from gacprof.operators.own import operator

__all__ = ["Operand", "Operator", "canonical", "get", "operator", "register"]
__all__ += ["attention", "linear", "stream"]
