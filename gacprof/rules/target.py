"""What rules are asked about: a GPU with a PyTorch release; and what they answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from gacprof.core.dtypes import full_name
from gacprof.core.errors import MapError
from gacprof.core.points import DTYPES
from gacprof.devices.datasheet import Sheet, sheet
from gacprof.kernels import fa2
from gacprof.kernels.tiers import Architecture, architecture

Basis = Literal["binary", "code", "document", "thread", "published", "elsewhere", "expected"]

CUDNN = {
    "2.6.0": 90100, "2.8.0": 91002, "2.9.1": 91002, "2.10.0": 91002, "2.11.0": 91900,
    "2.12.0": 92000, "2.13.0": 92000,
}  # fmt: skip
"""cuDNN that the x86-64 Linux wheel on PyPI requires, as ``torch.backends.cudnn.version()``."""


class RefusedError(MapError):
    """No kernel serves such a point, or PyTorch raises for it."""


class NoRuleError(MapError):
    """The rules do not cover what was asked."""


@dataclass(frozen=True)
class Rule:
    """What a rule ``says``, its ``source``, and how sure it is by what it rests on: ``binary``
    (kernels in a library), ``code``, ``document``, ``thread`` (somebody measured it once),
    ``published`` (a figure), ``elsewhere`` (others' tables of times), ``expected`` (it follows from
    the mechanism and nobody showed it)."""

    says: str
    source: str
    basis: Basis


@dataclass(frozen=True)
class ServingTier:
    """``tier`` counts from 1, the best; ``mechanism`` is what serves; ``rules`` say why.
    ``relative`` is the published cost beside tier 1 on this very GPU, None where only the
    order is known. ``doubts`` are rules that say what the tier leaves open; ``open`` is whether
    that is so much that the point is not to be called safe."""

    tier: int
    mechanism: str
    rules: tuple[Rule, ...]
    relative: float | None = None
    doubts: tuple[Rule, ...] = ()
    open: bool = False


@dataclass(frozen=True)
class Target:
    """A GPU of the data sheet and a PyTorch release whose wheel was read."""

    sheet: Sheet
    torch: str
    chip: Architecture = field(init=False, compare=False)
    templates: fa2.FlashTemplates = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chip", architecture(self.sheet.arch))
        object.__setattr__(self, "templates", fa2.recorded(self.torch))

    @property
    def arch(self) -> str:
        return self.sheet.arch

    @property
    def cudnn(self) -> int:
        return CUDNN[self.torch]

    def dtype(self, name: str) -> str:
        """The compute dtype by any name. Raises :class:`MapError` for one that the GPU has not."""
        found = full_name(name)
        if found not in self.dtypes:
            raise MapError(
                f"{self.sheet.name} ({self.arch}) has no rules for {name}: there are "
                f"{', '.join(self.dtypes)}"
            )
        return found

    @property
    def dtypes(self) -> list[str]:
        """What products may be computed in that an operator measures, and rules judge."""
        return [dtype for dtype in self.chip.tiers if dtype in DTYPES]


def target(gpu: str, torch: str) -> Target:
    """``h100`` and ``2.11`` (or ``2.11.0+cu130``).

    Raises :class:`MapError` for a GPU or a release that is not known, naming those that are.
    """
    found = sheet(gpu)
    plain = torch.split("+")[0]
    if re.fullmatch(r"\d+\.\d+", plain):
        plain = next((known for known in fa2.RECORDS if known.startswith(f"{plain}.")), plain)
    if plain not in fa2.RECORDS:
        raise MapError(
            f"the kernels of torch {torch} are not known: its wheel was not read (there are "
            f"{', '.join(fa2.RECORDS)})"
        )
    return Target(found, plain)
