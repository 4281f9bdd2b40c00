"""Each verb's command as an attribute, made when it is asked for: ``commands.map_build``."""

from __future__ import annotations

from typing import Any

from gacprof.cli.verbs import VERBS, command


def __getattr__(name: str) -> Any:
    verbs = {verb.replace(" ", "_"): verb for verb in VERBS}
    if name not in verbs:
        raise AttributeError(name)
    return command(verbs[name])
