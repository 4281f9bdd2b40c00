"""A function of yours as an operator: its cliffs, by the same blocks as any other's.

::

    @gacprof.operator(x=("M", "K"), w=("N", "K"))
    def gelu_linear(x, w):
        return torch.nn.functional.gelu(x @ w.T)

    gacprof.sweep(gelu_linear.over("K", range(64, 257), M=256, N=1024), out="runs/gelu")

Operands are declared by the dims of their shapes; gacprof makes them, places them and calls the
function on them. A sweep's workers get the function by value (cloudpickle): it may stand in a
script or a notebook. A Triton kernel belongs in a module of its own: Triton reads its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, update_wrapper
from math import prod
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import SuiteError
from gacprof.core.points import Flag, Point
from gacprof.operators.base import Operator, Prepared, itemsize, random_tensor

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")

Shape = tuple[str | int, ...]
"""An operand's shape: names of dims, and numbers where a size never changes."""
Count = Callable[..., int]
"""Takes the dims by name, gives floating-point operations."""


class OwnOperator(Operator):
    """A user's function. Call it as before; :meth:`over` makes the suite that sweeps it."""

    flags: Mapping[str, tuple[Flag, ...]] = {"cache": ("warm", "cold")}

    def __init__(
        self,
        function: Callable[..., Any],
        shapes: Mapping[str, Shape],
        name: str,
        dtypes: Sequence[str],
        weights: Sequence[str],
        flops: Count | None,
        numpy: bool,
    ) -> None:
        self.name = name or function.__name__
        self.dims = tuple(
            dict.fromkeys(s for shape in shapes.values() for s in shape if isinstance(s, str))
        )
        self.dtypes = tuple(dtypes)
        self._function, self._shapes, self._numpy = function, dict(shapes), numpy
        self._weights, self._flops = tuple(weights), flops
        _check(self, shapes)
        update_wrapper(self, function)

    def __call__(self, *operands: Any, **more: Any) -> Any:
        return self._function(*operands, **more)

    def flops(self, point: Point) -> int:
        """As declared; 0 where nothing was."""
        return 0 if self._flops is None else int(self._flops(**point.dim))

    def bytes_moved(self, point: Point) -> int:
        """All operands once; what the function writes is not known."""
        return itemsize(point) * sum(prod(self._sizes(s, point)) for s in self._shapes.values())

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        operands = tuple(
            random_tensor(self._sizes(shape, point), point, device, seed)
            for seed, shape in enumerate(self._shapes.values(), start=1)
        )
        places = dict(zip(self._shapes, range(len(operands)), strict=True))
        return Prepared(
            partial(_with_arrays, self._function) if self._numpy else self._function,
            operands,
            inputs=tuple(i for name, i in places.items() if name not in self._weights),
            weights=tuple(i for name, i in places.items() if name in self._weights),
        )

    def over(
        self,
        axis: str,
        values: Iterable[int],
        *,
        dtype: str = "auto",
        cache: str = "warm",
        budget_s: float | None = None,
        **dims: int | list[int],
    ) -> dict[str, Any]:
        """What :func:`gacprof.sweep` measures it by, over one of its dims; lists of ``dims``
        multiply out. ``cache="cold"`` gives the ``weights`` a model's reuse distance.

        The suite as TOML would state it; it is checked when it is swept.
        """
        table = {
            "operator": self.name, "axis": axis, "values": list(values), "dims": dims,
            "dtype": dtype, "flags": {"cache": cache},
        }  # fmt: skip
        timing = {} if budget_s is None else {"budget_s": float(budget_s)}
        return {"name": self.name, "timing": timing, "sweep": [table]}

    def _sizes(self, shape: Shape, point: Point) -> tuple[int, ...]:
        return tuple(point.dim[size] if isinstance(size, str) else size for size in shape)


def operator(
    *,
    name: str = "",
    dtypes: Sequence[str] = DTYPES,
    weights: Sequence[str] = (),
    flops: Count | None = None,
    numpy: bool = False,
    **shapes: Shape,
) -> Callable[[Callable[..., Any]], OwnOperator]:
    """Make a function of tensors an operator that sweeps know, under its own name.

    ``shapes`` give each operand's shape by names of dims, in the order of the function's
    parameters: ``x=("M", "K")``. ``weights`` names the operands that a model reads once a pass (not
    in cache when measured cold). ``flops`` counts the work from the dims. With ``numpy`` the
    function gets arrays in place of tensors (a CPU, float32). Defined again it replaces itself.

    Raises :class:`SuiteError` for a name that gacprof uses itself, and shapes that are none.
    """

    def register(function: Callable[..., Any]) -> OwnOperator:
        kinds = ("float32",) if numpy else dtypes
        made = OwnOperator(function, shapes, name, kinds, weights, flops, numpy)
        _register(made)
        return made

    return register


def _register(made: OwnOperator) -> None:
    from gacprof.operators import OPERATORS

    if not isinstance(OPERATORS.get(made.name, made), OwnOperator):
        raise SuiteError(f"'{made.name}' is an operator of gacprof's own: give another name=")
    OPERATORS[made.name] = made


def own_operators() -> bytes:
    """All that were registered, for a worker process; empty where there is none.

    Raises :class:`SuiteError` for a function that cannot be sent to another process.
    """
    from gacprof.operators import OPERATORS

    own = [op for op in OPERATORS.values() if isinstance(op, OwnOperator)]
    if not own:
        return b""
    import cloudpickle

    try:
        sent: bytes = cloudpickle.dumps(own)
        return sent
    except Exception as error:  # what a function holds may raise anything
        names = ", ".join(op.name for op in own)
        raise SuiteError(
            f"{names}: cannot be sent to the sweep's worker process ({error}); put the function in "
            "a module, or sweep with isolate=False"
        ) from None


def register_pickled(pickled: bytes) -> None:
    """Register what :func:`own_operators` gave, in the worker."""
    if not pickled:
        return
    import cloudpickle

    for made in cloudpickle.loads(pickled):
        _register(made)


def _with_arrays(function: Callable[..., Any], *operands: torch.Tensor) -> Any:
    return function(*(operand.numpy() for operand in operands))


def _is_size(size: object) -> bool:
    return size.isidentifier() if isinstance(size, str) else type(size) is int and size > 0


def _check(made: OwnOperator, shapes: Mapping[str, Shape]) -> None:
    for name, shape in shapes.items():
        if not (isinstance(shape, tuple) and shape and all(map(_is_size, shape))):
            raise SuiteError(
                f"operator '{made.name}': the shape of {name} is {shape!r}; write it as a tuple of "
                "dim names and sizes, as ('M', 'K')"
            )
    if not made.dims:
        raise SuiteError(f"operator '{made.name}' has no dim: declare operands as x=('M', 'K')")
    unknown = [name for name in made._weights if name not in shapes]
    if unknown:
        raise SuiteError(f"operator '{made.name}' has no operand {unknown[0]!r} to be a weight")
