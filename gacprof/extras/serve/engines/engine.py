"""The engines that models are benched in: what each takes, where it runs, which versions are known.

A new engine is one file beside this one and one entry here. An engine lives in a process of its
own, asked over a pipe: see :mod:`.worker` for what is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.core.programs import kill_all
from gacprof.devices.threads import SPIN_COUNT

HERE = Path(__file__).parent


@dataclass(frozen=True)
class BenchEngine:
    """``file`` is run by the worker. ``tested`` are versions that benches and exports were tested
    with.

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
        """Says so where the version is none of the tested ones, but for its last number."""
        if any(version.split(".")[:2] == known.split(".")[:2] for known in self.tested):
            return ""
        return f"{self.name} {version} was not tested with gacprof, {', '.join(self.tested)} was"


ENGINES: Mapping[str, BenchEngine] = {
    engine.name: engine
    for engine in (
        BenchEngine(
            "transformers",
            "in_transformers.py",
            ("5.23.0",),
            "folder",
            "pip install 'gacprof[models]'",
            environment={"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"},
        ),
        BenchEngine(
            "vllm",
            "in_vllm.py",
            ("0.32.0",),
            "folder",
            "make one with 'python tools/vllm_cpu_env.py', and name the Python that it prints with "
            "--engine-python",
            own_python=True,
        ),
        BenchEngine(
            "llama.cpp",
            "in_llamacpp.py",
            ("2026.10.11549",),
            "gguf",
            "pip install 'gacprof[engines]' brings it (xllamacpp)",
        ),
    )
}


def engine_of(name: str) -> BenchEngine:
    """The engine of that name. Raises :class:`MeasurementError` listing those there are."""
    if name not in ENGINES:
        raise MeasurementError(f"no engine is called '{name}': there are {', '.join(ENGINES)}")
    return ENGINES[name]


OPEN_TIMEOUT_S = 600.0
"""vLLM imports for half a minute on two cores, and much longer from a cold disk."""
CALL_TIMEOUT_S = 300.0
LEAVING_S = 5.0
SPARE_POSITIONS = 8
"""Beyond what a prompt and its continuation take."""
WAITS = {"GOMP_SPINCOUNT": SPIN_COUNT, "KMP_BLOCKTIME": "1"}
"""GNU's and Intel's OpenMP: threads of one engine must not spin while another is timed."""


class EngineProcess(contextlib.AbstractContextManager["EngineProcess"]):
    """One model in one engine, until the end of its context or :meth:`close`. ``facts`` are what
    the engine says of itself and of the model.

    Raises :class:`MeasurementError` where the engine is missing, dies, hangs or refuses the model.
    """

    def __init__(
        self, engine: BenchEngine, python: Path, threads: int, more: Mapping[str, str] | None = None
    ) -> None:
        self._engine, self._python, self._threads = engine, python, threads
        self.facts: dict[str, Any] = {}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._rest = b""
        self._process = subprocess.Popen(
            [python, HERE / "worker.py", engine.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**_environment(engine, threads), **(more or {})},
            start_new_session=True,  # Ctrl-C is ours: the worker's children do not get it
        )

    def open(self, model: Path, positions: int, dtype: str | None, trust: bool) -> None:
        """Load a model."""
        self.facts = self.ask(
            "open", OPEN_TIMEOUT_S, model=str(model), threads=self._threads, positions=positions,
            dtype=dtype, trust=trust,
        )  # fmt: skip

    def ask(self, do: str, timeout_s: float = CALL_TIMEOUT_S, **more: Any) -> Any:
        request = json.dumps({"do": do, **more}).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._lost("ended") from None
        answer = json.loads(self._line(timeout_s))
        if "error" not in answer:
            return answer["ok"]
        if answer["missing"] and do == "open":
            name = self._engine.name
            raise MeasurementError(
                f"{name} is not in {self._python} ({answer['error']}): {self._engine.needs}"
            )
        raise MeasurementError(f"{self._engine.name}: {answer['error']}{self._cause()}")

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(LEAVING_S)
        except subprocess.TimeoutExpired:
            kill_all(self._process)
            self._process.wait()
        self._log.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _line(self, timeout_s: float) -> bytes:
        """The next line of the worker's answers."""
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                kill_all(self._process)
                raise self._lost(f"gave no answer within {timeout_s:g} s")
            got = os.read(pipe, 1 << 16)
            if not got:
                raise self._lost("ended")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _lost(self, how: str) -> MeasurementError:
        return MeasurementError(f"{self._engine.name}'s process {how}{self._cause()}")

    def _cause(self) -> str:
        """The last line that the engine printed of an error, in brackets."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        causes = [line.strip() for line in lines if "error" in line.lower() and line.strip()]
        return f" ({causes[-1][-300:]})" if causes else ""


def _environment(engine: BenchEngine, threads: int) -> Mapping[str, str]:
    """Ours, but for what would bring our own packages into another interpreter."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**WAITS, **ours, **engine.environment, "OMP_NUM_THREADS": str(threads)}
