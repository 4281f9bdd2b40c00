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
    packed: bool = False
    why: str = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.reads, *self.outer, *self.biases)

    @property
    def reads(self) -> str:
        """The weight that the layer's input is multiplied by first."""
        return self.inner or self.outer[0]


def bias_of(contents: Contents, weight: str) -> tuple[str, ...]:
    """Return the name of the bias beside a weight, if there is one."""
    name = weight.removesuffix(".weight") + ".bias"
    return (name,) if name in contents.tensors else ()


def dense(
    contents: Contents, name: str, weight: str, *, axes: tuple[int, int] = (0, 1), why: str = ""
) -> Linear:
    """The layer of one weight."""
    info, biases = contents.tensors[weight], bias_of(contents, weight)
    n_out, n_in = info.shape[axes[0]], info.shape[axes[1]]
    return Linear(
        name,
        (weight,),
        n_out,
        n_in,
        info.dtype,
        per_output=n_in + len(biases),
        per_input=n_out,
        biases=biases,
        axes=axes,
        why=why,
    )


def factored(
    contents: Contents, name: str, inner: str, outer: tuple[str, ...], *, why: str = ""
) -> Linear:
    """The layer of a factor that runs first and of one, or one for each group, that follows.

    Raises :class:`CheckpointError` where they do not fit.
    """
    tensors = contents.tensors
    if not is_chain(contents, inner, outer):
        shapes = ", ".join(f"{part} {list(tensors[part].shape)}" for part in (inner, *outer[:4]))
        raise CheckpointError(f"{name}: its factors do not fit: {shapes}: fetch them again")
    biases = tuple(bias for part in outer for bias in bias_of(contents, part))
    if len(biases) != len(outer):
        biases = ()
    n_out, n_in = sum(tensors[part].shape[0] for part in outer), tensors[inner].shape[1]
    stored = sum(tensors[part].numel for part in (outer[0], *biases))
    return Linear(
        name,
        outer,
        n_out,
        n_in,
        tensors[outer[0]].dtype,
        per_output=stored // n_out,
        per_input=tensors[inner].shape[0],
        inner=inner,
        biases=biases,
        why=why,
    )


def is_chain(contents: Contents, inner: str, outer: tuple[str, ...]) -> bool:
    """Tell whether the outer factors together take what the inner one gives."""
    shapes = [contents.shape(part) for part in (inner, *outer)]
    if any(len(shape) != 2 or 0 in shape for shape in shapes):
        return False
    return shapes[0][0] == sum(shape[1] for shape in shapes[1:])


def dense_linears(contents: Contents, others: Iterable[Linear] = ()) -> Iterator[Linear]:
    """Every two-dimensional ``X.weight`` that is no embedding and of none of the ``others``."""
    used = {tensor for linear in others for tensor in linear.tensors}
    transposed = _has_conv1d(contents)
    for name, info in contents.tensors.items():
        module = name.removesuffix(".weight")
        is_matrix = len(info.shape) == 2 and info.numel > 0 and info.dtype in FLOATING
        if name in used or module == name or not is_matrix or is_embedding(module):
            continue
        has_scales = any(module + suffix in contents.tensors for suffix in _SCALES)
        axes = (1, 0) if transposed and last_of(module) in CONV1D else (0, 1)
        yield dense(contents, module, name, axes=axes, why=_QUANTISED if has_scales else "")


def _has_conv1d(contents: Contents) -> bool:
    """Tell whether a weight of a Conv1D's name has its bias along axis 1 and not along axis 0."""
    for name, info in contents.tensors.items():
        if len(info.shape) == 2 and last_of(name.removesuffix(".weight")) in CONV1D:
            for bias in bias_of(contents, name):
                shape = contents.shape(bias)
                if shape[:1] != info.shape[:1]:
                    return shape == info.shape[1:]
    return False
