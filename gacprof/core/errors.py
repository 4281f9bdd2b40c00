"""What can go wrong, as one small family.

Every message says what was wrong, where, and what to do; the command line prints it as one
line and exits with :attr:`GacprofError.exit_code`. Anything else that escapes is a bug.
"""

from __future__ import annotations

from gacprof.core.formatting import visible

MOST_DIGITS = 6
"""Of a version."""
MOST_LETTERS = 2000
"""Of a message: names and values from a file may be of any length."""


class GacprofError(Exception):
    """Base of all errors that are the user's to mend. Exit code 2. The message is one line."""

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        text = visible(message).replace("\n", "\\n")
        super().__init__(text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} …")


class SuiteError(GacprofError):
    """A suite names an unknown operator, an empty axis, a non-positive dim, …"""


class MeasurementError(GacprofError):
    """A device, timer or samples file cannot do what was asked."""


class MemoryExhaustedError(MeasurementError):
    """A device has too little memory for what was asked, which shows only while it runs. It is no
    finding of a model."""

    exit_code = 70


class MapError(GacprofError):
    """A cliff map is malformed, foreign, stale, or lacks what was asked of it."""


class CheckpointError(GacprofError):
    """A checkpoint cannot be read, recognised, changed or loaded."""


class PlanError(GacprofError):
    """A plan does not fit its checkpoint, its map or its budget."""


class SolverError(GacprofError):
    """A knapsack is malformed or infeasible."""


class CompressionError(GacprofError):
    """A model cannot be compressed as asked: its layers, its calibration text, its ratio."""


class LintError(GacprofError):
    """A config cannot be judged, or an engine, a GPU or a quantisation is not known."""


class ReportError(GacprofError):
    """A figure, table or page cannot be written."""


MOST_OF_ANOTHER = 300
"""Characters of what a library says that a message quotes: some print whole inputs."""


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, at most 300 characters of it; its type where it
    says nothing."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, GacprofError):
        return line.partition("\\n")[0]
    return line if len(line) <= MOST_OF_ANOTHER else f"{line[:MOST_OF_ANOTHER]} …"


def short(value: object) -> str:
    """A value of a file for a message: of a long one, the first 20 characters."""
    try:
        text = str(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "of thousands of digits"
    return text if len(text) <= 24 else f"{text[:20]}…"


def why_unreadable(error: OSError | ValueError | TypeError) -> str:
    """Why a file cannot be read, for a message that names the file already."""
    return (isinstance(error, OSError) and error.strerror) or first_line(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a process or a GPU had too little memory. torch tells of the CPU's by a
    ``RuntimeError`` (c10/core/impl/alloc_cpu.cpp)."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def other_version(schema: object, own: str, anew: str) -> str:
    """Why a file that says ``schema`` is not read as ``own`` (``gacprof.plan/1``), and what to do;
    ``anew`` is said of a file of an earlier version."""
    if not isinstance(schema, str):
        return f"its 'schema' is missing or no text (it should be \"{own}\")"
    (family, today), (other, _, version) = own.split("/"), schema.rpartition("/")
    if other != family or not version.isdecimal() or len(version) > MOST_DIGITS:
        return f"its schema is {schema[:40]!r}, not {own}"
    if int(version) > int(today):
        return f"it is {schema}, newer than the {own} of this gacprof; upgrade gacprof"
    return f"it is {schema}, of an earlier gacprof{anew}"
