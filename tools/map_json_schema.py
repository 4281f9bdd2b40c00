"""The map's JSON Schema, generated from the models: ``python tools/map_json_schema.py OUT``.

``docs/cliffmap.schema.json`` is its output; a test keeps it current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gacprof.cliffmap.schema import SCHEMA, MapFile
from gacprof.core.files import write_json


def json_schema() -> dict[str, Any]:
    """Draft 2020-12. What a schema cannot say (columns of one length, findings on the axis)
    is checked on loading."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **MapFile.model_json_schema(by_alias=True),
        "title": SCHEMA,
    }


if __name__ == "__main__":
    write_json(Path(sys.argv[1]), json_schema())
