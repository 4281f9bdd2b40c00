"""What ``roles.toml`` says of the weights of a role: how ranks share them, what runs as one."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from gacprof.checkpoint.inventory import Module
from gacprof.checkpoint.layouts.names import SHARED
from gacprof.core.files import shipped_table


@dataclass(frozen=True)
class Role:
    """A row of ``roles.toml``, where each field is explained; ``key`` is the row's own name."""

    key: str
    name: str
    block: Literal[
        "attention", "gdn", "kda", "lightning", "conv", "mamba", "mlp", "shared", "moe", ""
    ] = ""
    fused: str = ""
    split: Literal["column", "row", "replicated"] = "replicated"
    kind: Literal["dense", "expert", "vocab", "Mamba-1"] = "dense"
    counted: str = ""
    repeated: str = ""
    stretches: int = 1
    is_plain: bool = False

    @cached_property
    def part(self) -> Literal["dense", "expert", "shared"]:
        """Whether every token reaches it, those that a router sends, or all as a shared expert."""
        if self.kind == "expert":
            return "expert"
        return "shared" if self.block == "shared" else "dense"

    @cached_property
    def shared_by(self) -> str:
        """The ranks that share its weights, by their name in :attr:`Deployment.ranks`."""
        if self.split == "replicated":
            return "alone"
        return {"expert": "experts", "shared": "shared", "dense": "tp"}[self.part]


ROLES_FILE = Path(__file__).parent / "roles.toml"
Rows = dict[str, dict[str, str | int]]
ROLES = {
    key: Role(**{"key": key, "name": key, **row})  # type: ignore[arg-type]
    for key, row in shipped_table(ROLES_FILE, Rows).items()
}


def role_of_module(module: Module) -> Role:
    """Return the row of a module's role; a replicated one where no row lists it."""
    shared = ROLES.get(f"shared_{module.role}")
    if shared is not None and SHARED.search(module.name):
        return shared
    return ROLES.get(module.role) or Role(module.role, module.role)
