"""JSON Schemas of all files and ``--json`` outputs: ``python tools/json_schemas.py docs/schemas``.

A schema is made of the type that is written, as :class:`gacprof.core.files.Record` writes it.
Results that reshape themselves (``as_dict`` of their own) stand in ``RESHAPED``, the types of what
is written as mappings here, in ``WRITTEN``. A test keeps docs/schemas current; what the tests have
the command line print as JSON is validated.
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
from typing import (
    Any,
    Literal,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import BaseModel

from gacprof.cliffmap.export import Modulus
from gacprof.core.files import Record, write_json
from gacprof.core.points import Environment
from gacprof.extras.compress.outcome import PhaseTime
from gacprof.kernels.names import Kernel
from gacprof.kernels.onednn import LibraryCall
from gacprof.linting.design import Shape
from gacprof.planning import Plan
from gacprof.resizing.request import Resized
from gacprof.rules.table import Tier

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
IMPORT = r"^    from (gacprof[\w.]*) import ([\w, ]+)$"
REF = "#/$defs/{model}"
PLAIN = {
    str: {"type": "string"}, Path: {"type": "string"}, bool: {"type": "boolean"},
    int: {"type": "integer"}, float: {"type": "number"}, type(None): {"type": "null"},
    Any: {}, object: {}, dict: {"type": "object"}, list: {"type": "array"},
}  # fmt: skip
NUMBER, OBJECT = PLAIN[float], PLAIN[dict]
OR_NONE: Callable[[Schema], Schema] = lambda one: {"anyOf": [one, PLAIN[type(None)]]}  # noqa: E731

TYPED = {
    "backend-choice/1": "kernels.sdpa:BackendChoice",
    "bench-result/1": "evaluation.summary:BenchResult",
    "candidate/1": "cliffmap.source:Candidate",
    "cliffmap/3": "cliffmap.schema:MapFile",
    "compatibility/1": "cliffmap.compare:Compatibility",
    "component/1": "devices.doctor:Component",
    "demo/1": "demonstrating.run:Demo",
    "diagnosis/1": "diagnosing.findings:Diagnosis",
    "explanation/1": "explaining.case:Explanation",
    "export-result/1": "extras.serve.run:ExportResult",
    "figures/1": "api.maps:Figures",
    "fleet-run/1": "extras.fleet.driver:FleetRun",
    "forecast/1": "devices.forecast:Forecast",
    "gpus/1": "api.gpus:Gpus",
    "kernel-group/1": "kernels.names:KernelGroup",
    "import-result/1": "resizing.from_gguf:ImportResult",
    "intersection/1": "cliffmap.intersect:Intersection",
    "lint/1": "linting.verdict:Lint",
    "map-diff/1": "cliffmap.compare:MapDiff",
    "map-facts/1": "cliffmap.storage:MapFacts",
    "pareto/1": "planning.pareto:Pareto",
    "plan/1": "planning.schema:Plan",
    "quality/1": "evaluation.evaluating:Quality",
    "realign-result/1": "resizing.request:RealignResult",
    "run-summary/1": "sweeping.engine:RunSummary",
    "shared-dim/1": "cliffmap.intersect:SharedDim",
    "sweep-estimate/1": "api.sweeps:SweepEstimate",
    "table/1": "reporting.tables:Table",
    "task-scores/1": "evaluation.harness:TaskScores",
    "verification/1": "evaluation.verification:Verification",
}
"""Schema → where its type is, below ``gacprof``."""


class Change(TypedDict):
    before: int
    after: int


class Source(TypedDict):
    path: str
    fingerprint: str


class Origin(TypedDict):
    """What the record beside any output says."""

    gacprof: str
    source: Source


class Realigned(Origin):
    origin: dict[str, Any]
    layout: str
    exact: bool
    parameters: Change
    resized: list[Resized]
    fused: list[str]
    notes: list[str]


class RealignedAgain(Realigned, total=False):
    earlier: dict[str, Any] | None


class Imported(Origin):
    dtype: str
    notes: list[str]


class Exported(Origin):
    to: str


class Compression(TypedDict):
    """What was compressed, to which sizes, and what that is predicted to bring."""

    method: str
    layout: str
    ratio: float
    removed: float
    parameters: Change
    compressed: Change
    cache_entries: Change | None
    energy_kept: float
    energy_of_requested: float
    objective: str | None
    loss_added: float | None
    loss_of_requested: float | None
    dims: int
    aligned: int | None
    undecided: int
    left_dense: int
    requested: dict[str, int | None]
    sizes: dict[str, int | None]
    left: dict[str, str]
    predicted: list[PhaseTime]
    notes: list[str]


class CompressionResult(Compression):
    source: str
    out: str
    plan: Plan | None


class Dense(TypedDict):
    name: str
    fingerprint: str


class Compressed(Compression):
    gacprof: str
    source: Dense
    earlier: dict[str, Any] | None
    request: dict[str, Any]
    calibration: dict[str, Any] | None
    map: str | None
    device: str | None


class SafeAxis(TypedDict):
    operator: str
    axis: str
    dtype: str
    fixed: dict[str, int]
    flags: dict[str, Any]
    first: int
    last: int
    safe: list[int]
    undecided: list[int]
    frontier: list[int]
    best_modulus: Modulus | None


class ToolSetting(TypedDict):
    tool: str
    option: str
    value: int
    rounds: str
    penalty: float
    loses: float
    unreached: int
    default: int
    default_penalty: float | None
    default_loses: float | None


class ToolSettings(TypedDict):
    dtype: str
    M: int
    axes: list[str]
    sizes: dict[str, list[int]]
    curves: list[str]
    tools: list[ToolSetting]


class SafeDims(TypedDict):
    map: str
    device: str
    provenance: str
    citation: str
    axes: list[SafeAxis]
    settings: list[ToolSettings]


class Rules(TypedDict):
    name: str
    gpu: str
    arch: str
    torch: str
    cudnn: int | None
    created: str
    basis: str
    dtypes: list[str]
    notes: list[str]
    tiers: list[Tier]


class Run(TypedDict):
    suite: dict[str, Any]
    suite_hash: str
    environment: Environment
    timer: str


class Implementation(TypedDict):
    point: str
    mechanism: str | None
    calls: list[LibraryCall]
    reason: str


class Launches(TypedDict):
    launches: list[dict[str, Any]]
    problem: str


class Baseline(TypedDict):
    findings: list[str]


class Designs(TypedDict):
    shapes: list[Shape]


class Failure(TypedDict):
    kind: str
    message: str


WRITTEN: dict[str, Any] = {
    "compress-result/1": CompressionResult,
    "compressed/1": Compressed,
    "cpu-implementation/1": Implementation,
    "error/1": Failure,
    "exported/1": Exported,
    "imported/1": Imported,
    "kernel-launches/1": Launches,
    "lint-baseline/1": Baseline,
    "lint-design/1": Designs,
    "realigned/1": RealignedAgain,
    "rules/1": Rules,
    "run/2": Run,
    "safedims/1": SafeDims,
}
"""Files and outputs that are made of parts, with their types."""

OPTIONAL = {
    "Candidate": {"latency_us", "penalty", "penalty_low", "penalty_high", "tolerance", "tier"},
    "SharedDim": {"tiers"},
    "Kernel": {one.name for one in dataclasses.fields(Kernel)} - {"name", "provider"},
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
    elif is_typeddict(hint):
        fields = {name: schema_of(one, defs) for name, one in get_type_hints(hint).items()}
        required = [name for name in fields if name in hint.__required_keys__]
        defs[hint.__name__] = {"type": "object", "properties": fields, "required": required}
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
    types_of = dict(WRITTEN)
    for name, place in TYPED.items():
        module, cls = place.split(":")
        types_of[name] = getattr(importlib.import_module(f"gacprof.{module}"), cls)
    made = {}
    for name, of in sorted(types_of.items()):
        defs: dict[str, Schema] = {}
        schema_of(of, defs)
        whole = defs.pop(of.__name__)
        RESHAPED.get(name, lambda *_: None)(whole, defs)
        made[name] = _named(name, whole | ({"$defs": defs} if defs else {}))
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
