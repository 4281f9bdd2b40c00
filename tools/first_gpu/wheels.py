"""Fetch what a machine with PyTorch and without network lacks, as wheels for its Python."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PYTHON = "3.12"
CARRIED = ("cyclopts", "pydantic", "pydantic-core", "annotated-types", "typing-extensions")
CARRIED += ("typing-inspection", "itanium-demangler", "attrs", "docstring-parser", "rich-rst")
CARRIED += ("docutils", "ijson", "lazy-loader")
"""Packages that an image with PyTorch lacks, or may hold in too old a version."""
PLATFORMS = (*(f"manylinux_2_{n}" for n in range(39, 4, -1)), "manylinux2014", "manylinux1")
"""pip takes each name literally; the newest are those of Ubuntu 24.04."""


def fetch_wheels(folder: Path) -> None:
    """Fetch :data:`CARRIED` in the versions installed here, all in one call."""
    requirements = []
    for name in CARRIED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            requirements.append(f"{name}=={metadata.version(name)}")
    platforms = [word for tag in PLATFORMS for word in ("--platform", f"{tag}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    subprocess.run([*command, *platforms, "--dest", str(folder), *requirements], check=True)
    print(*sorted(path.name for path in folder.glob("*.whl")), sep="\n")
