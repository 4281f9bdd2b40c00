"""What the literature disagrees about, and the experiment that settles each point.

``settle(measure, where)`` runs them through any function that measures points; without one
it settles what can be settled without a GPU and says what the rest needs. The two papers are
A, "Why Smaller Is Slower? Dimensional Misalignment in Compressed LLMs" (arXiv 2604.09595),
and B, its earlier draft "When Smaller Is Slower: Dimensional Collapse in Compressed LLMs".
"""

from gacprof.explain.disputes.run import DISPUTES, settle
from gacprof.explain.disputes.value import Dispute, Verdict

__all__ = ["DISPUTES", "Dispute", "Verdict", "settle"]
