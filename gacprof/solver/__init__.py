"""Multiple-choice knapsack: exact, certified, and knowing nothing of models or GPUs."""

from gacprof.solver.exact import solve
from gacprof.solver.solution import InfeasibleBudget, Solution

__all__ = ["InfeasibleBudget", "Solution", "solve"]
