"""Sizes that no plan changes: a vocabulary, a hidden size, a head_dim.

Nothing pads them here, but what they cost is the user's to know: they are judged as any other size
and reported where they are misaligned, with the nearest size that is served well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gacprof.checkpoint.inventory import Gemm, Module
from gacprof.cliffmap.source import ModelView, Product, Side, SizeCost
from gacprof.diagnosing.findings import DimFinding
from gacprof.diagnosing.predict import Predictor

REACH = 64
"""How far above a fixed size a better one is looked for: alignments, tiles and templates repeat
within it."""


def fixed_findings(predictor: Predictor) -> Iterator[DimFinding]:
    """The finding on every side of a product that no dim feeds, where the source knows it; named
    ``lm_head.weight:N``. Equal sides of equal products are judged once."""
    known: dict[object, DimFinding | None] = {}
    for module in predictor.inventory.modules:
        for gemm in module.gemms:
            fed = _fed(predictor, gemm)
            for axis, other in (("N", "K"), ("K", "N")):
                shared_out = axis == "N" and module.role == "head" and predictor.ranks.tp > 1
                if axis in fed or shared_out:
                    continue
                product = _with_free(predictor, gemm, axis, free=fed.get(other, False))
                size = gemm.N if axis == "N" else gemm.K
                heads = heads_on(predictor, module, axis)
                key = product, size, heads
                if key not in known:
                    known[key] = _judge(predictor, product, size, _whole_heads(predictor, heads))
                found = known[key]
                if found is not None:
                    about = f"linear.{axis} of {gemm.weight}"
                    yield replace(
                        found, name=f"{gemm.weight}:{axis}", layer=module.layer, role=module.role,
                        feeds=(about,),
                    )  # fmt: skip


def heads_on(predictor: Predictor, module: Module, axis: str) -> tuple[int, int, int] | None:
    """(heads on this side of the product, query heads, heads of keys and values) where the side is
    made of heads: N of q, k and v, K of o."""
    at = next((a for a in predictor.inventory.attentions if a.layer == module.layer), None)
    if at is None or (axis == "K") != (module.role == "o"):
        return None
    own = {"q": at.heads, "o": at.heads, "k": at.kv_heads, "v": at.kv_heads}
    on_side = (own | {"qkv": at.heads + 2 * at.kv_heads}).get(module.role)
    return None if on_side is None else (on_side, at.heads, at.kv_heads)


def _whole_heads(predictor: Predictor, heads: tuple[int, int, int] | None) -> Callable[[int], bool]:
    """Whether a size of that side is one of whole heads, of a head_dim that is safe too."""
    if heads is None:
        return lambda size: True

    def offer(size: int) -> bool:
        head_dim, rest = divmod(size, heads[0])
        if rest:
            return False
        found = predictor.view.head_dim(*_on_a_rank(predictor, *heads[1:]), head_dim)
        return found is None or found[0].verdict == "safe"

    return offer


def _on_a_rank(predictor: Predictor, heads: int, kv_heads: int) -> tuple[int, int]:
    tp = predictor.ranks.tp
    return heads // tp, max(1, kv_heads // tp)


def _fed(predictor: Predictor, gemm: Gemm) -> dict[str, bool]:
    """The sides of the product that dims feed, and whether a plan may change these."""
    dims = predictor.inventory.fed_by(gemm.weight)
    return {f.axis: d.adjustable for d in dims for f in d.feeds if f.weight == gemm.weight}


def verdicts_of(predictor: Predictor, gemm: Gemm, fixed: Mapping[str, DimFinding]) -> Iterator[str]:
    """The verdict on each side of the product that no dim feeds."""
    for axis in {"N", "K"} - set(_fed(predictor, gemm)):
        found = fixed.get(f"{gemm.weight}:{axis}")
        yield "unknown" if found is None else found.verdict


def head_findings(predictor: Predictor) -> Iterator[DimFinding]:
    """The finding on every head_dim that attention is surely slower at than at a larger one, or
    may be. No zeros can be added to one without code that scales the queries anew."""
    shapes = {(a.heads, a.kv_heads, a.head_dim) for a in predictor.inventory.attentions}
    for heads, kv_heads, head_dim in sorted(shapes):
        on_rank = _on_a_rank(predictor, heads, kv_heads)
        found = head_finding(predictor.view, *on_rank, head_dim)
        if found is None or found.verdict == "safe":
            continue
        at = f"attention of {heads} heads, {kv_heads} of keys and values"
        yield replace(found, name=f"{at}:head_dim", feeds=(at,))


def head_finding(view: ModelView, heads: int, kv_heads: int, head_dim: int) -> DimFinding | None:
    """The finding on the head_dim of attention as one rank runs it; None where it is not known."""
    judged = view.head_dim(heads, kv_heads, head_dim)
    if judged is None:
        return None
    cost, best = judged
    at = f"attention of {heads} heads, {kv_heads} of keys and values"
    found = _finding(view.tolerance, cost, best, cost.why)
    found = replace(found, name=f"{at}:head_dim", role="attention", feeds=(at,))
    if cost.penalty is not None:
        why = f"'gacprof explain MAP --op attention --d {head_dim}' tells why"
        return replace(found, advice=f"{found.advice}; {why}")
    if cost.verdict == "undecided":
        why = f"{cost.why} has steps that are not known"
        return replace(found, advice=f"{why}; {found.advice}")
    return found


UNCHANGED = "no plan changes"
STAYS = "cannot be changed here"


def unchanged(predictor: Predictor) -> list[str]:
    """What a plan has to say of misaligned sizes that are not its to change, one line a size."""
    found = [f for f in fixed_findings(predictor) if f.verdict == "misaligned"]
    found += [f for f in head_findings(predictor) if f.verdict == "misaligned"]
    alike: dict[tuple[int, str], list[str]] = {}
    for finding in found:
        alike.setdefault((finding.size, finding.advice), []).append(finding.name)
    return [
        f"{UNCHANGED} {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}, {size}, "
        f"which is misaligned{advice.removeprefix(STAYS)}"
        for (size, advice), names in alike.items()
    ]


def _with_free(predictor: Predictor, gemm: Gemm, axis: str, *, free: bool) -> Product:
    """The product with one side as the size in question."""
    on_n, on_k = predictor.ranks.shards(gemm.weight)
    dtype = predictor.ranks.dtype_of(gemm.weight)
    if axis == "N":
        return Product(Side(0, 1, on_n), Side(gemm.K, 0, on_k, free), gemm.bias, dtype)
    return Product(Side(gemm.N, 0, on_n, free), Side(0, 1, on_k), gemm.bias, dtype)


def _judge(
    predictor: Predictor, product: Product, size: int, offer: Callable[[int], bool]
) -> DimFinding | None:
    """The finding on a size; None where the source does not hold it, or nothing larger. Of the safe
    sizes the next one that the model can have is offered."""
    shards = max(product.N.shards, product.K.shards)
    offered = predictor.view.sizes([product], size + 1, size + REACH * shards)
    if not offered:
        return None
    here, *others = predictor.view.judge([product], [size, *offered], None)
    if here.verdict is None:
        return None
    safe = (cost.size for cost in others if cost.verdict == "safe" and offer(cost.size))
    served = predictor.view.mechanism(product, size)
    return _finding(predictor.tolerance, here, next(safe, None), served)


def _finding(tolerance: float, cost: SizeCost, best: int | None, served: str | None) -> DimFinding:
    larger = "" if best is None or best == cost.size else f"; {best} would be served well"
    advice = "keep" if cost.verdict == "safe" else f"{STAYS}{larger}"
    return DimFinding(
        name="", kind="fixed", size=cost.size, layer=None, role="", feeds=(),
        divisible_by_8=cost.size % 8 == 0, verdict=cost.verdict or "unknown", penalty=cost.penalty,
        latency_us=cost.latency_us, best_size=best, best_latency_us=None, tier=served,
        advice=advice, tolerance=tolerance or None, scaled=cost.scaled,
        penalty_low=cost.penalty_low, penalty_high=cost.penalty_high, relative=cost.relative,
        relative_from=cost.relative_from,
    )  # fmt: skip
