"""What a compression has worked out so far: a folder of finished files, for the next try.

Every file appears whole or not at all, so whatever is there can be used. Calibration and
decompositions do not depend on the ratio nor on a map: with a folder of the user's own, other
ratios, maps and roundings of the same method begin where those are done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gacprof
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scanning import TensorReader
from gacprof.core.errors import CompressionError, GacprofError, MeasurementError
from gacprof.core.files import remove_unheld, replacing
from gacprof.core.tasks import Tasks
from gacprof.extras.compress.calibration import Calibration
from gacprof.resizing.workspace import digest, holding, source_identity
from gacprof.resizing.writers import save_tensors

if TYPE_CHECKING:
    import torch

Tell = Callable[[str], None]


class State:
    """Named results in a folder: tensors, arrays and JSON."""

    complete = False
    """Whether all is worked out: sizes alone are chosen, and the model written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def drop(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def save(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        save_tensors(self.path(name), tensors)

    def load(self, name: str) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        found: dict[str, torch.Tensor] = load_file(self.path(name))
        return found

    @contextlib.contextmanager
    def new_array(self, name: str, shape: tuple[int, ...]) -> Iterator[np.memmap[Any, Any]]:
        """A float32 array to be filled; it gets its name when the block ends."""
        with replacing(self.path(name)) as temporary:
            array: Any = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            yield array
            array.flush()

    def array(self, name: str) -> np.memmap[Any, Any]:
        found: Any = np.lib.format.open_memmap(self.path(name), "r")
        return found


@dataclass(frozen=True)
class Work:
    """What a method works with: the model, where results are kept, the text (None where none is
    run), the device, what is called with progress, and where layers are run and decomposed."""

    reader: TensorReader
    state: State
    calibration: Calibration | None
    device: str
    tell: Tell
    tasks: Tasks

    @property
    def ids(self) -> torch.Tensor:
        """Of the text."""
        assert self.calibration is not None
        return self.calibration.ids


def key_of(inventory: Inventory, facts: Mapping[str, Any]) -> str:
    """What the results follow from: the weights' files as they are now, and ``facts``."""
    files = {info.file for info in inventory.tensors.values()}
    there = [name for name in files if (Path(inventory.folder) / name).exists()]
    in_memory = inventory.container == "memory"  # it has no files
    identity = [inventory.fingerprint] if in_memory else source_identity(inventory, there)
    return str(digest([gacprof.__version__, identity, sorted(facts.items())]))[:16]


@contextlib.contextmanager
def state_for(out: Path, work: Path | None, key: str) -> Iterator[State]:
    """The state of this work, held against other processes.

    Without ``work`` it lies hidden beside ``out``; another work's leftovers there are removed, and
    it goes when the block ends well. In ``work`` every key has a folder of its own that stays.
    An interrupt carries a note of where the results are.
    """
    folder = out.with_name(f".{out.name}.compress-{key}") if work is None else work / key
    for made in (out.parent, folder):
        try:
            made.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CompressionError(f"{made}: cannot be made: {error.strerror or error}") from None
    if not os.access(out.parent, os.W_OK):
        raise CompressionError(f"{out.parent}: cannot be written to: name another --out")
    in_use = (
        f"{folder} is in use by another process: wait until it ends, or name another folder "
        f"({'--out' if work is None else '--work'})"
    )
    with holding(folder, CompressionError(in_use)):
        if work is None:
            remove_leftovers(out, folder)
        state, had = State(folder), any(folder.iterdir())
        goes_on = f"the same command goes on from {folder}"
        try:
            yield state
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(goes_on)
            raise
        except (MeasurementError, BrokenPipeError):  # of memory or a fleet: another try may do
            raise
        except OSError as error:
            why = f"{error.filename or folder}: {error.strerror or error}"
            raise CompressionError(f"{why}; once that is mended {goes_on}") from None
        except GacprofError as error:
            if work is None and not (state.complete or had):  # the same comes of every try
                shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # it holds what was worked out
                folder.rmdir()
            if work is None and folder.exists():
                kept = f"{folder} keeps what was worked out for the next try, or remove it"
                error.args = (f"{error}; {kept}",)
            raise
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(out: Path, own: Path | None = None) -> None:
    """State of other work than one's ``own`` for the same output, where nobody holds it."""
    others = out.parent.glob(f".{out.name}.compress-*")
    remove_unheld(other for other in others if other != own and other.is_dir())
