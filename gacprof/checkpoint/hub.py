"""A repository on the Hugging Face hub as a folder: headers by range requests, no download.

Uses ``huggingface_hub`` (the ``hub`` extra) for addresses, credentials and
sessions. A server that answers a range request with the whole file is refused before its body
is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gacprof.core.errors import CheckpointError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,100})?")
_HEAD = 256 << 10
"""Bytes fetched from the start of each file: most safetensors headers fit in."""

_PARALLEL = 8


def is_hub_id(text: str) -> bool:
    """Whether ``text`` has the form ``org/name`` or ``org/name@revision``."""
    return _REPOSITORY.fullmatch(text) is not None


class HubFolder:
    """The top level of a model repository at one commit."""

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
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
