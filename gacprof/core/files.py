"""Writing files so that a reader sees either the old content or the new, never half of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from gacprof.core.errors import GacprofError, ReportError, short


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes ``path``'s place, durably.

    On any exception, ``KeyboardInterrupt`` included, the temporary file is removed and ``path``
    is as it was; what a killed process left is removed by the next that writes ``path``. An
    ``OSError`` names ``path``, not the temporary file, nor nothing as where a disk is full. What is
    there and no regular file (a device, a FIFO, a folder) is never replaced.
    """
    if path.exists() and not path.is_file():
        raise _not_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    handle, temporary = _temporary_for(path)
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
    finally:
        os.close(handle)


def _temporary_for(path: Path) -> tuple[int, Path]:
    """A new file for ``path``'s content, locked while the descriptor is open."""
    while True:
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            error.filename = str(path)
            raise
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = not os.fstat(handle).st_nlink
        except BlockingIOError:
            taken = True
        except OSError:  # a file system without locks: nothing is removed there either
            taken = False
        if not taken:  # for abandoned, before it was locked
            return handle, Path(name)
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files for ``path`` that no process holds."""
    ours = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}")
    for found in path.parent.iterdir():
        if ours.fullmatch(found.name):
            with contextlib.suppress(OSError), held(found):
                found.unlink()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    write_text(path, json_text(data) + "\n")


def json_text(data: Any, ascii_only: bool = False) -> str:
    """``data`` as JSON. Halves of characters, which a path that is no UTF-8 has, are written as
    ``\\udcff`` in letters: no reader takes them otherwise."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json_text(_without_halves(data), ascii_only)
    return json.dumps(data, indent=1, allow_nan=False) if ascii_only else text


def _without_halves(data: Any) -> Any:
    """``data`` with halves of characters spelt out."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, Mapping):
        return {_without_halves(key): _without_halves(value) for key, value in data.items()}
    return list(map(_without_halves, data)) if isinstance(data, list | tuple) else data


class Record:
    """A result that is written as JSON: its fields, then the properties that ``derived`` names."""

    derived: ClassVar[tuple[str, ...]] = ()

    def as_dict(self) -> dict[str, Any]:
        names = (*(field.name for field in fields(self)), *self.derived)  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in names}


def plain(value: Any) -> Any:
    """A value as JSON has it: records and dataclasses as objects, paths as texts."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def path_of(given: Any, error: type[GacprofError], what: str) -> Path:
    """A path as it was given; ``error`` for what is none."""
    try:
        return Path(given)
    except TypeError:
        raise error(f"{short(repr(given))} is no path: give {what}") from None


MOST_BYTES = 1 << 30
"""The largest file that is read whole: a journal or a map of a long sweep has some 100 MB."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, links followed. All foreign files are opened here.

    Raises ``OSError`` for everything else: reading a FIFO waits for its writer, and a device's
    content does not end.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_regular(path)
    return os.fdopen(handle, "rb")


def _not_regular(path: Path) -> OSError:
    if path.is_dir():
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return OSError(errno.EINVAL, "it is no regular file", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """What a regular file holds. Raises ``OSError``, also where it is larger than ``most``."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"its {size:,} bytes are more than {most:,}", str(path))
        return file.read(most)


def read_text(path: Path) -> str:
    """What a regular file in UTF-8 holds. Raises ``OSError`` or ``UnicodeDecodeError``."""
    return io.TextIOWrapper(io.BytesIO(read_bytes(path)), encoding="utf-8").read()


def beginning(path: Path) -> bytes:
    """The first 4096 bytes of a file: what kind of file it is shows there."""
    with open_regular(path) as file:
        return file.read(4096)


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises ``OSError``, or ``ValueError`` for what is no JSON: nested too
    deep and text that is no Unicode included."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if "\\ud" in text.lower():
        refuse_half_pairs(data)
    return data


def refuse_half_pairs(data: Any) -> None:
    """Half of a surrogate pair can be read from JSON, and never written. Raises ``ValueError``."""
    json.dumps(data, ensure_ascii=False).encode("utf-8")


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a folder or a file against other processes. Raises ``BlockingIOError`` where one holds
    it."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def remove_unheld(folders: Iterable[Path]) -> None:
    """Remove the folders that no process holds."""
    for folder in folders:
        with contextlib.suppress(BlockingIOError), held(folder):
            shutil.rmtree(folder, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a file's content, durably."""
    shutil.copyfile(source, target)
    sync(target)


def refuse_to_replace(path: Path, what: str, is_ours: Callable[[Path], bool]) -> None:
    """Raise :class:`ReportError` where a file is there that is none of ours; an empty one is
    nobody's. What is no regular file is never replaced."""
    if path.is_symlink() and not path.exists():
        raise ReportError(f"{path} is a link that leads nowhere: name another file or remove it")
    if not path.exists():
        return
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise ReportError(f"{path} is {kind}: name a file for the {what}")
    if path.stat().st_size and not is_ours(path):
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
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
