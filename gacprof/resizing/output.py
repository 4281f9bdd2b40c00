"""Bytes into a file, through the kernel where they need no change."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

COPY_BYTES = 16 << 20
"""Copied at a time: progress stays visible, the calls cost nothing."""


class OutputFile:
    """A new file, written front to back. Leaves nothing buffered in this process."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o666)
        self.position = 0
        self._in_kernel = hasattr(os, "copy_file_range")

    def write(self, data: bytes | NDArray[Any]) -> None:
        """Bytes, or the elements of a C-contiguous array."""
        view = memoryview(data) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8).data
        while view:
            written = os.write(self._handle, view)
            self.position += written
            view = view[written:]

    def copy(self, source: int, offset: int, count: int, progress: Callable[[int], None]) -> None:
        """``count`` bytes of the open file ``source`` from ``offset`` on."""
        end = offset + count
        while offset < end:
            copied = self._copy_some(source, offset, min(end - offset, COPY_BYTES))
            progress(copied)
            offset += copied

    def _copy_some(self, source: int, offset: int, count: int) -> int:
        if self._in_kernel:
            try:
                copied = os.copy_file_range(source, self._handle, count, offset)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                copied = 0
            if copied:
                self.position += copied
                return copied
            self._in_kernel = False  # some file systems say so by copying nothing
        block = os.pread(source, count, offset)
        if not block:
            raise OSError(errno.EIO, "the source ended early: was it changed meanwhile?")
        self.write(block)
        return len(block)

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_NOT_HERE = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
"""copy_file_range is absent, or not between these two files."""
