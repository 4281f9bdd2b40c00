"""Where a checkpoint's files are: a small window through which all headers are read.

Containers read through a :class:`Folder` only, so a folder on disk and a repository on the
Hugging Face hub (headers by range requests, no download) are read by the same code.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gacprof.core.errors import CheckpointError
from gacprof.core.files import open_regular

MAX_JSON_BYTES = 256 << 20
"""Index files of the largest public models are about 10 MB."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,100})?")
_HEAD = 256 << 10
"""Bytes fetched from the start of each file on a hub: most safetensors headers fit in."""

_PARALLEL = 8
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class LocalFolder:
    """A folder on disk. Files are opened for reading only.

    A link to a file outside is not followed, but for the file ``named`` by the user: a
    foreign folder may not decide which of the reader's files are read and copied.
    """

    def __init__(self, path: Path, named: str | None = None) -> None:
        self.path = path
        self.location = str(path)
        self._inside: set[str | None] = {named}

    def names(self) -> tuple[str, ...]:
        """The names of the files at the top level, sorted."""
        try:
            found = sorted(path.name for path in self.path.iterdir() if path.is_file())
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be listed: {error.strerror}") from None
        return tuple(name for name in found if name.isprintable())

    def has_other(self, name: str) -> bool:
        """Whether something of this name stands here that is no file (a FIFO, a lost link)."""
        path = self.path / name
        return os.path.lexists(path) and not path.is_file()

    def holds(self, name: str) -> bool:
        """Whether the file lies in this folder, links followed."""
        if name not in self._inside and is_inside(self.path, name):
            self._inside.add(name)
        return name in self._inside

    def size(self, name: str) -> int:
        if not self.holds(name):
            raise CheckpointError(
                f"{self.location}: {name[:120]!r} leads outside this folder (a link): put the file "
                "itself there"
            )
        try:
            return (self.path / name).stat().st_size
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None

    def prepare(self, names: Iterable[str]) -> None:
        """The headers of these files will be read next: nothing to do."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``; raises :class:`CheckpointError`."""
        self.size(name)  # refuses what lies outside
        try:
            with open_regular(self.path / name) as file:
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


def refuse_endless(folder: Path) -> None:
    """Raise :class:`CheckpointError` for a FIFO or a device in a folder that a library is to read:
    it would wait for the one and never end with the other."""
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CheckpointError(f"{path}: is no regular file: remove it")


def is_hub_id(text: str) -> bool:
    """Whether ``text`` has the form ``org/name`` or ``org/name@revision``."""
    return _REPOSITORY.fullmatch(text) is not None


class HubFolder:
    """The top level of a model repository on the hub at one commit.

    Addresses, credentials and sessions are those of ``huggingface_hub`` (the ``hub`` extra). A
    server that answers a range request with the whole file is refused before its body is read.
    """

    def __init__(self, repository: str, endpoint: str | None = None) -> None:
        """List the repository. Raises :class:`CheckpointError` if that cannot be done."""
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise CheckpointError(
                f"{repository}: reading from the hub needs huggingface_hub; "
                "pip install 'gacprof[hub]', or download the model and give its folder"
            ) from None
        self.location = repository
        self._id, _, revision = repository.partition("@")
        self._endpoint = endpoint
        try:
            info = HfApi(endpoint=endpoint).model_info(
                self._id, revision=revision or None, files_metadata=True
            )
        except Exception as error:  # whatever the library and its HTTP stack raise
            raise CheckpointError(
                f"{repository}: there is no such folder, and the hub says: {_one_line(error)}"
            ) from None
        self._commit = info.sha or revision or "main"
        self._sizes = {f.rfilename: f.size or 0 for f in info.siblings or ()}
        self._heads: dict[str, bytes] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in self._sizes if "/" not in name))

    def size(self, name: str) -> int:
        if name not in self._sizes:
            raise CheckpointError(f"{self.location}: has no file {name!r}")
        return self._sizes[name]

    def prepare(self, names: Iterable[str]) -> None:
        """Fetch the first bytes of several files at a time."""
        wanted = [name for name in names if name in self._sizes]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(self._head, wanted))

    def read(self, name: str, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        if offset + length <= min(_HEAD, self.size(name)):
            return self._head(name)[offset : offset + length]
        return self._fetch(name, offset, length)

    def _head(self, name: str) -> bytes:
        if name not in self._heads:
            length = min(_HEAD, self.size(name))
            self._heads[name] = self._fetch(name, 0, length) if length else b""
        return self._heads[name]

    def _fetch(self, name: str, offset: int, length: int) -> bytes:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        where = f"{self.location}/{name}"
        url = hf_hub_url(self._id, name, revision=self._commit, endpoint=self._endpoint)
        headers = {**build_hf_headers(), "Range": f"bytes={offset}-{offset + length - 1}"}
        try:
            status, data = _get(url, headers, length)
        except Exception as error:
            raise CheckpointError(f"{where}: cannot be fetched: {_one_line(error)}") from None
        if status != 206:
            raise CheckpointError(f"{where}: the server answers a range request with {status}")
        if len(data) != length:
            raise CheckpointError(f"{where}: {len(data)} bytes came where {length} were asked for")
        return data


Folder = LocalFolder | HubFolder


def _get(url: str, headers: dict[str, str], length: int) -> tuple[int, bytes]:
    """Status and, if it is 206, the body. Bodies of other answers are not read."""
    from huggingface_hub.utils import get_session

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):  # httpx, huggingface_hub 1.0 and later
        with session.stream("GET", url, headers=headers, timeout=30) as response:
            return _body(response.status_code, response.iter_bytes(1 << 16), length)
    with session.get(url, headers=headers, stream=True, timeout=30) as response:
        return _body(response.status_code, response.iter_content(1 << 16), length)


def _body(status: int, chunks: Iterable[bytes], length: int) -> tuple[int, bytes]:
    data = bytearray()
    if status == 206:
        for chunk in chunks:
            data += chunk
            if len(data) > length:
                break
    return status, bytes(data)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def json_object(folder: Folder, name: str, *, constants: bool = False) -> dict[str, Any]:
    """The JSON object in a file of ``folder``; see :func:`parse_json` for what is refused."""
    where = f"{folder.location}/{name}"
    size = folder.size(name)
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{where}: {size} bytes is too large for a JSON file")
    return parse_json(folder.read(name, 0, size), where, constants=constants)


def parse_json(data: bytes, where: str, *, constants: bool = False) -> dict[str, Any]:
    """Parse one JSON object. ``where`` names the source in the error message.

    Raises :class:`CheckpointError` for anything else: broken JSON, another top-level type,
    a key given twice, nesting too deep to parse, halves of characters (lone surrogates), and NaN
    or Infinity unless ``constants`` (some public configs contain them: Mamba-2's
    ``time_step_limit``).
    """
    number = float if constants else _finite
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=number,
            parse_float=number,
        )
        if _HALF.search(data):  # only an escape can say one: UTF-8 has none
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise CheckpointError(f"{where}: JSON nested too deep") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError and _unique's own
        raise CheckpointError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: not a JSON object but {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key[:80]!r} is given twice")
        result[key] = value
    return result


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:80]} is not a JSON number")
    return float(text)


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
