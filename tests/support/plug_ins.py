"""Another package, as pip leaves it: modules, and the entry points that name what it brings."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


def write_package(folder: Path, modules: Mapping[str, str], entry_points: str) -> Path:
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
    about = folder / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)
    return folder


@contextmanager
def found_in(folder: Path) -> Iterator[None]:
    """Its plug-ins are found in this process, and by no later test."""
    from gacprof.checkpoint.layouts.tools import compressors
    from gacprof.core import plugins
    from gacprof.kernels.tiers import architectures
    from gacprof.operators import OPERATORS

    def forget() -> None:
        for known in (plugins._entries, compressors, architectures):
            known.cache_clear()

    modules, operators = set(sys.modules), dict(OPERATORS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        forget()
        yield
    for name in {path.stem for path in folder.glob("*.py")} & (set(sys.modules) - modules):
        del sys.modules[name]
    OPERATORS.clear()
    OPERATORS.update(operators)
    forget()
