"""The engines that models are benched in: what each takes, where it runs, which versions are known.

A new engine is one file beside this one (see :mod:`.worker`) and one entry here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.exporting.engines import TESTED

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Engine:
    """``file`` is run by the worker. ``tested`` are versions that gacprof's own tests ran with.

    ``own_python``: whether it lives in an environment of its own, so that its interpreter has to
    be named. ``format`` is what a model is for it: a checkpoint's ``folder``, or a ``gguf`` file.
    ``needs`` says how it is had. ``environment`` is set for its process.
    """

    name: str
    file: str
    tested: tuple[str, ...]
    format: str
    needs: str
    own_python: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return HERE / self.file

    def python(self, given: str | Path | None) -> Path:
        """The interpreter it runs in. Raises :class:`MeasurementError` for one that is missing."""
        if given is None:
            if self.own_python:
                raise MeasurementError(f"{self.name} runs in a Python of its own: {self.needs}")
            return Path(sys.executable)
        if not Path(given).is_file():
            raise MeasurementError(f"there is no interpreter {given} for {self.name}: {self.needs}")
        return Path(given)

    def model(self, path: str | Path) -> Path:
        """The file or folder that the engine loads. Raises :class:`CheckpointError`."""
        found = Path(path)
        if self.format == "gguf":
            files = sorted(found.glob("*.gguf")) if found.is_dir() else [found]
            if len(files) != 1 or files[0].suffix != ".gguf" or not files[0].is_file():
                raise CheckpointError(
                    f"{path} is no GGUF file, which is what {self.name} loads: write one with "
                    "'gacprof export MODEL --to gguf --out DIR'"
                )
            return files[0].absolute()
        if not (found / "config.json").is_file():
            raise CheckpointError(
                f"{path} is no checkpoint's folder with a config.json, which is what {self.name} "
                "loads: write one with 'gacprof export MODEL --out DIR'"
            )
        return found.absolute()

    def version_note(self, version: str) -> str:
        """Says so where the version is not among the tested ones; empty where it is."""
        if version in self.tested:
            return ""
        return f"{self.name} {version} was not tested with gacprof, {', '.join(self.tested)} was"


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "transformers",
            "in_transformers.py",
            (TESTED["transformers"],),
            "folder",
            "pip install 'gacprof[models]'",
            environment={"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"},
        ),
        Engine(
            "vllm",
            "in_vllm.py",
            ("0.32.0",),
            "folder",
            "make one with 'python tools/vllm_cpu_env.py', and name the Python that it prints with "
            "--engine-python",
            own_python=True,
        ),
        Engine(
            "llama.cpp",
            "in_llamacpp.py",
            (TESTED["xllamacpp"],),
            "gguf",
            "pip install 'gacprof[engines]' brings it (xllamacpp)",
        ),
    )
}


def engine_of(name: str) -> Engine:
    """The engine of that name. Raises :class:`MeasurementError` listing those there are."""
    if name not in ENGINES:
        raise MeasurementError(f"no engine is called '{name}': there are {', '.join(ENGINES)}")
    return ENGINES[name]
