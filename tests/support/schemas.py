"""Whether JSON is what its published schema says: ``docs/schemas``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
LONGEST = 300_000
"""Characters of an output that is validated wherever it is printed: a map takes seconds."""


@cache
def validator(name: str) -> Any:
    """That of ``diagnosis/1``, None where the library is not installed."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        return None
    schema = json.loads((SCHEMAS / f"{name.replace('/', '-')}.json").read_text())
    return Draft202012Validator(schema)


def check(data: Any) -> str:
    """Validate an object by the schema that it names; returns the schema's name."""
    name = data["schema"].removeprefix("gacprof.")
    found = validator(name)
    if found is not None:
        found.validate(data)
    return name


def check_printed(text: str) -> None:
    """Validate what a command printed as JSON: an object, or a list of them."""
    if len(text) > LONGEST:
        return
    try:
        data = json.loads(text)
    except ValueError:  # text in place of JSON, which tests of that look at
        return
    for one in data if isinstance(data, list) else [data]:
        check(one)
