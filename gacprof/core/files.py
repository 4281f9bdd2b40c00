"""Reading and writing files: a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol, TypeVar

from gacprof.core.errors import ConfigError, GacprofError


class Record(Protocol):
    """A dataclass that files hold under its schema's name and version: ``gacprof.plan/2``."""

    schema: ClassVar[str]


R = TypeVar("R", bound=Record)
T = TypeVar("T")

MAX_JSON_BYTES = 1 << 28  # the largest published index (90,000 tensors) has 8 MB, a map 3 MB


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that takes ``path``'s place on success, and is removed otherwise."""
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is a folder or a device: name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename across file systems is a copy
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        yield temporary
        with temporary.open("rb") as written:
            # Before the rename: else a crash could leave the name with an empty file
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``path`` on success, and is removed otherwise."""
    if path.exists():
        raise FileExistsError(f"{path} exists: name a folder that does not")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*.*"):
            file.chmod(0o666 & temporary.stat().st_mode)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8. Surrogates, of a path in another encoding, become JSON's escapes."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses as objects, tuples as lists, paths as texts."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="constants")


def write_json(path: Path, value: Any) -> None:
    """Write a value as :func:`plain` JSON."""
    write_text(path, json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n")


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises ``OSError``, also for a pipe, which could block for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ``OSError`` or ``ValueError``."""
    with open_regular(path) as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises ``OSError`` or ``ValueError``."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, no object")
    return value


def write_record(path: Path, record: Record) -> None:
    """Write a record with its schema's name and version."""
    write_json(path, {"schema": record.schema, **plain(record)})


def read_record(path: Path, kind: type[R], remake: str) -> R:
    """Read what :func:`write_record` wrote; ``remake`` is the command that makes such a file.

    Raises :class:`GacprofError` for another schema, and a field that is missing or mistyped.
    """
    from pydantic import TypeAdapter, ValidationError

    schema = kind.schema
    try:
        data = read_object(path)
    except ValueError as error:
        raise GacprofError(f"{path} is no {schema} file: {error}") from None
    written_as = data.pop("schema", None)
    if written_as != schema:
        raise GacprofError(
            f"{path} is {written_as or 'another file'}, not {schema}: name such a file, or make "
            f"one by '{remake}'"
        )
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise GacprofError(f"{path} is damaged at {place}: {problem['msg']}") from None


def shipped_table(path: Path, model: type[T]) -> T:
    """Read a TOML file that comes with gacprof and holds what ``model`` says.

    It is not checked here: pydantic would double the start of ``gacprof lint``. The tests read
    every shipped file by :func:`read_table`.
    """
    table: T = tomllib.loads(path.read_text(encoding="utf-8"))  # type: ignore[assignment]
    return table


def row_of_word(table: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the row of each word of a table, whose rows are lists of words."""
    rows: dict[str, str] = {}
    for row, words in table.items():
        rows |= dict.fromkeys(words, row)
    return rows


def read_table(path: Path, model: type[T]) -> T:
    """Read a TOML file of any origin, every word and value checked against ``model``.

    Raises :class:`ConfigError`, which names the file, the place and the word or value at fault.
    """
    from pydantic import ConfigDict, ValidationError, create_model

    # A TypedDict takes the configuration of the model around it.
    strict = create_model("Strict", __config__=ConfigDict(extra="forbid"), file=(model, ...))
    try:
        table: T = strict(file=tomllib.loads(path.read_text(encoding="utf-8"))).file  # type: ignore[attr-defined]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValidationError as error:
        problem = error.errors()[-1]  # of several readings of a value the last is the widest
        place = ".".join(map(str, problem["loc"][1:]))
        raise ConfigError(f"{path}: {place}: {problem['msg']}") from None
    return table
