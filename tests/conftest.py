"""Where tests find real files: small ones in tests/fixtures, the full set where it is at hand."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from command_lines import Ended

    from gacprof.cliffmap import CliffMap

# What is imported is compiled once, not in every process that the tests start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples on every run: a red build is then about the change, not about the dice.
# HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Before torch and numpy are imported: on models this small, threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

os.environ.pop("COLUMNS", None)  # tables are as a pipe gets them, wherever the tests run

# No power fails here, and a disk takes its time; sweeping/test_crash.py keeps a record of its own.
os.fsync = lambda descriptor: None

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "support"))


@pytest.fixture(autouse=True)
def _without_others_measurements() -> Iterator[None]:
    """Whether the extra "elsewhere" is installed here changes no test; those of it bring tables.

    A patch of its own: the test's ``monkeypatch`` must be undone before the fixtures it patches.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gacprof.elsewhere.data.PACKAGE", "aiconfigurator_not_here")
        yield


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Run ``gacprof`` with these arguments, in this process. What it prints as JSON is what the
    published schema says."""
    from command_lines import ended
    from schemas import check_printed

    from gacprof.cli.app import main

    def run(*arguments: object) -> Ended:
        found = ended(monkeypatch, capsys, main, "gacprof", *arguments)
        if "--json" in arguments:
            check_printed(found.out)
        return found

    return run


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Small real files that travel with the repository."""
    return HERE / "fixtures"


@pytest.fixture(scope="session")
def asvd(fixtures: Path) -> Path:
    """A real checkpoint with its factors: hidden 256, 4 layers, ranks as ASVD chose them."""
    return fixtures / "checkpoints" / "asvd_mha_r1"


@pytest.fixture(scope="session")
def a100() -> CliffMap:
    """The published map of an A100, loaded once."""
    from gacprof.cliffmap import CliffMap

    return CliffMap.load("a100-published")


@pytest.fixture(scope="session")
def planted_map(asvd: Path) -> CliffMap:
    """The map of the planted device at that checkpoint's shapes."""
    from planted import planted_map_of

    return planted_map_of(asvd, dtype="float32")


def of_shared(name: str) -> Path:
    """A file of the full set, in ``$GACPROF_SHARED`` or a folder ``shared`` beside the checkout."""
    path = Path(os.environ.get("GACPROF_SHARED", HERE.parent.parent / "shared")) / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand (set GACPROF_SHARED)")
    return path


ORIGINAL = pytest.param("original", marks=pytest.mark.shared)


@pytest.fixture(scope="session", params=["filled", ORIGINAL])
def tools_checkpoints(
    request: pytest.FixtureRequest, fixtures: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A checkpoint of each tool with its logits: what the tool wrote, filled with weights made
    here (``support/tool_checkpoints.py``), or the whole original set (``-m shared``)."""
    if request.param == "original":
        return of_shared("fixtures/checkpoints")
    from tool_checkpoints import write_all

    folder = tmp_path_factory.mktemp("tools")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return write_all(fixtures / "checkpoints", folder)
    shared = tmp_path_factory.getbasetemp().parent / "tools"  # no worker makes them again
    with (shared.parent / "tools.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            write_all(fixtures / "checkpoints", folder).rename(shared)
    return shared


@pytest.fixture(scope="session", params=["made", ORIGINAL])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Nsight Compute report made by ``support/ncu_reports.py``, or a public one of three
    kernels on an RTX 3070 (``-m shared``)."""
    pytest.importorskip("ncu_report")
    if request.param == "original":
        return of_shared("fixtures/manual_nvtx.ncu-rep")
    from ncu_reports import write_daxpy

    return write_daxpy(tmp_path_factory.mktemp("ncu") / "daxpy.ncu-rep")


LONG = (
    "checkpoint/test_original_tools", "cli/test_verbs", "compressing/test_compress", "exporting",
    "fuzz", "notebooks", "paper/test_survey_run", "reporting/test_page", "torture",
)  # fmt: skip
"""What takes seconds a test: begun first, it keeps no worker busy when the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.removeprefix("tests/").startswith(LONG))


def pytest_collection_finish() -> None:
    """What is imported by now stays: else every full collection looks through all of torch again,
    and takes a sixth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
