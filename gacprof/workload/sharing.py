"""How the ranks of a deployment share the weights of one checkpoint, as Megatron-LM does.

Heads are shared whole; those of keys and values are repeated where ranks outnumber them. Of a
factor pair the side is split that its dense weight's would be: the factors' ranks stay whole.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

from gacprof.checkpoint.from_config import ConfigSizes
from gacprof.checkpoint.inventory import AttentionHeads, Inventory, Module
from gacprof.checkpoint.layouts.names import tower_of
from gacprof.checkpoint.storage import Storage, storage_of_config
from gacprof.core.errors import ConfigError
from gacprof.workload.deployment import Deployment
from gacprof.workload.roles import Role, role_of_module

MXFP4_BLOCK = 32
"""Weights a scale of MXFP4: experts are shared in whole blocks."""


class Sharing:
    """The part of each weight that one device holds, and the rows that reach it."""

    def __init__(self, inventory: Inventory, deployment: Deployment) -> None:
        self.inventory = inventory
        self.deployment = deployment
        self.ranks = deployment.ranks
        engine = deployment.engine
        self.uneven = engine.uneven if engine else frozenset()
        self.vocab_multiple = engine.vocab_multiple if engine else 1
        self._attentions: dict[int | None, set[AttentionHeads]] = defaultdict(set)
        for attention in inventory.attentions:
            self._attentions[attention.layer].add(attention)
        try:
            self.storage = deployment.storage or storage_of_config(inventory.config)
        except ConfigError:
            self.storage = Storage("unknown", "unknown")

    @cached_property
    def stated(self) -> Mapping[str, int]:
        """The sizes that the config states; 0 where it says none, or they differ by layer."""
        try:
            return defaultdict(int, ConfigSizes(self.inventory.config).sizes)
        except ConfigError:
            return defaultdict(int)

    def attention_of(self, module: Module) -> AttentionHeads:
        """Return the heads of a module's own layer; outside of layers, and where a tower's numbers
        are the text's too, those that the config states of the text; for other towers 0."""
        heads = self._attentions.get(module.layer, set())
        if len(heads) == 1:
            return next(iter(heads))
        if tower_of(module.name):
            return AttentionHeads(0, 0, 0, 0)
        sizes = (self.stated[name] for name in ("heads", "kv_heads", "head_dim"))
        return AttentionHeads(0, *sizes)

    def count(self, name: str, module: Module) -> int:
        """Return how many heads or groups of this name there are; 0 where that isn't known."""
        if name in ("heads", "kv_heads"):
            return int(vars(self.attention_of(module))[name])
        return self.stated[name]

    def heads_on_rank(self, attention: AttentionHeads) -> tuple[int, int]:
        """Return how many query heads, and key and value heads, the fullest rank has."""
        tp = self.ranks["tp"]
        return -(-attention.heads // tp), max(1, -(-attention.kv_heads // tp))

    def rank_count(self, module: Module, name: str) -> int:
        """Return how many ranks hold different heads of this name; further ranks repeat theirs."""
        ranks, count = self.ranks[role_of_module(module).shared_by], self.count(name, module)
        is_repeated = name == "kv_heads" and count and ranks % count == 0
        if is_repeated or (name, count) == ("mamba_groups", 1):
            return min(ranks, count)
        return ranks

    def local(self, module: Module, length: int) -> int | None:
        """Return what one rank holds of the shared side; None where ranks cannot share it."""
        role = role_of_module(module)
        if role.kind == "vocab":  # padded, then cut anywhere: its rows are no heads
            padded = -(-length // self.vocab_multiple) * self.vocab_multiple
            return -(-padded // self.ranks[role.shared_by])
        repeated = self._repeated(role, module)
        if not 0 < repeated < length:
            # engines cut gate and up one by one: an odd half is refused, even if their sum divides
            stretch, rest = divmod(length, role.stretches)
            part = None if rest else self._stretch(role, role.counted, module, stretch)
            return None if part is None else part * role.stretches
        first = self._stretch(role, role.counted, module, length - repeated)
        last = self._stretch(role, role.repeated, module, repeated)
        return None if first is None or last is None else first + last

    def _repeated(self, role: Role, module: Module) -> int:
        """Return the length of the part of a fused weight that ranks may repeat: keys and values
        behind q, or B and C behind z and x."""
        if role.repeated == "kv_heads":
            attention = self.attention_of(module)
            return 2 * attention.kv_heads * attention.head_dim
        if role.repeated == "mamba_groups":
            return 2 * self.stated["mamba_groups"] * self.stated["mamba_state"]
        return 0

    def _stretch(self, role: Role, counted: str, module: Module, length: int) -> int | None:
        """Return what one rank holds of a part of a side that consists of heads of one name."""
        count, ranks = self.count(counted, module), self.rank_count(module, counted)
        if count and counted in self.uneven:  # the share of the fullest rank, which is the slowest
            return -(-count // ranks) * (length // count)
        if length % ranks == 0 and count % ranks == 0:  # a head is never cut, even where N divides
            return length // ranks
        if not counted and "widths" in self.uneven:
            return -(-length // ranks)
        if role.kind == "expert" and self.storage.form == "mxfp4" and length % MXFP4_BLOCK == 0:
            return -(-length // (ranks * MXFP4_BLOCK)) * MXFP4_BLOCK
        return None

    def rows_of(self, module: Module) -> Mapping[int, float]:
        """Return how many rows reach a module on this device, and how often; nothing where the
        config doesn't say how many experts a token goes to.

        A token reaches k of E experts with one row each. Where experts are chosen evenly, one is
        reached with the chance 1 − (1 − k/E)^tokens, and then by tokens · k / (E · chance) rows.
        """
        if role_of_module(module).part != "expert":
            return self.deployment.tokens
        experts, chosen = self.stated["experts"], self.stated["experts_per_token"]
        if not experts or not chosen:
            return {}
        gemm, stored = module.gemms[-1], 1  # how many experts the module stands for
        info = self.inventory.tensors.get(gemm.weight)
        if info is None:  # of a config alone: one module stands for all experts of a layer
            stored = experts
        elif len(module.gemms) == 1:
            stored = max(1, info.numel // max(1, gemm.N * gemm.K))
        share = min(1.0, chosen / experts)
        rows: dict[int, float] = {}  # two token counts may round to one length
        for tokens, weight in self.deployment.tokens.items():
            chance = 1 - (1 - share) ** tokens
            length = max(1, round(tokens * share / chance))
            often = weight * chance * stored / self.ranks["expert_parallel"]
            rows[length] = rows.get(length, 0.0) + often
        return rows

    def refuse_uneven_heads(self) -> None:
        """Raise :class:`ConfigError` where ranks cannot share the heads or groups of a layer."""
        for module in self.inventory.modules:
            role = role_of_module(module)
            for name in filter(None, (role.counted, role.repeated)):
                count = self.count(name, module)
                if count % self.rank_count(module, name):
                    raise ConfigError(
                        f"{self.ranks['tp']} TP ranks cannot share the {count} {name} of "
                        f"{module.name}: choose a tp that divides them"
                    )
