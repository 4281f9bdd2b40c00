"""How a model is served: the ranks that share it, the tokens, and the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from numbers import Integral, Real
from types import MappingProxyType

from gacprof.checkpoint.storage import Storage
from gacprof.core.errors import ConfigError, require_within
from gacprof.core.points import MAX_DIM
from gacprof.core.sizes import SizeSource
from gacprof.kernels.requirements import Engine

Tokens = Mapping[int, float] | Sequence[int]
DEFAULT_TOKENS: Mapping[int, float] = MappingProxyType({1: 1.0, 1024: 1.0})
"""One decode step and one prefill of 1024 tokens (the papers' sequence length), equally."""
MAX_RANKS = 65_536  # no engine spreads a model over more devices


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The ranks that serve a model, and what they run: ``tp`` tensor-parallel ones, ``ep`` that
    share out whole experts, ``dp`` data-parallel ones. ``tokens`` are rows of x, and how often each
    count runs.

    The ``engine`` says what is fused, padded and shared unevenly (None: Megatron-LM's rules),
    ``storage`` how weights are stored (None: as the config says).
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    tokens: Mapping[int, float] = field(default_factory=lambda: DEFAULT_TOKENS)
    engine: Engine | None = None
    storage: Storage | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "ep", "dp"):
            require_within(name, vars(self)[name], MAX_RANKS)

    @property
    def ranks(self) -> Mapping[str, int]:
        """How many ranks share what: tensors (``tp``), each of the ``experts``, each ``shared``
        expert, and the number of experts (``expert_parallel``); ``alone``: nothing. Those that
        an engine deals experts to are parts of ``expert_total``."""
        tp, ep, dp = self.tp, self.ep, self.dp
        ranks = {"tp": tp, "experts": max(1, tp // ep), "shared": tp, "expert_parallel": ep}
        ranks["expert_total"] = tp
        if self.engine is not None and self.engine.experts == "whole under EP":
            if ep == 1:  # data-parallel ranks cut the experts, too, which they otherwise repeat
                ranks["experts"] = tp * dp
            else:
                ranks |= {"experts": 1, "shared": 1 if dp > 1 else tp, "expert_parallel": tp * dp}
                ranks["expert_total"] = tp * dp
        if self.engine is not None and self.engine.splits == "layers":
            ranks = dict.fromkeys(ranks, 1)
        return {**ranks, "alone": 1}


def workload(tokens: Tokens | None, source: SizeSource) -> dict[int, float]:
    """Return weights of token counts, by default the source's or :data:`DEFAULT_TOKENS`."""
    if tokens is None:
        tokens = list(source.tokens) or DEFAULT_TOKENS
    if isinstance(tokens, Integral):
        tokens = [int(tokens)]
    weights = dict(tokens) if isinstance(tokens, Mapping) else dict.fromkeys(tokens, 1.0)
    is_count = all(isinstance(n, Integral) and 1 <= n <= MAX_DIM for n in weights)
    is_weight = all(isinstance(n, Real) and 0 < n < inf for n in weights.values())
    if not weights or not is_count or not is_weight:
        raise ConfigError(f"tokens {tokens}: give counts from 1 to {MAX_DIM}, such as 1 1024")
    return weights
