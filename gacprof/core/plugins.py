"""What other packages bring by entry points: operators, devices, compressors,
compressing methods, GPU generations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from gacprof.core.errors import GacprofError, first_line

T = TypeVar("T")


def brought(group: str, made: Callable[[Any], T]) -> dict[str, T]:
    """What the entry points of the group ``gacprof.<group>`` name, by their names, as ``made`` of
    what was loaded.

    Raises :class:`GacprofError` for one that cannot be loaded or made, or is of a wrong kind
    (``made`` raises ``TypeError``): another package's code may raise anything.
    """
    found = {}
    for entry in _entries(group):
        with naming(f"the {group} of '{entry.value}' cannot be loaded"):
            found[entry.name] = made(entry.load())
    return found


def names_brought(group: str) -> list[str]:
    """The names of a group's entry points, without loading them."""
    return [entry.name for entry in _entries(group)]


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=f"gacprof.{group}"))


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Whatever else is raised inside becomes a :class:`GacprofError` that says ``what`` first."""
    try:
        yield
    except GacprofError:
        raise
    except (Exception, SystemExit) as error:
        raise GacprofError(f"{what}: {first_line(error)}") from None


def instance(found: Any, *kinds: type[Any]) -> Any:
    """``found``, or an instance of it where it is a class. Raises ``TypeError`` where that is none
    of ``kinds``."""
    one = found() if isinstance(found, type) else found
    if not isinstance(one, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"it is of type {type(one).__name__}, {names} is needed")
    return one
