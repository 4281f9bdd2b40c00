"""JSON Schemas of all files and ``--json`` outputs: ``python tools/json_schemas.py docs/schemas``.

A schema is made of the type that is written, as :class:`gacprof.core.files.Record` writes it.
Results that reshape themselves (``as_dict`` of their own) and records without a type stand in
``RESHAPED`` and ``WRITTEN``. A test keeps docs/schemas current and validates real outputs.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from gacprof.core.files import Record, write_json

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
IMPORT = r"^    from (gacprof[\w.]*) import ([\w, ]+)$"
REF = "#/$defs/{model}"
PLAIN = {
    str: {"type": "string"}, Path: {"type": "string"}, bool: {"type": "boolean"},
    int: {"type": "integer"}, float: {"type": "number"}, type(None): {"type": "null"},
    Any: {}, object: {}, dict: {"type": "object"}, list: {"type": "array"},
}  # fmt: skip
TEXT, COUNT, NUMBER, ARRAY, OBJECT = (PLAIN[kind] for kind in (str, int, float, list, dict))
OR_NONE: Callable[[Schema], Schema] = lambda one: {"anyOf": [one, PLAIN[type(None)]]}  # noqa: E731

TYPED = {
    "cliffmap/3": "cliffmap.schema:MapFile",
    "plan/1": "planning.schema:Plan",
    "diagnosis/1": "diagnosing.findings:Diagnosis",
    "pareto/1": "planning.pareto:Pareto",
    "lint/1": "linting.verdict:Lint",
    "realign-result/1": "resizing.result:RealignResult",
    "import-result/1": "resizing.from_gguf:ImportResult",
    "export-result/1": "extras.serve.run:ExportResult",
    "verification/1": "evaluation.verification:Verification",
    "bench-result/1": "evaluation.summary:BenchResult",
    "quality/1": "evaluation.evaluating:Quality",
    "task-scores/1": "evaluation.harness:TaskScores",
    "explanation/1": "explain.case:Explanation",
    "run-summary/1": "sweeping.engine:RunSummary",
    "forecast/1": "devices.forecast:Forecast",
    "component/1": "devices.doctor:Component",
    "map-diff/1": "cliffmap.compare:MapDiff",
    "candidate/1": "cliffmap.candidates:Candidate",
    "agreement/1": "rules.agreement:Agreement",
    "measured-curve/1": "elsewhere.curves:MeasuredCurve",
    "fleet-run/1": "extras.fleet.driver:FleetRun",
    "table/1": "report.tables:Table",
}
"""Schema → where its type is, below ``gacprof``."""

SOURCE = {"gacprof": TEXT, "source": OBJECT}
WRITTEN: dict[str, Schema] = {
    "run/2": {"suite": OBJECT, "stack": OBJECT},
    "rules/1": {
        "name": TEXT, "gpu": TEXT, "arch": TEXT, "torch": TEXT, "cudnn": {}, "created": TEXT,
        "basis": TEXT, "dtypes": ARRAY, "notes": ARRAY, "tiers": ARRAY,
    },
    "realigned/1": SOURCE | {
        "origin": OBJECT, "layout": TEXT, "exact": PLAIN[bool], "parameters": OBJECT,
        "resized": ARRAY, "fused": ARRAY, "notes": ARRAY,
    },
    "imported/1": SOURCE,
    "exported/1": SOURCE,
    "compressed/1": SOURCE | {
        "request": OBJECT, "map": OR_NONE(TEXT), "device": OR_NONE(TEXT), "method": TEXT,
        "layout": TEXT, "ratio": NUMBER, "parameters": OBJECT, "sizes": OBJECT, "notes": ARRAY,
    },
    "compress-result/1": {
        "source": TEXT, "out": TEXT, "method": TEXT, "layout": TEXT, "ratio": NUMBER,
        "removed": NUMBER, "parameters": OBJECT, "energy_kept": NUMBER, "dims": COUNT,
        "wish": OBJECT, "sizes": OBJECT, "left": OBJECT, "predicted": ARRAY,
        "plan": OR_NONE(OBJECT), "notes": ARRAY,
    },
    "safedims/1": {
        "map": TEXT, "device": TEXT, "provenance": TEXT, "citation": OR_NONE(TEXT), "axes": ARRAY,
        "settings": ARRAY,
    },
    "lint-baseline/1": {"findings": ARRAY},
    "lint-design/1": {"shapes": ARRAY},
    "map-facts/1": {
        "name": TEXT, "device": TEXT, "provenance": TEXT, "created": TEXT, "stack": OBJECT,
        "noise_floor": OR_NONE(NUMBER), "curves": COUNT, "points": COUNT, "safe": COUNT,
        "misaligned": COUNT, "undecided": COUNT,
    },
    "compatibility/1": {"here": OBJECT, "stale": {}},
    "intersection/1": {"operator": TEXT, "axis": TEXT, "dims": ARRAY, "safe": ARRAY},
    "gpus/1": {"gpus": ARRAY, "measured": ARRAY},
    "figures/1": {"files": ARRAY},
    "error/1": {"kind": TEXT, "message": TEXT},
}  # fmt: skip
"""Files and outputs that are made of parts, with what they always hold."""

OPTIONAL = {
    "Candidate": {"latency_us", "penalty", "penalty_low", "penalty_high", "tolerance", "tier"},
    "SharedDim": {"tiers"},
}
"""Fields that ``as_dict`` of a class leaves out where they mean nothing."""


def schema_of(hint: Any, defs: dict[str, Schema]) -> Schema:
    """The schema of what JSON has of a type; classes go into ``defs``."""
    hint = getattr(hint, "__value__", hint)  # a named alias
    if hint in PLAIN:
        return dict(PLAIN[hint])
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one, defs) for one in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is typing.Annotated:
        return schema_of(args[0], defs)
    if inspect.isclass(origin) and issubclass(origin, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": schema_of(args[1], defs)}
    if origin is tuple and Ellipsis not in args:
        return {"type": "array", "prefixItems": [schema_of(one, defs) for one in args]}
    if inspect.isclass(origin) and issubclass(origin, collections.abc.Iterable):
        return {"type": "array", "items": schema_of(args[0], defs)}
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return {"enum": [one.value for one in hint]}
    if inspect.isclass(hint) and issubclass(hint, tuple):
        return {"type": "array"}
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        made = hint.model_json_schema(by_alias=True, ref_template=REF, mode="serialization")
        defs |= made.pop("$defs", {})
        defs[hint.__name__] = made
    elif dataclasses.is_dataclass(hint):
        if hint.__name__ not in defs:
            defs[hint.__name__] = {}  # it may hold itself
            defs[hint.__name__] = _object(typing.cast(type, hint), defs)
    else:
        raise TypeError(f"no JSON of {hint!r}")
    return {"$ref": REF.format(model=hint.__name__)}


def _object(of: type, defs: dict[str, Schema]) -> Schema:
    names = known_names() | vars(sys.modules[of.__module__])
    hints = get_type_hints(of, localns=names)
    fields = {one.name: hints[one.name] for one in dataclasses.fields(of)}
    for name in of.derived if issubclass(of, Record) else ():
        made = inspect.getattr_static(of, name)
        read = getattr(made, "fget", None) or getattr(made, "func", None)
        fields[name] = get_type_hints(read, localns=names)["return"] if read else Any
    optional = OPTIONAL.get(of.__name__, set())
    return {
        "type": "object",
        "description": inspect.getdoc(of) or "",
        "properties": {name: schema_of(hint, defs) for name, hint in fields.items()},
        "required": [name for name in fields if name not in optional],
    }


def known_names() -> dict[str, Any]:
    """What modules of gacprof import from one another for type checkers alone."""
    found: dict[str, Any] = {}
    for name in [name for name in sys.modules if name.startswith("gacprof.")]:
        source = inspect.getsource(sys.modules[name])
        for place, names in re.findall(IMPORT, source, re.M):
            held = importlib.import_module(place)
            found |= {one: getattr(held, one) for one in names.split(", ") if hasattr(held, one)}
    return found


def _diagnosis(schema: Schema, defs: dict[str, Schema]) -> None:
    del schema["properties"]["parameters"]
    schema["properties"]["totals"] = OBJECT
    left_out = {"parameters", "tp", "basis", "times"}
    schema["required"] = [name for name in schema["required"] if name not in left_out] + ["totals"]
    defs["DimFinding"]["properties"]["lost_us"] = OR_NONE(NUMBER)


def _bench(schema: Schema, defs: dict[str, Schema]) -> None:
    defs["ModelTiming"]["properties"]["tokens_per_s"] = {"type": "array", "items": NUMBER}


RESHAPED: dict[str, Callable[[Schema, dict[str, Schema]], None]] = {
    "diagnosis/1": _diagnosis,
    "bench-result/1": _bench,
}


def json_schemas() -> dict[str, Schema]:
    """``cliffmap/3`` … → its schema."""
    made = {}
    for name, place in TYPED.items():
        module, cls = place.split(":")
        of = getattr(importlib.import_module(f"gacprof.{module}"), cls)
        defs: dict[str, Schema] = {}
        schema_of(of, defs)
        whole = defs.pop(cls)
        RESHAPED.get(name, lambda *_: None)(whole, defs)
        made[name] = _named(name, whole | ({"$defs": defs} if defs else {}))
    for name, held in WRITTEN.items():
        made[name] = _named(name, {"type": "object", "properties": held, "required": list(held)})
    return made


def _named(name: str, schema: Schema) -> Schema:
    properties = schema["properties"] | {"schema": {"const": f"gacprof.{name}"}}
    required = ["schema", *(one for one in schema.get("required", ()) if one != "schema")]
    head = {"$schema": DRAFT, "title": f"gacprof.{name}"}
    return head | {key: schema[key] for key in schema if key not in head} | {
        "properties": properties, "required": required,
    }  # fmt: skip


def file_of(name: str) -> str:
    """``cliffmap/3`` → ``cliffmap-3.json``."""
    return name.replace("/", "-") + ".json"


if __name__ == "__main__":
    for name, schema in json_schemas().items():
        write_json(Path(sys.argv[1]) / file_of(name), schema)
