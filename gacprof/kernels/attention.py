"""Attention by PyTorch's dispatcher: which backend takes a head_dim, and how well.

Answers recorded on a virtual GPU (:mod:`gacprof.kernels.dispatch`) come first; where none are,
the dispatcher's rules of refusal (``attention.toml``) give the same: 0 of 10,764 questions differ
on each of six GPUs. Calls are of inference, of dense tensors and views, with PyPI's wheels.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gacprof.core.errors import ConfigError
from gacprof.core.files import shipped_table
from gacprof.core.sizes import Cause, SizeVerdict
from gacprof.hardware.architectures import architecture_named
from gacprof.kernels.dispatch import (
    FLASH_MULTIPLE,
    SdpaAnswer,
    is_same_minor,
    load_table,
    refuse_uneven_heads,
)
from gacprof.kernels.requirements import matches_all

ATTENTION = Path(__file__).with_name("attention.toml")
ATTENTION_DTYPES = ("float32", "bfloat16", "float16")
"""Types of tensors that are judged; attention treats tf32 as float32."""
MAX_SWEPT = 256
REACH = 64  # how far above a head_dim a better one is looked for: templates are as far apart
QUALITY = ("cudnn", "filled", "unfilled", "padded", "efficient", "efficient-unfilled", "math")
"""Ways to serve a head_dim, the best first; cuDNN's and a filled template are equals."""
ATTENTION_TABLES = shipped_table(ATTENTION, dict[str, Any])


@dataclass(frozen=True)
class AttentionCall:
    """A call of ``scaled_dot_product_attention`` on a GPU; ``mask``: one is passed. Raises
    :class:`ConfigError` for key heads that do not divide the query heads."""

    gpu: str
    arch: str
    torch: str
    dtype: str
    head_dim: int
    heads: int
    kv_heads: int
    q_len: int = 1024
    kv_len: int = 1024
    mask: bool = False
    causal: bool = True
    batch: int = 1

    def __post_init__(self) -> None:
        refuse_uneven_heads(self.heads, self.kv_heads)

    @property
    def facts(self) -> dict[str, Any]:
        """The call as ``attention.toml`` describes it."""
        return {
            **vars(self),
            "sm": architecture_named(self.arch).capability,
            "odd_8": self.head_dim % 8,
            "odd_4": self.head_dim % 4,
            "grouped": self.heads != self.kv_heads,
            "uneven_causal": self.causal and self.q_len != self.kv_len,
        }


def release(torch: str | None) -> str:
    """Return the release with rules that ``2.13`` or ``2.13.0+cu130`` names, else the newest."""
    releases = ATTENTION_TABLES["releases"]
    for name in releases:
        if is_same_minor(name, torch or releases[-1]):
            return name
    raise ConfigError(f"attention of torch {torch} was not read, of {', '.join(releases)} it was")


def answer_of(call: AttentionCall) -> SdpaAnswer | None:
    """Return what PyTorch answered to a call; None where nobody recorded it."""
    table = load_table(call.gpu, call.torch)
    if table is None:
        return None
    shape = call.head_dim, call.dtype, call.q_len, call.kv_len
    mask = "float" if call.mask else "none"
    grid: dict[str, Any] = {"heads": call.heads, "kv_heads": call.kv_heads, "batch": call.batch}
    return table.sdpa(*shape, causal=call.causal, mask=mask, **grid)


def backend(call: AttentionCall) -> str:
    """Return the backend that PyTorch takes (flash, efficient, cudnn or math)."""
    answer = answer_of(call)
    return answer.backend if answer else backend_by_rules(call)


def backend_by_rules(call: AttentionCall) -> str:
    """Return the first backend in the dispatcher's order that refuses no part of the call."""
    facts = call.facts
    first = ["cudnn"] if call.arch in ATTENTION_TABLES["cudnn_first"] else []
    for name in [*first, *ATTENTION_TABLES["order"]]:
        if not any(matches_all(facts, row) for row in ATTENTION_TABLES.get(name, [])):
            return name
    return "math"


def serving(call: AttentionCall) -> str:
    """Return how a call's head_dim is served: one of :data:`QUALITY`."""
    name, size = backend(call), call.head_dim
    if name == "flash" and size % FLASH_MULTIPLE:
        return "padded"  # q, k and v are copied before, the output is sliced after
    if name == "flash":
        return "filled" if size in ATTENTION_TABLES["templates"] else "unfilled"
    if name == "efficient" and any(size % step for step in known_steps(call, name)):
        return "efficient-unfilled"
    return name


def known_steps(call: AttentionCall, name: str, table: str = "known") -> list[int]:
    """Return the steps of head_dims that a backend is known to serve at their best (by the table
    ``mostly``, mostly); empty where none is known."""
    rows = ATTENTION_TABLES[table].get(name, [])
    return [row["step"] for row in rows if matches_all(call.facts, row["conditions"])]


def _place(call: AttentionCall, head_dim: int) -> int:
    """Return the place of a head_dim in :data:`QUALITY`, whose first two are equals."""
    return max(QUALITY.index(serving(replace(call, head_dim=head_dim))) - 1, 0)


@cache
def _best_place(call: AttentionCall) -> int:
    return min(_place(call, head_dim) for head_dim in range(1, MAX_SWEPT + 1))


def judge_head_dim(call: AttentionCall) -> SizeVerdict:
    """Judge a call's head_dim: safe if served as well as any head_dim is, undecided if by a backend
    whose steps are not known."""
    size, way = call.head_dim, serving(call)
    table, answer = load_table(call.gpu, call.torch), answer_of(call)
    kernel = f"SDPA {way} (by the dispatcher's rules)"
    if table and answer:
        kernel = f"{answer} ({table.provenance})"
    if way in ("cudnn", "efficient") and not known_steps(call, way):
        split = any(size % step for step in known_steps(call, way, "mostly"))
        doubt = "others are mostly served better" if split else "its steps are not known"
        cause: Cause = "alignment" if split else "unproven"
        return SizeVerdict(
            size, "undecided", reason=f"{kernel}: {doubt}", kernel=kernel, cause=cause
        )
    place = _place(call, size)
    if place == _best_place(replace(call, head_dim=1)):  # head_dim 1: calls share the cache's entry
        return SizeVerdict(size, "safe", reason=kernel, kernel=kernel)
    for larger in range(size + 1, size + REACH + 1):
        if _place(call, larger) < place:
            reason = f"{kernel}; {larger} is served better"
            return SizeVerdict(size, "misaligned", reason=reason, kernel=kernel, cause="template")
    reason = f"{kernel}; no larger one is served better"
    return SizeVerdict(size, "undecided", reason=reason, kernel=kernel, cause="template")
