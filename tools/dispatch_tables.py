"""Make the dispatch tables that ship with the package: every GPU, by the PyTorch of one python.

    python tools/dispatch_tables.py /path/to/python [gpu …]

The python needs a CUDA build of PyTorch (``pip install 'torch===2.14.1'``); a GPU takes half a
minute. Run it once a release of PyTorch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gacprof.kernels.dispatch import FOLDER
from gacprof.virtual.ask import dispatch
from gacprof.virtual.build import find_torch
from gacprof.virtual.profiles import gpus


def main() -> None:
    """Write ``gacprof/dispatch/<gpu>-torch<release>.json`` for the GPUs named, or for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="a python with a CUDA build of PyTorch")
    parser.add_argument("gpus", nargs="*", default=gpus(), metavar="gpu")
    options = parser.parse_args()
    release = find_torch(options.python).release
    for gpu in options.gpus:
        path = FOLDER / f"{gpu}-torch{release}.json"
        dispatch(gpu, torch_python=options.python, out=path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
