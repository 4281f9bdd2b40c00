"""One archive of a folder: replaced at once, and read as far as it goes."""

from __future__ import annotations

import contextlib
import io
import tarfile
import threading
import time
import zlib
from pathlib import Path

LEFT_OUT = (".safetensors", ".lock", ".bin", ".pyc", ".new")
"""Suffixes of files that would fill an archive and can be made again."""
PACKING = threading.Lock()


def pack(folder: Path, archive: Path) -> None:
    """Pack all of a folder; until that is done the archive is what it was."""
    fresh = archive.with_suffix(".new")
    with PACKING:
        with tarfile.open(fresh, "w:gz", compresslevel=6) as packed:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink() and path.suffix not in LEFT_OUT:
                    with contextlib.suppress(FileNotFoundError):  # it has just gone
                        content = path.read_bytes()  # at once: it may grow or shrink meanwhile
                        entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                        entry.size, entry.mtime = len(content), int(time.time())
                        packed.addfile(entry, io.BytesIO(content))
        fresh.replace(archive)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; of one that was cut off, what is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                packed.extract(member, folder, filter="data")
    except (EOFError, OSError, tarfile.TarError, zlib.error) as error:
        print(f"{archive} is not whole: {error}", flush=True)
