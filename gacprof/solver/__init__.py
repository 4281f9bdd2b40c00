"""Multiple-choice knapsack: exact, certified, and knowing nothing of models or GPUs.

>>> from gacprof.solver import solve
>>> found = solve([[1, 2, 4], [1, 3]], [[0.0, 5.0, 6.0], [0.0, 4.0]], 5)
>>> found.choice, found.value, found.cost, found.bound, found.proved
((1, 1), 9.0, 5, 9.0, True)

Ties. The same input gives the same choice. Among choices of equal value, one is returned in
which no class could take a cheaper candidate of at least the same value (for two resources: one
that takes no more of either), nor an earlier one equal in everything. Between choices that
differ in several classes, an incumbent gives way only to one of greater value, or of equal
value and lower cost.
"""

from gacprof.solver.exact import Grid, pareto, solve
from gacprof.solver.gac import GacSolution, solve_gac
from gacprof.solver.problem import InfeasibleBudget, Solution

__all__ = [
    "GacSolution",
    "Grid",
    "InfeasibleBudget",
    "Solution",
    "pareto",
    "solve",
    "solve_gac",
]
