"""What a rule is: which names are of a family, and who reads their details."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gacprof.kernels.signature import Signature

Fields = Mapping[str, Any]
"""Fields of :class:`~gacprof.kernels.kernel.Kernel` that a reader found."""

Reader = Callable[[Signature], Fields]


def nothing_more(signature: Signature) -> Fields:
    """For families whose names tell no more than the family."""
    return {}


@dataclass(frozen=True)
class Rule:
    """Names whose path (or whole text) the pattern is found in are of this family."""

    family: str
    provider: str
    role: str
    pattern: str
    read: Reader = nothing_more
    on: str = "path"

    def claims(self, signature: Signature) -> bool:
        return re.search(self.pattern, getattr(signature, self.on)) is not None
