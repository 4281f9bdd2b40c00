"""Writing files so that a reader sees either the old content or the new, never half of it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gacprof.core.errors import ReportError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes ``path``'s place, durably.

    On any exception, ``KeyboardInterrupt`` included, the temporary file is removed and
    ``path`` is as it was. An ``OSError`` names ``path``, not the temporary file, nor nothing as
    where a disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        yield temporary
        make_readable(temporary)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def _beside(path: Path) -> Path:
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    os.close(handle)
    return Path(name)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises ``OSError``, or ``ValueError`` for what is no JSON: nested too
    deep and text that is no Unicode included."""
    text = path.read_text(encoding="utf-8")
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if "\\ud" in text.lower():  # half of a surrogate pair can be read, and never written
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    return data


def refuse_to_replace(path: Path, what: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raise :class:`ReportError` where a file is there that is none of ours.

    ``is_ours`` sees its first 4096 bytes; an empty file is nobody's.
    """
    if not path.exists():
        return
    if path.is_dir():
        raise ReportError(f"{path} is a folder: name a file for the {what}")
    with path.open("rb") as file:
        start = file.read(4096)
    if start and not is_ours(start):
        raise ReportError(f"{path} exists and is no {what}: name another file or remove it first")


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_readable(path: Path) -> None:
    """The permissions of a file that a user makes; a temporary one has 0600."""
    path.chmod(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
