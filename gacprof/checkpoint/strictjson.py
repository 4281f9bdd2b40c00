"""JSON as checkpoints should contain it: one object, no duplicate keys, no NaN."""

from __future__ import annotations

import json
from typing import Any

from gacprof.core.errors import CheckpointError


def parse_json(data: bytes, where: str, *, constants: bool = False) -> dict[str, Any]:
    """Parse one JSON object. ``where`` names the source in the error message.

    Raises :class:`CheckpointError` for anything else: broken JSON, another top-level type,
    a key given twice, nesting too deep to parse, and NaN or Infinity unless ``constants``.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=float if constants else _refuse_constant,
        )
    except RecursionError:
        raise CheckpointError(f"{where}: JSON nested too deep") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError and _unique's own
        raise CheckpointError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: not a JSON object but {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key[:80]!r} is given twice")
            seen.add(key)
    return result


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")
