"""The folder that an output is built in: under a hidden name, whole or not at all.

A killed process leaves it behind, and the next run with the same work goes on there. What it takes
for finished is what a run recorded as such, by inode, size and times, in a folder of the same user.
That tells torn and copied files apart; a process of the same user could write such a record too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gacprof.checkpoint import Inventory
from gacprof.core.errors import CheckpointError, GacprofError
from gacprof.core.files import held, read_json, remove_unheld, sync, write_json

CUTS = ".cuts"
"""Subfolder for what is needed only while building."""

_RECORD = "finished.json"


@contextlib.contextmanager
def workspace(out: Path, key: str) -> Iterator[Path]:
    """Yield the folder to build in; on success it becomes ``out``, on any error it is removed.

    It lies beside ``out``, so that renaming is atomic, and ``key`` identifies the work: same key,
    same result. Only a killed process leaves the folder behind, for the next run with the same
    key, which finds what was :func:`finish`-ed and nothing else; leftovers of other keys are
    removed. Raises :class:`CheckpointError` if ``out`` exists, another run is building it, the
    folder is somebody else's, or the disk fails.
    """
    refuse_existing(out)
    folder = out.with_name(f".{out.name}.realign-{key[:16]}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be made: {error.strerror or error}") from None
    made = folder.lstat()
    if not stat.S_ISDIR(made.st_mode) or made.st_uid != os.geteuid():
        raise CheckpointError(f"{folder} is a link or somebody else's folder: remove it")
    with holding(folder, CheckpointError(f"{out} is being written by another process")):
        # what killed runs with other plans left for the same output
        others = (p for p in out.parent.iterdir() if p.name.startswith(f".{out.name}.realign-"))
        remove_unheld(p for p in others if p != folder and p.is_dir() and not p.is_symlink())
        try:
            _keep_finished(folder)
            yield folder
            shutil.rmtree(folder / CUTS)
            sync(folder)
            refuse_existing(out)
            folder.rename(out)
            sync(out.parent)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise CheckpointError(
                    f"{out}: cannot be written: {error.strerror or error}; nothing was left behind"
                ) from None
            raise


def digest(data: Any) -> str:
    """Of JSON values: the key of work that follows from them."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def source_identity(inventory: Inventory, files: Iterable[str]) -> list[Any]:
    """What tells a checkpoint's ``files`` from others, and from themselves after a change."""
    if inventory.container == "memory":
        raise CheckpointError(f"{inventory.path}: save it and name the folder, it has no files")
    stats = [(name, (Path(inventory.folder) / name).stat()) for name in sorted(files)]
    return [
        str(Path(inventory.folder).resolve()),
        inventory.fingerprint,
        [[name, s.st_size, s.st_mtime_ns] for name, s in stats],
    ]


def finish(folder: Path, file: Path) -> None:
    """Record that ``file``, which is on the disk, is as it has to be."""
    write_json(folder / CUTS / _RECORD, _record(folder) | {_name(folder, file): _identity(file)})


def is_finished(folder: Path, file: Path) -> bool:
    """Whether a run recorded the file as finished and it is still that one."""
    return file.is_file() and _record(folder).get(_name(folder, file)) == _identity(file)


def _keep_finished(folder: Path) -> None:
    """Remove all that was not finished here: torn files, links, what somebody planted."""
    if (folder / CUTS).is_symlink():
        (folder / CUTS).unlink()
    for path in (p for p in sorted(folder.rglob("*"), reverse=True)):
        is_folder = path.is_dir() and not path.is_symlink()
        if path == folder / CUTS / _RECORD:
            continue
        if is_folder and path != folder / CUTS:
            with contextlib.suppress(OSError):  # it holds finished files
                path.rmdir()
        elif not is_folder and (path.is_symlink() or not is_finished(folder, path)):
            path.unlink()
    (folder / CUTS).mkdir(exist_ok=True)


def _record(folder: Path) -> dict[str, list[int]]:
    try:
        found = read_json(folder / CUTS / _RECORD)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _name(folder: Path, file: Path) -> str:
    return str(file.relative_to(folder))


def _identity(file: Path) -> list[int]:
    found = file.lstat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def refuse_existing(out: Path) -> None:
    if os.path.lexists(out):
        raise CheckpointError(f"{out} exists already; name another folder or remove it first")


def refuse_target(out: Path, inventory: Inventory) -> None:
    """Raise :class:`CheckpointError` for an output that exists, or would lie in its source."""
    refuse_existing(out)
    if lies_in(out, inventory):
        raise CheckpointError(f"{out} lies in the checkpoint {inventory.path}: name another")


def lies_in(out: Path, inventory: Inventory) -> bool:
    """Whether an output would be put into the folder of a checkpoint, which stays as it is."""
    source = Path(os.path.realpath(inventory.path))
    return source.is_dir() and Path(os.path.realpath(out)).is_relative_to(source)


def require_space(folder: Path, needed: int) -> None:
    """Raise :class:`CheckpointError` unless ``needed`` more bytes fit beside ``folder``."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder.parent}: {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB free; "
            "nothing was written"
        )


@contextlib.contextmanager
def holding(folder: Path, refusal: GacprofError) -> Iterator[None]:
    """Hold a folder against other processes. Raises ``refusal`` where one holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(folder))
        except BlockingIOError:
            raise refusal from None
        yield
