"""The rest of a path: the dim's residue, another kernel, another tile, or unexplained."""

from __future__ import annotations

from gacprof.explain.causes.case import Case, Path
from gacprof.explain.causes.linear import main_kernel
from gacprof.kernels.kernel import Kernel


def finish(path: Path) -> None:
    """Walk what is left of a path to its reference, naming each step if it can be named."""
    _residue(path)
    case = path.case
    if path.at != path.goal and not _switch(path):
        left = abs(case.latency[path.at] - case.latency[path.goal]) / case.latency[case.d]
        if left > case.curve.floor:
            path.step("unexplained", path.goal, f"unexplained ({_why(case)})", [])
        else:
            path.at = path.goal  # no difference that the noise could not make
    path.finish()


def _why(case: Case) -> str:
    if case.kernels(case.d):
        return "the kernels are the same"
    return "the same library serves both" if case.mechanism(case.d) else "no kernel was recorded"


def _residue(path: Path) -> None:
    """Step to the next dim of the fastest residue class, where the map found a period."""
    case, period = path.case, path.case.curve.period
    if period is None or path.goal <= path.at:
        return
    fastest = period.classes[0].remainders
    own = path.at % period.modulus
    ratio = next((c.ratio for c in period.classes if own in c.remainders), None)
    target = next(
        (x for x in sorted(case.latency) if x > path.at and x % period.modulus in fastest), None
    )
    if own in fastest or ratio is None or target is None:
        return
    text = (
        f"dims that leave {own} modulo {period.modulus} run {ratio:.2f}× as long as those that "
        f"leave {', '.join(map(str, fastest))}; which mechanism is not recorded"
    )
    path.step("residue", target, text, [f"period {period.modulus} of the measured curve"])


def _switch(path: Path) -> bool:
    """Name the step to the goal by the kernels at both ends, if they were recorded and differ."""
    case = path.case
    here = main_kernel(case.groups(path.at))
    there = main_kernel(case.groups(path.goal))
    if here is None or there is None:
        return _other_mechanism(path)
    if _shape(here) != _shape(there):
        text = f"another kernel: {here} instead of {there}"
        path.step("kernel_switch", path.goal, text, ["kernel names"])
        return True
    tiles = _tiles(case, here, path.at), _tiles(case, here, path.goal)
    if None not in tiles and tiles[0] != tiles[1]:
        text = f"{tiles[0]} tiles of {_tile_of(case, here)} along {case.curve.axis}, not {tiles[1]}"
        path.step("tile_quantisation", path.goal, text, ["kernel names"])
        return True
    return False


def _other_mechanism(path: Path) -> bool:
    """Where no kernels are recorded the map may still say what served, as it does of CPUs."""
    here, there = (path.case.mechanism(d) for d in (path.at, path.goal))
    if here is None or there is None or here == there:
        return False
    path.step("kernel_switch", path.goal, f"{here} instead of {there}", ["names in the map"])
    return True


def _shape(kernel: Kernel) -> tuple[object, ...]:
    return kernel.mechanism, kernel.tile, kernel.stages, kernel.cluster, kernel.split_k


def _tile_of(case: Case, kernel: Kernel) -> int | None:
    """The tile's extent along the swept axis.

    cuBLAS is column-major, so it computes yᵀ: its M is our N (output features), its N our M.
    """
    if case.curve.operator != "linear" or kernel.provider not in ("cublas", "cutlass"):
        return None
    index = {"N": 0, "M": 1, "K": 2}.get(case.curve.axis)
    tile = kernel.tile or ()
    return tile[index] if index is not None and len(tile) > index else None


def _tiles(case: Case, kernel: Kernel, d: int) -> int | None:
    extent = _tile_of(case, kernel)
    return -(-d // extent) if extent else None
