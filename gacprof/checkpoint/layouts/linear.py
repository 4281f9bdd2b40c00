"""A linear layer as it lies among the tensors: dense, a chain of factors, or packed.

``y = outer · (inner · x) + bias`` with ``inner`` [r, in] and ``outer`` [out, r]; a grouped one
(PaLU) has an outer for each group, which reads a section of inner's output.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from gacprof.checkpoint.inventory import Contents, Place, TensorInfo
from gacprof.checkpoint.layouts.names import CONV1D, EMBEDDING, layer_of, role_of
from gacprof.checkpoint.layouts.quantised import StoredFormat, StoredSides, stored_formats
from gacprof.core.dtypes import FLOATING, MULTIPLIED

_SCALES = (".weight_scale", ".weight_scale_inv", ".scales")


@dataclass(frozen=True)
class Linear:
    """A linear layer as stored. ``name`` is the module's; ``weights``, in the order of execution,
    and ``biases`` are tensors.

    ``axes`` are the out and in axis of its weights, ``sides`` the places of outputs and inputs in
    all of its tensors. ``per_output`` and ``per_input`` count stored parameters for an entry of
    output and input. ``joined`` experts lie one after the other along axis 0, and the features are
    those of one. Entries of gate and up may be ``alternating``; the last ones of an ``ordered``
    rank are the least important. ``why``: no dim may change.
    """

    name: str
    role: str
    layer: int | None
    weights: tuple[str, ...]
    out_features: int
    in_features: int
    dtype: str
    per_output: int
    per_input: int
    sides: StoredSides
    biases: tuple[str, ...] = ()
    axes: tuple[int, int] = (0, 1)
    joined: int = 1
    alternating: bool = False
    ordered: bool = False
    why: str = ""
    is_quantised: bool = False

    @property
    def tensors(self) -> set[str]:
        """The names of all of its tensors that are known to be part of it."""
        places = chain(self.sides.N, self.sides.K)
        return {*self.weights, *self.biases, *(place.tensor for place in places)}


def bias_of(weight: str) -> str:
    """Return the name of a weight's bias; stacked experts' weights have no ending."""
    if weight.endswith(".weight"):
        return weight.removesuffix("weight") + "bias"
    return f"{weight}_bias"


def stored_linear(
    contents: Contents,
    name: str,
    *weights: str,
    axes: tuple[int, int] = (0, 1),
    joined: int = 1,
    sides: StoredSides | None = None,
    **facts: Any,
) -> Linear:
    """Describe the layer of these weights by their shapes and ``facts``, fields of ``Linear``."""
    tensors = contents.tensors
    outer = weights[1:] or weights
    biases = tuple(map(bias_of, outer))
    if not tensors.keys() >= set(biases):
        biases = ()
    n_out = sum(tensors[weight].shape[axes[0]] for weight in outer)
    n_in = tensors[weights[0]].shape[axes[1]]
    if axes[0] == 0:
        n_out //= joined
    else:
        n_in //= joined
    if sides is None:
        outputs = [Place(weights[-1], axes[0])]
        outputs += [Place(bias, len(tensors[bias].shape) - 1) for bias in biases]
        sides = StoredSides(tuple(outputs), (Place(weights[0], axes[1]),))
    return Linear(
        name,
        role_of(name),
        layer_of(name),
        weights,
        n_out,
        n_in,
        tensors[outer[0]].dtype,
        per_output=sum(tensors[part].numel for part in (outer[0], *biases)) // max(1, n_out),
        per_input=tensors[weights[0]].numel // max(1, n_in),
        sides=sides,
        biases=biases,
        axes=axes,
        joined=joined,
        **facts,
    )


def unknown_tensor(contents: Contents, names: Collection[str], sizes: Collection[int]) -> str:
    """Return why dims of these sizes may not change: perhaps a norm or bias between weights."""
    for name in sorted(names):
        if not set(sizes).isdisjoint(contents.shape(name)):
            return f"{name} has the same size and is not known to allow zeros"
    return ""


def matrices(contents: Contents) -> Iterator[tuple[str, list[TensorInfo]]]:
    """Yield the two-dimensional ``X.weight``, by the template of X."""
    for template, names in contents.by_template.items():
        if template.endswith(".weight"):
            infos = [contents.tensors[name] for name in names]
            whole = [info for info in infos if len(info.shape) == 2 and info.numel]
            yield template.removesuffix(".weight"), whole


def dense_linears(contents: Contents, others: Iterable[Linear]) -> Iterator[Linear]:
    """Return every matrix ``X.weight`` that is no embedding and in none of the ``others``."""
    used: set[str] = set()
    for linear in others:
        used.update(linear.weights, linear.biases)
    templates = contents.by_template
    conv1d = chain(*(templates[template] for template in templates if template.endswith(CONV1D)))
    formats = stored_formats(contents)
    # A square weight does not tell; one of another shape tells it for the whole model
    is_in_out = any(_is_in_out(contents, name) for name in conv1d)
    for template, infos in matrices(contents):
        axes = (1, 0) if is_in_out and f"{template}.weight".endswith(CONV1D) else (0, 1)
        is_table = EMBEDDING.fullmatch(template)
        for info in infos:
            if is_table or info.name in used or info.dtype not in FLOATING:
                continue
            module = info.name.removesuffix(".weight")
            has_scales = any(module + suffix in contents.tensors for suffix in _SCALES)
            if has_scales or info.dtype not in MULTIPLIED:
                yield _fitting([_scaled_linear(contents, form, info) for form in formats])
            else:
                yield stored_linear(contents, module, info.name, axes=axes)


def _scaled_linear(contents: Contents, form: StoredFormat, weight: TensorInfo) -> Linear:
    """Return the layer of a weight with scales, in this format."""
    module = weight.name.removesuffix(".weight")
    n_out, n_in = weight.shape
    sides = form.sides(contents, module, {"N": n_out, "K": n_in})
    linear = stored_linear(contents, module, weight.name, sides=sides)
    return replace(linear, why=sides.why, is_quantised=True)


def _is_in_out(contents: Contents, weight: str) -> bool:
    """Return whether a weight has its bias along axis 1 and not along axis 0."""
    shape = contents.shape(weight)
    bias = contents.tensors.get(bias_of(weight))
    return bias is not None and bias.shape == shape[1:] != shape[:1]


_ENDINGS = (".qweight", ".weight_packed", ".weight._data", "_blocks", ".weight")


def packed_linears(contents: Contents) -> list[Linear]:
    """Return the layers whose weights are packed, or whole numbers."""
    linears = []
    formats = stored_formats(contents)
    for template, names in contents.by_template.items():
        ending = next((ending for ending in _ENDINGS if template.endswith(ending)), "")
        if not ending or EMBEDDING.fullmatch(template.removesuffix(ending)):
            continue
        for name in names:
            readings = [_packed_linear(contents, form, name, ending) for form in formats]
            packed = [linear for linear in readings if linear is not None]
            if packed:
                linears.append(_fitting(packed))
    return linears


def _fitting(readings: Sequence[Linear]) -> Linear:
    """Return the reading of a layer by several formats that fits; a refused one if they differ."""
    fitting = [linear for linear in readings if not linear.why] or readings[:1]
    first = fitting[0]
    if any(linear != first for linear in fitting):
        return replace(first, why=f"several of the config's formats fit {first.name}")
    return first


def _packed_linear(contents: Contents, form: StoredFormat, name: str, ending: str) -> Linear | None:
    """Return the layer of a weight in this format; None where it is not packed."""
    module = name.removesuffix(ending)
    n_out, n_in, bits = _packed_size(contents, name, ending, form.bits)
    if min(bits, n_out, n_in) < 1:
        return None
    sides = form.sides(
        contents, module, {"N": n_out, "K": n_in}, "_" if ending == "_blocks" else "."
    )
    return Linear(
        module,
        role_of(module),
        layer_of(module),
        (name,),
        n_out,
        n_in,
        f"int{bits}",
        per_output=n_in,
        per_input=n_out,
        sides=sides,
        alternating=ending == "_blocks",  # gpt-oss's gate and up
        why=sides.why,
        is_quantised=True,
    )


def _packed_size(contents: Contents, name: str, ending: str, bits: int) -> tuple[int, int, int]:
    """Return the out and in features of a tensor, and its bits; 0 where it is not packed."""
    info = contents.tensors[name]
    if ending == "_blocks" and len(info.shape) == 4:  # MXFP4 of all experts, 2 weights a byte
        return info.shape[1], info.shape[2] * info.shape[3] * 2, 4
    if len(info.shape) != 2:
        return 0, 0, 0
    rows, columns = info.shape
    if ending == ".weight_packed":
        return rows, columns * 8 * info.nbytes // max(1, info.numel) // bits, bits
    if f"{name}_scale_2" in contents.tensors and info.dtype == "uint8":  # NVFP4 of ModelOpt
        return rows, 2 * columns, 4
    if ending != ".qweight":
        is_packed = info.dtype in ("int8", "uint8") and f"{name}.absmax" not in contents.tensors
        return rows, columns, 8 if is_packed else 0
    beside = [f"{name.removesuffix('qweight')}{part}" for part in ("qzeros", "scales")]
    shapes = [contents.shape(tensor) for tensor in beside if tensor in contents.tensors]
    if [len(shape) for shape in shapes] != [2, 2]:
        return 0, 0, 0
    (_, zeros), (_, n_out) = shapes
    # Zero points are packed as the weights are, into words of 32 bits along out
    bits = 32 * zeros // max(1, n_out)
    if columns == zeros:  # AWQ
        return n_out, rows, bits
    return n_out, rows * 32 // max(1, bits), bits
