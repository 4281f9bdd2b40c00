"""What the tables of ``gacprof/kernels`` may hold, word by word."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Bounds = dict[Literal["N", "K", "width", "hidden", "whole"], int | str]


class CallConditions(TypedDict, total=False):
    """What a call of attention is like; the words are explained in ``attention.toml``."""

    arch: list[str]
    sm: str
    torch: str
    dtype: list[str]
    head_dim: str
    odd_8: str
    odd_4: str
    q_len: str
    kv_len: str
    mask: bool
    grouped: bool
    uneven_causal: bool


class KnownSteps(TypedDict):
    """Calls of which it is known that multiples of ``step`` are served at their best."""

    conditions: CallConditions
    step: int


class AttentionTables(TypedDict):
    """``attention.toml``: what each backend refuses, and where its steps are known."""

    releases: list[str]
    templates: list[int]
    order: list[str]
    cudnn_first: list[str]
    flash: list[CallConditions]
    efficient: list[CallConditions]
    cudnn: list[CallConditions]
    known: dict[str, list[KnownSteps]]
    mostly: dict[str, list[KnownSteps]]


class NameGroup(TypedDict):
    """Rows [provider, family, role, pattern]; ``form`` stands around each pattern."""

    on: Literal["path", "text"]
    form: NotRequired[str]
    rows: list[tuple[str, str, str, str]]


class NameTables(TypedDict):
    """``names.toml``; its words are explained there."""

    mma: dict[str, tuple[int, int, int]]
    completes: dict[str, list[str]]
    macros: dict[str, str]
    generations: dict[str, str]
    group: list[NameGroup]
    read: dict[str, list[str]]
    switches: dict[str, list[str]]
    types: dict[str, str]
    letters: dict[str, str]
    operators: dict[str, int]


class FormatTables(TypedDict):
    """``formats.toml``: how weights are stored; its words are explained there."""

    formats: dict[str, list[str]]
    gguf: dict[str, int]
    gguf_names: dict[str, str]
    compressed_tensors: dict[str, str]
    bits: dict[str, tuple[int, int, int]]
    known_values: dict[str, dict[str, str]]
    groups: dict[str, int]
    files: dict[str, str]
    unnamed: dict[str, str]
    other_names: dict[str, str]
    stored_like: dict[str, str]
    taken_off: dict[str, int]
    spellings: dict[str, list[str]]


class Conditions(TypedDict, total=False):
    """What a requirement is about: lists (one of them), flags, and ranges."""

    form: list[str]
    kind: list[Literal["dense", "expert", "vocab", "count", "Mamba-1"]]
    split: list[Literal["column", "row", "replicated", "none"]]
    role: list[str]
    family: list[str]
    tool: list[str]
    gpu: list[str]
    sm: str
    amd: bool
    tp: str
    group: list[int]
    gguf: list[str]
    gguf_block: list[int]
    kv: list[str]
    dtype: list[str]
    is_gated: bool
    sharded: bool
    partly: bool
    desc_act: bool
    dynamic: bool
    symmetric: bool
    stored: bool
    number: list[int]
    number_below_tp: bool
    repeats: bool
    K_mod_64: str
    method: list[str]
    N_mod_128: str
    version: str


class RequirementRow(TypedDict):
    """One ``[[requirement]]``."""

    id: str
    outcome: Literal["ok", "unknown", "pads", "falls back", "wrong", "refused"]
    source: str
    version: str
    conditions: NotRequired[Conditions]
    bounds: NotRequired[Bounds]
    exceptions: NotRequired[Conditions]
    alternatives: NotRequired[list[Bounds]]
    to: NotRequired[Bounds]
    relation: NotRequired[Literal["multiple", "at_least", "at_most", "one_of", "never", "scales"]]
    entries: NotRequired[Literal["floor", "ceil"]]
    shards: NotRequired[Literal["sum", "each", "all_but_last"]]
    values: NotRequired[list[int]]
    kernel: NotRequired[str]
    says: NotRequired[str]
    sure: NotRequired[Literal["high", "medium", "low"]]


class Flags(TypedDict):
    """An engine's command and its words for degrees, with ``{}`` for the number."""

    serve: str
    tp: NotRequired[str]
    dp: NotRequired[str]
    ep: NotRequired[str]


class EngineTable(TypedDict):
    """A file of an engine."""

    name: str
    read: str
    splits: Literal["tensors", "layers"]
    experts: str
    fused: list[str]
    flags: Flags
    calls_sdpa: NotRequired[bool]
    uneven: NotRequired[list[str]]
    memory: NotRequired[float]
    required: NotRequired[dict[str, list[str]]]
    requirement: list[RequirementRow]


class PenaltyRow(TypedDict):
    """What one group measured of misaligned products; the words are explained in the file."""

    gpu: str
    group: str
    measured: str
    ratio: list[float]
    tflops: NotRequired[list[float]]
    outlies: NotRequired[str]


class PenaltyTables(TypedDict):
    """``penalties.toml``."""

    rows: int
    side: int
    groups: int
    cuda: str
    one_row: float
    tile: int
    odd: list[PenaltyRow]
    even: list[PenaltyRow]
