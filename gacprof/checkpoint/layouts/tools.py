"""The layouts of tools that are known by name, and those that name none: plain weights, and factor
pairs by shape. Other packages bring theirs by entry points.

ASVD         ``X.BLinear`` [r, in] runs first, ``X.ALinear`` [out, r] second and has the bias. The
             config's ``truncation_ranks`` has the rank of every factored module
             (hahnyuan/ASVD4LLM, modeling_asvd_llama.py)
PaLU         one ``X.VT`` [Σrᵢ, in] for all head groups, then ``X.U.{i}`` [out/G, rᵢ] per group:
             group ``i`` owns the rows from ``Σ_{j<i} rⱼ``. The config's ``head_wise_ranks`` has the
             list of every module (shadowpa0327/Palu, palu/model/modules/svd_linear.py)
SVD-LLM      ``q_v_proj`` [r, in] runs first, ``q_u_proj`` [out, r] second, for every linear; OPT's
             ``out``, ``fc1``, ``fc2`` too, and (ours) Mixtral's ``w1``. No config says the ranks,
             and ``in_features`` of pickled modules may disagree with the weights: shapes count
LLM-Pruner   a whole model pickled as ``{'model', 'tokenizer'}``, plain names, widths and heads
             different per layer. Its config keeps the sizes from before pruning; the modules'
             ``num_heads`` and the shapes are right. Only its own classes in the pickle distinguish
             it from other tools: without them the layout is ``per-layer-widths``
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from gacprof.checkpoint.inventory import Contents, Inventory, NewSizes
from gacprof.checkpoint.layouts.layout import Compressor, Layout
from gacprof.checkpoint.layouts.linear import Linear, bias_of, dense_linears, factor_chains
from gacprof.checkpoint.layouts.names import parent_of, role_of
from gacprof.checkpoint.layouts.slicegpt import SliceGpt
from gacprof.checkpoint.layouts.widths import find_widths
from gacprof.core.dtypes import FLOATING
from gacprof.core.errors import CheckpointError
from gacprof.core.plugins import brought, instance


class Asvd(Compressor):
    name = "asvd"
    rank_key = "truncation_ranks"
    prefix = "ASVD"
    inner, outer = ".BLinear", ".ALinear"
    note = (
        "a plain transformers model loads this folder without an error and leaves the factored "
        "weights random: use gacprof.load_model or ASVD's own class"
    )


class Palu(Compressor):
    name = "palu"
    rank_key = "head_wise_ranks"
    prefix = "Palu"
    inner, outer = ".VT", ".U"
    note = (
        "a plain transformers Llama, Mistral or Qwen2 model loads these tensors without an error "
        "and leaves k_proj and v_proj random: use gacprof.load_model or PaLU's own class"
    )

    def found(self, contents: Contents) -> Iterable[Linear]:
        return (x for x in super().found(contents) if x.outer[0].endswith(".U.0.weight"))


_INNER = re.compile(r"(.*\.)(q|k|v|o|out|gate|up|down|fc1|fc2|w1|w2|w3)_v_proj\.weight", re.DOTALL)


class SvdLlm(Compressor):
    name = "svd-llm"
    classes = ("component.svd_",)
    note = (
        "no plain transformers class has these factored weights: use gacprof.load_model or "
        "SVD-LLM's own code"
    )

    def found(self, contents: Contents) -> Iterator[Linear]:
        for name in contents.tensors:
            match = _INNER.fullmatch(name)
            if not match:
                continue
            parent, stem = match.groups()
            module = parent + (stem if stem[-1].isdigit() else f"{stem}_proj")
            outer = f"{parent}{stem}_u_proj"
            if f"{outer}.weight" in contents.tensors:
                biases = bias_of(contents, outer)
                yield Linear(module, (f"{outer}.weight",), inner=name, biases=biases)


class LlmPruner(Compressor):
    name = "llm-pruner"
    classes = ("LLMPruner.",)

    def recognise(self, contents: Contents) -> bool:
        """A pickled model of LLM-Pruner's own classes."""
        return any(self.has_class(str(m.get("class"))) for m in contents.attributes.values())


_OWN: tuple[Compressor, ...] = (Palu(), Asvd(), SvdLlm(), SliceGpt(), LlmPruner())


@cache
def compressors() -> tuple[Compressor, ...]:
    """In order of asking; those of other packages, classes by entry points, come last."""
    others = brought("compressors", lambda found: instance(found, Compressor))
    return (*_OWN, *others.values())


class Plain(Layout):
    """Plain Hugging Face names and dense weights: whatever no other layout recognises.
    Torch-Pruning's example, LLM-Shearing and Minitron write it; nothing names the tool."""

    name = "plain"

    def recognise(self, contents: Contents) -> bool:
        return True


class PerLayerWidths(Layout):
    """Plain names, and MLPs whose widths differ, whatever tool cut them."""

    name = "per-layer-widths"

    def recognise(self, contents: Contents) -> bool:
        widths, _ = find_widths(contents, list(dense_linears(contents)))
        return len({dim.size for dim in widths if dim.role == "mlp"}) > 1


class GacprofFactors(Layout):
    """What ``gacprof.load_model`` builds: ``X.inner`` first, ``X.outer`` or ``X.outer.{i}`` second.

    Found in a model in memory, or in a state dict saved from one.
    """

    name = "gacprof"
    ordered = False

    def found(self, contents: Contents) -> Iterator[Linear]:
        for linear in factor_chains(contents, ".inner", ".outer"):
            if role_of(linear.name) != "other":
                yield linear

    def mirror(self, inventory: Inventory, sizes: NewSizes) -> dict[str, dict[str, Any]]:
        """The config of the tool that the model came from, which it still has."""
        for tool in compressors():
            if tool.rank_key in inventory.config:
                return tool.mirror(inventory, sizes)
        return super().mirror(inventory, sizes)


_SUFFIXED = re.compile(r"(.*(?:_proj|fc1|fc2))_([A-Za-z0-9]{1,10})", re.DOTALL)
_NOT_FACTORS = ("lora_", "base_layer", "adapter")


class FactorPairs(Layout):
    """Factor pairs of tools that are not known: ``u`` [out, r] and ``v`` [r, in] that fit.

    Two ways to find them. The user gives a pair of name patterns; or exactly two matrices stand
    where one weight of a known role would (``q_proj.U``/``q_proj.V``, ``fc1_a``/``fc1_b``) and fit
    in one order only, with a rank no larger than the layer's sizes.
    """

    name = "factor-pairs"
    ordered = False

    def found(self, contents: Contents) -> Iterator[Linear]:
        if contents.factors:
            return _by_pattern(contents, *contents.factors)
        return _by_shape(contents)

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        yield (
            f"{len(found)} factor pairs were found by their shapes; the tool that wrote them is "
            "not known"
        )


def _by_pattern(contents: Contents, outer: str, inner: str) -> Iterator[Linear]:
    """Pairs that the user's patterns name."""
    if outer.count("{module}") != 1 or inner.count("{module}") != 1:
        raise CheckpointError(
            f"factor patterns {outer!r} and {inner!r}: each needs {{module}} once, as in "
            "'{module}.U.weight'"
        )
    before, after = outer.split("{module}")
    found = 0
    for name in contents.tensors:
        if not (name.startswith(before) and name.endswith(after)):
            continue
        module = name[len(before) : len(name) - len(after)]
        other = inner.replace("{module}", module)
        if module and other in contents.tensors:
            found += 1
            if not _fit(contents, name, other):
                raise CheckpointError(
                    f"{name} {list(contents.shape(name))} times {other} "
                    f"{list(contents.shape(other))}: the factors do not fit"
                )
            biases = bias_of(contents, name.removesuffix(".weight"))
            yield Linear(module, (name,), inner=other, biases=biases)
    if not found:
        raise CheckpointError(f"factor patterns {outer!r} and {inner!r} match no pair of tensors")


def _by_shape(contents: Contents) -> Iterator[Linear]:
    candidates: dict[str, list[str]] = {}
    for name, info in contents.tensors.items():
        if len(info.shape) == 2 and info.dtype in FLOATING:
            module = _factored_module(name.removesuffix(".weight"))
            if module:
                candidates.setdefault(module, []).append(name)
    vectors = _vectors_of(contents, candidates)
    for module, names in candidates.items():
        if len(names) != 2 or f"{module}.weight" in contents.tensors:
            continue
        if any(word in name for name in names for word in _NOT_FACTORS):
            continue
        orders = [pair for pair in (names, names[::-1]) if _fit(contents, *pair)]
        if len(orders) == 1:
            outer, inner = orders[0]
            biases = bias_of(contents, outer.removesuffix(".weight"))
            frozen = _unknown_between(contents, vectors.get(module, ()), inner)
            yield Linear(module, (outer,), inner=inner, biases=biases, frozen=frozen)


def _factored_module(name: str) -> str | None:
    """The layer of a known role that the tensor ``name`` would be a factor of."""
    parent = parent_of(name)
    if role_of(parent) != "other":
        return parent
    found = _SUFFIXED.fullmatch(name)
    return found.group(1) if found and role_of(found.group(1)) != "other" else None


def _fit(contents: Contents, outer: str, inner: str) -> bool:
    """Whether outer·inner is a product of rank no larger than its sides."""
    u, v = contents.shape(outer), contents.shape(inner)
    return len(u) == len(v) == 2 and u[1] == v[0] and 0 < u[1] <= min(u[0], v[1])


def _vectors_of(contents: Contents, modules: Collection[str]) -> dict[str, list[str]]:
    """The one-dimensional tensors below ``module`` or named ``module_…``, by module."""
    found: dict[str, list[str]] = {}
    for name, info in contents.tensors.items():
        path = name if len(info.shape) == 1 else ""
        while path:
            path = parent_of(path)
            suffixed = _SUFFIXED.fullmatch(path)
            for module in (path, suffixed.group(1) if suffixed else ""):
                if module in modules:
                    found.setdefault(module, []).append(name)
    return found


def _unknown_between(contents: Contents, vectors: Iterable[str], inner: str) -> str:
    """Why the rank may not change: something between the factors has its size too."""
    rank = contents.shape(inner)[0]
    for name in vectors:
        weight = contents.tensors.get(name.removesuffix("bias") + "weight")
        is_bias = name.endswith(".bias") and weight is not None and rank in weight.shape
        if contents.shape(name) == (rank,) and not is_bias:
            return f"{name} has the rank's size and its meaning is not known"
    return ""
