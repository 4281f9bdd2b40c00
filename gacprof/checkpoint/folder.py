"""Where a checkpoint's files are: a small window through which all headers are read.

Containers read through a :class:`Folder` only, so a folder on disk and a repository on a hub
(``hub.py``) are read by the same code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from gacprof.checkpoint.strictjson import parse_json
from gacprof.core.errors import CheckpointError

MAX_JSON_BYTES = 256 << 20
"""Index files of the largest public models are about 10 MB."""


class Folder(Protocol):
    """Named files that can be read in pieces."""

    location: str

    def names(self) -> tuple[str, ...]:
        """The names of the files at the top level, sorted."""
        ...

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        ...

    def prepare(self, names: Iterable[str]) -> None:
        """A hint that the headers of these files will be read next."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``; raises :class:`CheckpointError`."""
        ...


class LocalFolder:
    """A folder on disk. Files are opened for reading only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)

    def names(self) -> tuple[str, ...]:
        try:
            return tuple(sorted(e.name for e in os.scandir(self.path) if e.is_file()))
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be listed: {error.strerror}") from None

    def size(self, name: str) -> int:
        try:
            return (self.path / name).stat().st_size
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None

    def prepare(self, names: Iterable[str]) -> None:
        """Nothing to do: local files are read at once."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        try:
            with (self.path / name).open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except (OSError, ValueError, OverflowError) as error:
            raise self._unreadable(name, error) from None
        if len(data) != length:
            raise CheckpointError(
                f"{self.path / name}: ends after {offset + len(data)} bytes where "
                f"{offset + length} were expected; the file is truncated, fetch it again"
            )
        return data

    def _unreadable(self, name: str, error: Exception) -> CheckpointError:
        reason = getattr(error, "strerror", None) or error
        return CheckpointError(f"{self.path / name}: cannot be read: {reason}")


def read_json(folder: Folder, name: str, *, constants: bool = False) -> dict[str, Any]:
    """The JSON object in a file of ``folder``; see :func:`parse_json` for what is refused.

    ``constants`` allows Infinity and NaN, which some public configs contain (Mamba-2's
    ``time_step_limit``).
    """
    where = f"{folder.location}/{name}"
    size = folder.size(name)
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{where}: {size} bytes is too large for a JSON file")
    return parse_json(folder.read(name, 0, size), where, constants=constants)


def is_inside(root: Path, name: str) -> bool:
    """Whether the file ``name`` of ``root``, links resolved, still lies in ``root``.

    The Hugging Face cache keeps a snapshot's files as links to ``../../blobs`` of the same
    model; those count as inside.
    """
    try:
        home = root.resolve()
        target = (home / name).resolve()
    except (OSError, ValueError, RuntimeError):
        return False
    if target.is_relative_to(home):
        return True
    repository = home.parent.parent
    cached = home.parent.name == "snapshots" and repository.name.startswith("models--")
    return cached and target.is_relative_to(repository / "blobs")
