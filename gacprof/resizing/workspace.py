"""The folder in which a checkpoint is built before it gets its name.

It lies beside the output, so that renaming is atomic, and its name follows from what is being
done: a run that was killed finds its own finished files again. One run at a time may use it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gacprof.core.errors import CheckpointError
from gacprof.core.files import sync

CUTS = ".cuts"
"""Subfolder for what is needed only while building."""


@contextlib.contextmanager
def workspace(out: Path, key: str) -> Iterator[Path]:
    """Yield the folder to build in; on success it becomes ``out``, on any error it is removed.

    ``key`` identifies the work: same key, same result. Only a killed process leaves the folder
    behind, for the next run with the same key; leftovers of other keys are removed. Raises
    :class:`CheckpointError` if ``out`` exists, another run is building it, or the disk fails.
    """
    refuse_existing(out)
    folder = out.with_name(f".{out.name}.realign-{key[:16]}")
    try:
        (folder / CUTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be made: {error.strerror or error}") from None
    with _locked(folder, out):
        _remove_leftovers(out, folder)
        try:
            yield folder
            shutil.rmtree(folder / CUTS)
            sync(folder)
            refuse_existing(out)
            folder.rename(out)
            sync(out.parent)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise CheckpointError(
                f"{out}: cannot be written: {error.strerror or error}; nothing was left behind"
            ) from None
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def refuse_existing(out: Path) -> None:
    if os.path.lexists(out):
        raise CheckpointError(f"{out} exists already; name another folder or remove it first")


def require_space(folder: Path, needed: int) -> None:
    """Raise :class:`CheckpointError` unless ``needed`` more bytes fit beside ``folder``."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder.parent}: {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB free; "
            "nothing was written"
        )


@contextlib.contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(f"{out} is being written by another process") from None
        yield
    finally:
        os.close(handle)


def _remove_leftovers(out: Path, own: Path) -> None:
    """Folders that killed runs with other plans left for the same output."""
    for other in out.parent.iterdir():
        if other == own or not other.name.startswith(f".{out.name}.realign-") or other.is_file():
            continue
        with contextlib.suppress(CheckpointError), _locked(other, out):
            shutil.rmtree(other, ignore_errors=True)
