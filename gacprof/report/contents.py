"""What goes on a report's page: values and dicts that earlier stages made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.cliffmap import CliffMap


@dataclass(frozen=True)
class Contents:
    """What goes on the page; all but the title may be missing. Mappings are ``as_dict()``s.
    ``example`` is another device's map, whose first curve shows what a cliff is."""

    title: str
    cliff_map: CliffMap | None = None
    example: CliffMap | None = None
    subject: str = ""
    diagnosis: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    realigned: Mapping[str, Any] | None = None
    verification: Mapping[str, Any] | None = None
    bench: Mapping[str, Any] | None = None
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()
