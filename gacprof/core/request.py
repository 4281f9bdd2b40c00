"""One request a verb: a frozen value from which the command line and the Python function derive.

A request is a class whose fields say all that is known of an option::

    class PlanRequest(Request):
        checkpoint: Model = argument(kw_only=False, help="A checkpoint's folder or weights file.")
        budget: float | None = option(default=None, read=float, above=0, help="A share of …")

:func:`verb` makes the Python function of it, ``cli/options.py`` the options of the command line.
Both only construct the request, which reads texts and checks values: once, here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
)

from gacprof.core.errors import GacprofError, short

P = ParamSpec("P")
R = TypeVar("R", contravariant=True)
T = TypeVar("T", covariant=True)

OPTION, LIKE = "option", "like"
"""Keys of a field's metadata."""
RUN = "Run"
"""A group of options: where and how a verb runs."""


@dataclass(frozen=True)
class Option:
    """What is known of a field besides its name, type and default.

    ``read`` is ``int``, ``float``, ``str``, ``Path``, or a function that makes the value of a text
    (with ``many`` of several); the field then takes such texts in Python too. ``least`` and
    ``most`` bound a number, ``above`` does so exclusively, and ``whole`` says that it has no
    fraction; ``choices`` are all texts that it may
    be, ``suggested`` those that completion offers. ``nested`` is a request whose fields are options
    of the same verb.
    """

    help: str = ""
    names: tuple[str, ...] = ()
    read: Callable[[Any], Any] = str
    group: str = ""
    metavar: str | None = None
    many: bool = False
    argument: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    whole: bool = False
    choices: tuple[str, ...] = ()
    suggested: Callable[[], list[str]] | None = None
    nested: type[Request] | None = None

    @property
    def reads_text(self) -> bool:
        """Whether its texts are in a notation of their own."""
        return self.read not in (int, float, str, Path)

    @property
    def is_number(self) -> bool:
        bounds = (self.least, self.above, self.most)
        return self.read in (int, float) or any(bound is not None for bound in bounds)

    @property
    def is_whole(self) -> bool:
        return self.whole or self.read is int

    def wanted(self) -> str:
        """What a number must be, in words."""
        kind = "whole number" if self.is_whole else "number"
        if self.above == 0 and self.most is None:
            return f"a positive {kind}"
        kind = f"a {kind}"
        low = f"above {self.above:g}" if self.above is not None else ""
        if self.least is not None and self.most is not None:
            return f"{kind} from {self.least:g} to {self.most:g}"
        low = low or (f"of at least {self.least:g}" if self.least is not None else "")
        high = f"of at most {self.most:g}" if self.most is not None else ""
        return f"{kind} {' and '.join(part for part in (low, high) if part)}".rstrip()


def option(
    *, default: Any = MISSING, kw_only: bool = True, like: type[Request] | None = None, **known: Any
) -> Any:
    """A field that is an option of the command line; the keywords are those of :class:`Option`,
    and ``name`` for a spelling that is not the field's own. What is not said here is as it is of
    the field of this name in the request ``like``."""
    if "name" in known:
        names = known.pop("name")
        known["names"] = (names,) if isinstance(names, str) else tuple(names)
    known = {"argument": False} | known
    return field(default=default, kw_only=kw_only, metadata={LIKE: like, OPTION: known})


def argument(*, default: Any = MISSING, kw_only: bool = True, **known: Any) -> Any:
    """A field that the command line takes by its place; else as :func:`option`."""
    return option(default=default, kw_only=kw_only, argument=True, **known)


def nested(*, factory: Any, kw_only: bool = True) -> Any:
    """A field that is a request by itself; the command line has its options."""
    metadata = {OPTION: Option(nested=factory)}
    return field(default_factory=factory, kw_only=kw_only, metadata=metadata)


def hook(*, default: Any) -> Any:
    """A field that only Python has, such as what is called with progress. No part of the value."""
    return field(default=default, kw_only=True, compare=False, repr=False)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(option, argument, nested, hook, field),
)
class Request:
    """Base of the requests: each subclass is a frozen dataclass, its fields by keyword unless
    ``kw_only=False``. Values that do not fit raise ``error``, in one line."""

    error: ClassVar[type[GacprofError]] = GacprofError
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, kw_only: bool = True, **given: Any) -> None:
        super().__init_subclass__(**given)
        for name, made in vars(cls).items():
            if isinstance(made, Field) and LIKE in made.metadata:
                like = made.metadata[LIKE]
                known = Option() if like is None else dict(options_of(like))[name]
                known = replace(known, **made.metadata[OPTION])
                made.metadata = MappingProxyType({OPTION: known})
        dataclass(frozen=True, kw_only=kw_only)(cls)

    @classmethod
    def joined(cls, *others: Request, **given: Any) -> Self:
        """This request, of the fields that it shares with others, and of what is given."""
        names = {each.name for each in fields(cls)}
        shared = {name: value for other in others for name, value in vars(other).items()}
        return cls(**{name: value for name, value in shared.items() if name in names} | given)

    def __post_init__(self) -> None:
        for name, known in options_of(type(self)):
            value = getattr(self, name)
            if known.nested:
                read = self._nested(name, known.nested, value)
            elif value is None:
                continue
            else:
                read = self._read(name, known, value)
            if read is not value:
                object.__setattr__(self, name, read)

    def _nested(self, name: str, wanted: type[Request], value: Any) -> Any:
        if value is None:
            return wanted()
        if not isinstance(value, wanted):
            raise self.error(f"{name} is {short(repr(value))}: it must be a {wanted.__name__}")
        return value

    def _read(self, name: str, known: Option, value: Any) -> Any:
        if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
            value = str(value).removeprefix("torch.")
        elif isinstance(value, type) and value.__module__ == "numpy":  # np.float16
            value = value.__name__
        texts = isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        if known.reads_text and (texts if known.many else isinstance(value, str)):
            value = known.read(value)
            if not isinstance(value, Real):
                return value
        default = type(self).__dataclass_fields__[name].default
        if isinstance(default, bool):
            return self._flag(name, value)
        if known.is_number:
            return self._number(name, known, value)
        if known.choices and value not in known.choices:
            listed = ", ".join(known.choices)
            raise self.error(f"{label(name, known)} is '{short(value)}': it is one of {listed}")
        return value

    def _flag(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.error(f"{name} is {short(repr(value))}: it must be True or False")
        return value

    def _number(self, name: str, known: Option, value: Any) -> Any:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()  # NumPy's and torch's scalars
        real = isinstance(value, Real) and not isinstance(value, bool)
        fits = real and (isinstance(value, int) or isfinite(value))
        if fits and known.is_whole:
            fits = isinstance(value, Integral)
            value = int(value) if fits else value
        fits = fits and not (
            (known.least is not None and value < known.least)
            or (known.above is not None and value <= known.above)
            or (known.most is not None and value > known.most)
        )
        if not fits:
            raise self.error(
                f"{label(name, known)} is {short(repr(value))}: it must be {known.wanted()}"
            )
        return value


def spelling(name: str, known: Option) -> str:
    """``--quality-floor`` of quality_floor, unless it has another."""
    return known.names[0] if known.names else "--" + name.replace("_", "-")


def label(name: str, known: Option) -> str:
    """A field as a message names it: with its spelling on the command line where that differs."""
    spelled = spelling(name, known)
    return name if known.argument or spelled == f"--{name}" else f"{name} ({spelled})"


def options_of(request: type[Request]) -> Iterator[tuple[str, Option]]:
    """The fields that are options, by name, nested requests as they stand."""
    for each in fields(request):
        if OPTION in each.metadata:
            yield each.name, each.metadata[OPTION]


class Verb(Protocol[P, R, T]):
    """A verb as Python calls it: by a request, or by the arguments of one."""

    request: type[Request]

    @overload
    def __call__(self, request: R, /) -> T: ...
    @overload
    def __call__(self, *args: P.args, **given: P.kwargs) -> T: ...


def verb(name: str, request: Callable[P, R], run: Callable[[R], T]) -> Verb[P, R, T]:
    """The Python function of a verb: ``run`` of the request that its arguments make.

    Its signature is the request's, its docstring that of ``run`` with a line for every field. A
    field's name on the command line is taken too (``op`` for ``operator``).
    """
    made: Any = request
    signature = inspect.signature(made).replace(
        return_annotation=inspect.signature(run).return_annotation
    )

    spelled = {
        spelling(each, known).lstrip("-").replace("-", "_"): each
        for each, known in options_of(made)
    } | {each: each for each in signature.parameters}

    def call(*args: Any, **given: Any) -> T:
        given = {spelled.get(each, each): value for each, value in given.items()}
        if len(args) == 1 and not given and isinstance(args[0], made):
            return run(args[0])
        try:
            signature.bind(*args, **given)
        except TypeError as error:
            raise made.error(f"{name}: {error}") from None
        return run(made(*args, **given))

    call.__name__ = call.__qualname__ = name
    call.__module__ = run.__module__
    call.__doc__ = f"{inspect.getdoc(run)}\n\nArguments:\n" + "\n".join(described(made))
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__wrapped__ = run  # type: ignore[attr-defined]
    call.request = made  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def described(request: type[Request]) -> Iterator[str]:
    """A line for every field, with its option where that is spelled otherwise."""
    for name, known in options_of(request):
        if known.nested is None:
            yield f"    {label(name, known)}: {known.help}"
        else:
            yield f"    {name}: a {known.nested.__name__}"


def given_texts(request: type[Request], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Of the command line's values those that are given, nested requests made of theirs."""
    made: dict[str, Any] = {}
    for name, known in options_of(request):
        if known.nested is not None:
            made[name] = known.nested(**given_texts(known.nested, texts))
        elif texts.get(name) not in (None, [], ()):
            made[name] = texts[name]
    return made
