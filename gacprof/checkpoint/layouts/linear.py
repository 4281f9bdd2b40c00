"""A linear layer as it lies among the tensors: dense, a chain of factors, or packed.

``y = outer · (inner · x) + bias``: ``inner`` [r, in] runs first, ``outer`` [out, r] second. A dense
layer has no inner; a grouped one (PaLU) has an outer for each group, and each reads a section of
inner's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.names import CONV1D, is_embedding, last_of
from gacprof.core.dtypes import FLOATING
from gacprof.core.errors import CheckpointError

_SCALES = (".weight_scale", ".weight_scale_inv", ".scales")
_QUANTISED = "its weight is quantised with scales, which are not resized"


@dataclass(frozen=True)
class Linear:
    """``name`` is the module's; ``outer``, ``inner`` and ``biases`` are tensor names.

    ``axes`` are the out and in axis of its weights (nn.Linear: 0 and 1). ``per_output`` and
    ``per_input`` count stored parameters for one entry of the output, of the input. ``joined``
    experts lie one after the other along axis 0, and the features are those of one of them;
    ``alternating`` says that entries of gate and up alternate. ``why`` says why no dim of this
    layer may change; empty where one may.
    """

    name: str
    outer: tuple[str, ...]
    out_features: int
    in_features: int
    dtype: str
    per_output: int
    per_input: int
    inner: str | None = None
    biases: tuple[str, ...] = ()
    axes: tuple[int, int] = (0, 1)
    joined: int = 1
    alternating: bool = False
    why: str = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.reads, *self.outer, *self.biases)

    @property
    def reads(self) -> str:
        """The weight that the layer's input is multiplied by first."""
        return self.inner or self.outer[0]


def bias_of(contents: Contents, weight: str) -> str:
    """Return the name of the bias beside a weight; empty where there is none."""
    name = f"{weight}_bias"  # of stacked experts
    if weight.endswith(".weight"):
        name = weight.removesuffix("weight") + "bias"
    return name if name in contents.tensors else ""


def stored_linear(
    contents: Contents,
    name: str,
    *outer: str,
    inner: str | None = None,
    axes: tuple[int, int] = (0, 1),
    joined: int = 1,
    alternating: bool = False,
    why: str = "",
) -> Linear:
    """Describe the layer of these weights by their shapes."""
    tensors = contents.tensors
    reads, (out_axis, in_axis) = tensors[inner or outer[0]], axes
    biases = tuple(filter(None, (bias_of(contents, weight) for weight in outer)))
    if len(biases) != len(outer):
        biases = ()
    n_out = sum(tensors[weight].shape[out_axis] for weight in outer)
    n_in = reads.shape[in_axis]
    if out_axis == 0:
        n_out //= joined
    elif in_axis == 0:
        n_in //= joined
    return Linear(
        name,
        outer,
        n_out,
        n_in,
        tensors[outer[0]].dtype,
        per_output=sum(tensors[part].numel for part in (outer[0], *biases)) // max(1, n_out),
        per_input=reads.numel // max(1, n_in),
        inner=inner,
        biases=biases,
        axes=axes,
        joined=joined,
        alternating=alternating,
        why=why,
    )


def factored_linear(contents: Contents, name: str, inner: str, outer: tuple[str, ...]) -> Linear:
    """Describe a layer of factors. Raises :class:`CheckpointError` where they do not fit."""
    shapes = [contents.shape(factor) for factor in (inner, *outer)]
    is_chain = all(len(shape) == 2 and min(shape) > 0 for shape in shapes)
    if not is_chain or shapes[0][0] != sum(shape[1] for shape in shapes[1:]):
        raise CheckpointError(
            f"{name}: its factors do not fit: {inner} {list(shapes[0])} and {outer[0]} "
            f"{list(shapes[1])}: fetch them again"
        )
    return stored_linear(contents, name, *outer, inner=inner)


def dense_linears(contents: Contents, others: Iterable[Linear] = ()) -> Iterator[Linear]:
    """Every two-dimensional ``X.weight`` that is no embedding and of none of the ``others``."""
    used = {tensor for linear in others for tensor in linear.tensors}
    has_conv1d = any(_is_conv1d(contents, name) for name in contents.tensors)
    for name, info in contents.tensors.items():
        module = name.removesuffix(".weight")
        is_matrix = len(info.shape) == 2 and info.numel > 0 and info.dtype in FLOATING
        if name in used or module == name or not is_matrix or is_embedding(module):
            continue
        has_scales = any(module + suffix in contents.tensors for suffix in _SCALES)
        yield stored_linear(
            contents,
            module,
            name,
            axes=(1, 0) if has_conv1d and last_of(module) in CONV1D else (0, 1),
            why=_QUANTISED if has_scales else "",
        )


def _is_conv1d(contents: Contents, weight: str) -> bool:
    """Tell whether a weight of a Conv1D's name has its bias along axis 1 and not along axis 0."""
    shape, bias = contents.shape(weight), bias_of(contents, weight)
    if last_of(weight.removesuffix(".weight")) not in CONV1D or not bias:
        return False
    return contents.shape(bias) == shape[1:] != shape[:1]


_WHY = "its weight is quantised; resize before quantising, then quantise again"
_ENDINGS = (".qweight", ".weight_packed", ".weight._data", ".weight")


def packed_linears(contents: Contents) -> list[Linear]:
    """The layers whose weights are packed, or whole numbers."""
    linears = []
    for name, info in contents.tensors.items():
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
        module = name.removesuffix(ending)
        if not ending or len(info.shape) != 2 or is_embedding(module):
            continue
        (n_out, n_in), bits = info.shape, 0
        if ending == ".qweight":
            n_out, n_in, bits = _gptq_or_awq(contents, module)
        elif ending == ".weight_packed":
            bits = 4
            n_in *= 2 * info.nbytes // max(1, info.numel)
        elif info.dtype in ("int8", "uint8") and f"{name}.absmax" not in contents.tensors:
            bits = 8
        if bits and n_out and n_in:
            dtype = f"int{bits}"
            linears.append(Linear(module, (name,), n_out, n_in, dtype, n_in, n_out, why=_WHY))
    return linears


def _gptq_or_awq(contents: Contents, module: str) -> tuple[int, int, int]:
    """Out and in features and bits; the bits follow from ``qzeros``. Zeros where they do not."""
    names = [f"{module}.{part}" for part in ("qweight", "qzeros", "scales")]
    shapes = [contents.shape(name) for name in names if name in contents.tensors]
    if len(shapes) < 3 or any(len(shape) != 2 for shape in shapes):
        return 0, 0, 0
    (rows, columns), (_, zeros), (_, n_out) = shapes
    bits = 32 * zeros // max(1, n_out)
    if columns == zeros:  # AWQ
        return n_out, rows, bits
    return n_out, rows * 32 // max(1, bits), bits
