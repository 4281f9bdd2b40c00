"""The errors that a user can mend. Everything else that is raised is Python's own error."""

from __future__ import annotations

from collections.abc import Iterable

INSTALL = "pip install '.[{}]' in a clone of gacprof"  # no package index has gacprof


class GacprofError(Exception):
    """Base of what a user can mend. The message is one line: what is wrong, where, what to do."""


class CheckpointError(GacprofError):
    """A checkpoint cannot be read, recognised, resized or built as a model."""


class MapError(GacprofError):
    """A cliff map is of another device or version, or lacks what was asked of it."""


class PlanError(GacprofError):
    """A size cannot be had, or no plan meets the limits."""


class MeasurementError(GacprofError):
    """A device, a suite or a run folder cannot be measured or read."""


class ConfigError(GacprofError):
    """A config, an engine, a GPU or a quantisation is not known or contradicts itself."""


def require_one_of(what: str, value: object, choices: Iterable[object]) -> None:
    """Raise :class:`ConfigError` where a value is none of its choices."""
    names = list(choices)
    if value not in names:
        raise ConfigError(f"unknown {what} '{value}': use one of {', '.join(map(str, names))}")


def require_within(what: str, value: float, most: float) -> None:
    """Raise :class:`ConfigError` where a number is not above 0, or above ``most``."""
    if not 0 < value <= most:
        share = f" ({value:g} % is {value / 100:g})" if most <= 2 < value <= 100 else ""
        raise ConfigError(f"{what} is {value}: give a number above 0, at most {most:g}{share}")
