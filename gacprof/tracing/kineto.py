"""Traces of torch.profiler (Kineto's JSON), of vLLM and SGLang too.

A launch lies within its operator on the host's thread, and its kernel carries the launch's
correlation id. Events are read one at a time; launches, kernels, modules and the operators that
multiply matrices are kept, so that a file may be larger than the memory.
"""

import gzip
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import starmap, zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import ijson

from gacprof.core.dtypes import ITEMSIZE, dtype_name
from gacprof.core.errors import MeasurementError
from gacprof.kernels.names import NAME_TABLES
from gacprof.tracing.recording import Launch, RecordedProduct, Recording

ATTENTION = "aten::scaled_dot_product_attention"
HEAD_MULTIPLE = 8  # fused attention pads other head_dims in 16 bits (ATen, sdp_utils)
Caller = tuple[RecordedProduct | None, str, bool, int | None]
"""What a launch was made for: its product, its layer, whether it is one of a graph, and the
head_dim of its attention, if no multiple."""
EVENTS = "traceEvents.item"  # where a trace has its events
MODULE = "nn.Module: "  # before a module's name, with_stack or with_modules
MAX_LENGTH = 2**40  # of a tensor's side; more is no length
PROGRESS = 1_000_000  # events between two words on progress: some seconds
QUOTES = "if it is a label of record_function, record without quotes: PyTorch escapes none"
NO_ID = -1  # stands for a correlation that an event lacks
ROW_BYTES = 16  # what rows have to start at for the widest loads


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a host's thread, in microseconds: an operator, or a call of a module."""

    start: float
    end: float
    product: RecordedProduct | None = None
    module: str = ""
    head_dim: int | None = None


@dataclass
class Events:
    """Events of a trace that are kept. ``launches`` are (start, correlation, is of a graph) by
    thread, ``kernels`` (start, name, µs, correlation)."""

    spans: dict[object, list[Span]] = field(default_factory=dict)
    launches: dict[object, list[tuple[float, int, bool]]] = field(default_factory=dict)
    kernels: list[tuple[float, str, float, int]] = field(default_factory=list)
    operators: int = 0


def read_kineto(path: Path) -> Recording:
    """Read a trace, ``.json`` or ``.json.gz``. Raises :class:`MeasurementError` for others."""
    try:
        device = device_of(path)
        events = kept_events(items(path, EVENTS))
    except (ijson.JSONError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        message, *around = str(error).splitlines()
        message = message.partition(" b'")[0]
        if around and around[0].strip():
            message = f"{message.rstrip('.')} at {around[0].strip()!r}; {QUOTES}"
        raise MeasurementError(f"{path} cannot be read as a trace: {message}") from None
    if not events.kernels and not events.operators:
        raise MeasurementError(
            f"{path} is no trace of torch.profiler: it holds no kernel, no operator"
        )
    callers = callers_of(events)
    launches = []
    for _, name, us, correlation in sorted(events.kernels):
        launches.append(Launch(name, us, 1, *callers.get(correlation, (None, "", False, None))))
    return Recording(launches, device, events.operators)


def items(path: Path, prefix: str) -> Iterator[Any]:
    """Yield the values at a place of a JSON file. One that is a list holds events alone."""
    with opened(path) as file:
        is_list = file.read(64).lstrip().startswith(b"[")
        if is_list and prefix != EVENTS:
            return
        file.seek(0)
        yield from ijson.items(file, "item" if is_list else prefix, use_float=True)


def opened(path: Path) -> BinaryIO:
    """Open a file, packed by gzip or not."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if is_packed else path.open("rb")  # type: ignore[return-value]


def device_of(path: Path) -> str:
    """Return the driver's name of a trace's GPUs; empty where it lists several kinds, or none."""
    devices = items(path, "deviceProperties.item")
    names = {str(device.get("name", "")) for device in devices if isinstance(device, dict)}
    return names.pop() if len(names) == 1 else ""


def kept_events(source: Iterator[Any]) -> Events:
    """Return what is kept of a trace's events. Events that lack a time or a name are passed by."""
    events = Events()
    for number, event in enumerate(source, 1):
        if number % PROGRESS == 0 and sys.stderr.isatty():
            print(f"\r{number:,} events are read ", end="", file=sys.stderr, flush=True)
        with suppress(AttributeError, TypeError, ValueError, LookupError, OverflowError):
            if event["ph"] == "X":
                keep_event(events, event)
    return events


def keep_event(events: Events, event: Mapping[str, Any]) -> None:
    """Add an event to those that are kept, if it is a launch, a kernel, a product or a module."""
    kind, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    args = event.get("args") or {}
    thread = str(event.get("pid")), str(event.get("tid"))
    start, length = float(event["ts"]), float(event.get("dur") or 0)
    if not 0 <= length < math.inf:
        return
    correlation = int(args.get("correlation", NO_ID))
    if kind in ("cpu_op", "operator"):
        events.operators += 1
        product = product_of(name, args)
        head_dim = head_dim_of(name, args)
        if product is not None or head_dim is not None:
            span = Span(start, start + length, product, head_dim=head_dim)
            events.spans.setdefault(thread, []).append(span)
    elif kind == "python_function" and name.startswith(MODULE):
        module = name.removeprefix(MODULE)
        events.spans.setdefault(thread, []).append(Span(start, start + length, module=module))
    elif kind in ("cuda_runtime", "cuda_driver", "runtime"):
        events.launches.setdefault(thread, []).append((start, correlation, "Graph" in name))
    elif kind == "kernel":
        events.kernels.append((start, name, length, correlation))


def product_of(operator: str, args: Mapping[str, Any]) -> RecordedProduct | None:
    """Return the product that an operator computes; None for any other, and without shapes."""
    place = NAME_TABLES["operators"].get(operator)
    shapes = args.get("Input Dims", args.get("Input dims"))
    if place is None or not shapes:
        return None
    x, w = (tuple(map(int, shape)) for shape in shapes[place : place + 2])
    if len(x) != len(w) or len(x) not in (2, 3) or x[-1] != w[-2]:
        return None
    if not all(0 < length <= MAX_LENGTH for length in (*x, *w)):
        return None
    types = args.get("Input type") or []
    itemsize = ITEMSIZE.get(dtype_name(types[place]), 0) if len(types) > place else 0
    all_strides = args.get("Input Strides") or ()
    strides = [tuple(map(int, steps)) for steps in all_strides[place : place + 2]]
    operands = list(zip_longest((x, w), strides, fillvalue=()))
    return RecordedProduct(
        is_batched=len(x) == 3,
        batch=math.prod(x[:-2]),
        M=x[-2],
        N=w[-1],
        K=x[-1],
        elements=sum(starmap(distinct, operands)) + math.prod((*x[:-1], w[-1])),
        has_short_rows=any(has_short_rows(*operand, itemsize) for operand in operands),
    )


def head_dim_of(operator: str, args: Mapping[str, Any]) -> int | None:
    """Return the head_dim of attention that has to pad it; None for any other operator."""
    shapes = args.get("Input Dims", args.get("Input dims"))
    if operator != ATTENTION or not shapes:
        return None
    head_dim = int(shapes[0][-1])  # of the queries, and so of the keys
    return head_dim if 0 < head_dim <= MAX_LENGTH and head_dim % HEAD_MULTIPLE else None


def distinct(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements a tensor holds; a stride of 0 repeats them."""
    if len(strides) != len(shape):
        return math.prod(shape)
    return math.prod(length for length, stride in zip(shape, strides, strict=True) if stride)


def has_short_rows(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Tell if a matrix's rows, or columns, if several, are off multiples of 16 bytes."""
    is_matrix = 1 in strides[-2:] and min(shape[-2:]) > 1
    return is_matrix and max(strides[-2:]) * itemsize % ROW_BYTES > 0


def callers_of(events: Events) -> dict[int, Caller]:
    """Return what each launch was made for, by its correlation id. Of an id that several processes
    of one trace used nothing is known."""
    callers: dict[int, Caller] = {}
    ambiguous = {NO_ID}
    for thread, launches in events.launches.items():
        spans = sorted(events.spans.get(thread, ()), key=lambda span: (span.start, -span.end))
        launches.sort()
        all_around = spans_around(spans, [start for start, _, _ in launches])
        for (_, correlation, in_graph), around in zip(launches, all_around, strict=True):
            products = [span.product for span in around if span.product]
            layer = "/".join([span.module for span in around if span.module][-2:])
            head_dims = [span.head_dim for span in around if span.head_dim]
            product = products[-1] if products else None
            caller: Caller = product, layer, in_graph, max(head_dims, default=None)
            if callers.setdefault(correlation, caller) != caller:
                ambiguous.add(correlation)
    for correlation in ambiguous:
        callers.pop(correlation, None)
    return callers


def spans_around(spans: Sequence[Span], times: Sequence[float]) -> Iterator[list[Span]]:
    """Yield the spans around ascending times, the outermost first, of nested sorted ones."""
    around: list[Span] = []
    count = 0
    for time in times:
        while count < len(spans) and spans[count].start <= time:
            around.append(spans[count])
            count += 1
        around = [span for span in around if time <= span.end]
        yield around
