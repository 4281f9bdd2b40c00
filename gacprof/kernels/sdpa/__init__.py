"""Which backend serves scaled-dot-product attention, and why the others refuse.

:func:`choose` answers by rules, for any device and version, without one; :func:`ask` asks the
PyTorch at hand, on a GPU. Both give a :class:`Choice`.
"""

from gacprof.kernels.sdpa.live import ask
from gacprof.kernels.sdpa.question import Choice, Question, question_of
from gacprof.kernels.sdpa.rules import choose

__all__ = ["Choice", "Question", "ask", "choose", "question_of"]
