"""The decision rules, on published numbers where there are any, else on made-up samples; and the
experiments, run through the sweep engine on a device made of published numbers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random

import experiments as ex
import pytest
from disputes import Verdict, chosen, measure, script, settle
from experiments import DISPUTES, Dispute, Results
from kernel_names import NATIVE, flash
from recorded_device import RecordedDevice

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment, Point, Sample
from gacprof.explaining.case import Where
from gacprof.sweeping import build_map_of, read_blocks, read_samples

A100, H200 = Where("sm80", "2.9.1"), Where("sm90", "2.13.0", 92000)
HAS_TRITON = importlib.util.find_spec("triton") is not None


def sample(point: Point, us: float, kernels: Sequence[str] = (), timer: str = "cupti") -> Sample:
    return Sample(point, ("x",), (us, us * 1.001, us * 0.999), timer, kernels=tuple(kernels))


def results(latency: Mapping[Point, float], where: Where = A100, **more: object) -> Results:
    kernels: Mapping[Point, Sequence[str]] = more.get("kernels", {})  # type: ignore[assignment]
    return Results([sample(p, us, kernels.get(p, ())) for p, us in latency.items()], where, 0.02)


def published_a100(points: Sequence[Point]) -> list[Sample]:
    """Of those points what the authors' A100 took, from the map that ships with the package."""
    found = []
    for point in points:
        forced = point.flag.get("backend", "auto") != "auto" or point.flag.get("mask") == "float"
        for curve in () if forced else CliffMap.load("a100-published").curves:
            us = curve.latencies.get(point.dim.get(curve.axis))
            others = {**point.dim, curve.axis: 0} == {**curve.fixed, curve.axis: 0}
            if us is not None and others and curve.operator == point.operator:
                found.append(sample(point, us, timer="cuda-events"))
                break
    return found


# all of them ------------------------------------------------------------------------------


def test_there_are_nine_each_with_claims_and_an_experiment_or_a_static_answer() -> None:
    assert [dispute.number for dispute in DISPUTES] == list(range(1, 10))
    for dispute in DISPUTES:
        assert len(dispute.claims) == 2 and dispute.needs
        assert (dispute.points and dispute.rule) or dispute.static
        if dispute.rule:
            assert dispute.decide(Results([], A100, 0.02))[0] == "undecided"


def test_without_a_gpu_two_are_settled_and_the_rest_say_what_they_need() -> None:
    verdicts = {verdict.number: verdict for verdict in settle()}
    assert len(verdicts) == 9
    assert (verdicts[8].status, verdicts[8].basis) == ("settled", "static")
    if HAS_TRITON:
        assert (verdicts[2].status, verdicts[2].basis) == ("settled", "static")
        assert "4104 is compiled like 4097" in verdicts[2].finding
    else:
        assert verdicts[2].status == "open" and "pip install" in verdicts[2].evidence[0]
    for number in (1, 3, 4, 5, 6, 7, 9):
        assert verdicts[number].status == "open"
        assert verdicts[number].needs in verdicts[number].finding


def test_the_rules_read_the_published_a100_numbers_as_people_did() -> None:
    """The figures' own data: for 4 and 5 that is one of the two sides."""
    disputes = chosen((3, 4, 5, 6, 7))
    points = [point for dispute in disputes for point in dispute.points]
    found = settle(disputes, Results(published_a100(points), A100, 0.02))
    verdicts = {verdict.number: verdict for verdict in found}
    assert verdicts[3].finding.startswith("multiples of 8 alone are slower (+1")
    assert verdicts[4].finding == "the figure, 0.826 ms, is right"
    assert "nearer to the plotted 45 %" in verdicts[5].finding
    assert verdicts[6].finding == "being a multiple of 8 does not make a dim safe"
    assert "N 1664 → 1672: +4" in verdicts[6].evidence[0]
    assert verdicts[7].finding.startswith("128 is the fastest of 104, 112, 120 and 128")
    assert {verdict.basis for verdict in verdicts.values()} == {"measured"}


# one by one -----------------------------------------------------------------------------------


def forced(auto: float, flash: float, math: float) -> Results:
    return results({ex.AUTO: auto, ex.FLASH: flash, ex.MATH: math})


def by_name(us: float, *kernels: str) -> Results:
    return results({ex.AUTO: us}, kernels={ex.AUTO: kernels})


def tensor(sixteen: float, eight: float, even: float, odd: float) -> Results:
    def ratio(k: int) -> float:
        return odd if k % 2 else sixteen if k % 16 == 0 else eight if k % 8 == 0 else even

    return results({p: 100 * ratio(p.dim["K"]) for p in ex.TENSOR}, H200)


def loads(half: float, odd: float) -> Results:
    return results({ex.ALIGNED: 10.0, ex.HALF_ALIGNED: 10 * half, ex.ODD: 10 * odd})


@pytest.mark.parametrize(
    ("rule", "seen", "finding"),
    [
        (
            ex.who_serves_107,
            by_name(2139, flash(128, False)),
            "flash_attention serves head_dim 107",
        ),
        (ex.who_serves_107, by_name(26995, NATIVE, NATIVE), "falls back to math (A)"),
        # without names the forced backends of table B.1 decide: on an A100 in ms 2.139 and 26.995
        (ex.who_serves_107, forced(2139, 2139, 26995), "flash (B)"),
        (ex.who_serves_107, forced(27000, 2139, 26995), "math (A)"),
        (ex.who_serves_107, forced(5000, 2139, 26995), None),
        (ex.who_serves_107, forced(9, 9, 9), None),
        (ex.is_there_a_period_of_16, tensor(1, 1.11, 1.6, 3.0), "there is a period 16"),
        # A's own H100 data: 327–349 TFLOPS at 8, ~165 even, ~100 odd
        (ex.is_there_a_period_of_16, tensor(1, 1.0, 2.05, 3.4), "the period is 8, not 16"),
        (ex.is_there_a_period_of_16, tensor(1, 1.0, 1.0, 1.0), "no residue is slower"),
        (ex.how_long_64_takes, results({ex.D64: 740}), "the table, 0.74 ms, is right"),
        (ex.how_long_64_takes, results({ex.D64: 826}), "the figure, 0.826 ms, is right"),
        (ex.how_long_64_takes, results({ex.D64: 783}), None),
        # a number of an A100 is not judged on another device
        (ex.how_long_64_takes, results({ex.D64: 400, ex.D96: 560}, H200), None),
        (ex.how_high_is_the_step_at_1729, results({ex.BEFORE: 10, ex.AFTER: 14}, H200), None),
        (ex.sectors_or_loads, loads(2.2, 2.2), "Triton's loads, not sectors (B)"),
        (ex.sectors_or_loads, loads(1.0, 2.2), "sectors (A)"),
        (ex.sectors_or_loads, loads(1.5, 2.2), "both"),
        (ex.sectors_or_loads, loads(1.0, 1.0), None),
    ],
)
def test_what_each_rule_finds_or_that_it_cannot_decide(rule, seen, finding) -> None:
    status, found, _ = rule(seen)
    assert (status == "undecided") == (finding is None) and (finding or "") in found


# measured as a sweep -------------------------------------------------------------------------

DEVICE = Environment("cuda", "an A100", "sm80", {}, {"torch": "2.9.1", "cudnn": "91002"})


def latency_us(point: Point) -> float:
    """As A's A100 figures have it; where they do not reach, without any cliff."""
    if point.operator == "attention":
        known = {64: 740.0, 96: 1110.0, 104: 1540.0, 107: 2140.0, 112: 1530.0, 120: 1530.0}
        slow = 10.0 if "math" in (point.flag["backend"],) or point.flag["mask"] == "float" else 1.0
        return known.get(point.dim["head_dim"], 1470.0) * slow
    if point.operator == "row_sum":
        return 10.0 if point.dim["K"] == 4096 else 22.0
    if point.dim["M"] == 1729:
        return 20.34
    if point.dim["M"] == 1728:
        return 13.98
    return 13.0 if point.dim["N"] <= 1664 else 18.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Point], float]], None]:
    """Sweep a recorded A100 that answers so."""

    def answers(answer: Callable[[Point], float]) -> None:
        opened = RecordedDevice(answer, DEVICE)
        monkeypatch.setattr("gacprof.api.sweeps.sweeper", lambda name, **_: nullcontext(opened))

    answers(latency_us)
    return answers


def points_of(disputes: Sequence[Dispute]) -> list[Point]:
    return list(dict.fromkeys(point for dispute in disputes for point in dispute.points))


def by_number(disputes: Sequence[Dispute], folder: Path) -> dict[int, Verdict]:
    return {v.number: v for v in settle(disputes, measure(disputes, "cuda", folder))}


def test_the_published_a100_settles_what_it_can(gpu, tmp_path: Path) -> None:
    verdicts = by_number(DISPUTES, tmp_path / "run")
    assert len(verdicts) == len(DISPUTES)
    assert verdicts[1].finding.endswith("flash (B)") and verdicts[1].basis == "measured"
    assert "Triton's loads, not sectors (B)" in verdicts[2].finding
    assert verdicts[4].finding == "the table, 0.74 ms, is right"
    assert "+45 %" in verdicts[5].finding and "plotted" in verdicts[5].finding
    assert "does not make a dim safe" in verdicts[6].finding
    assert verdicts[7].finding.startswith("128 is the fastest")
    assert verdicts[8].basis == "static"
    assert {s.point for s in read_samples(tmp_path / "run")} == set(points_of(DISPUTES))
    assert any(call.replicate for block in read_blocks(tmp_path / "run") for call in block.calls)


def test_what_is_measured_is_not_measured_again(gpu, tmp_path: Path) -> None:
    measure(chosen([7]), "cuda", tmp_path / "run")

    def never(point: Point) -> float:
        raise AssertionError(f"{point} was measured again")

    gpu(never)
    assert by_number(chosen([7]), tmp_path / "run")[7].status == "settled"


def test_a_device_that_fails_a_point_says_why_and_settles_the_rest(gpu, tmp_path: Path) -> None:
    def fails(point: Point) -> float:
        if point.operator == "row_sum" or point.dim.get("head_dim") == 112:
            raise MeasurementError("out of memory")
        return latency_us(point)

    gpu(fails)
    verdicts = by_number(chosen([2, 7, 5]), tmp_path / "run")
    assert verdicts[7].status == "undecided" and "out of memory" in verdicts[7].evidence[-1]
    assert verdicts[2].basis in ("static", "")  # as settled without a GPU
    assert verdicts[5].status == "settled"


def test_the_floor_is_what_hidden_replicates_differ_by(gpu, tmp_path: Path) -> None:
    assert measure(chosen([7]), "cuda", tmp_path / "same").floor == 0
    draw = Random(1)
    gpu(lambda point: latency_us(point) * draw.lognormvariate(0, 0.05))
    floor = measure(chosen([7]), "cuda", tmp_path / "noisy").floor
    assert floor == build_map_of(tmp_path / "noisy").floor
    assert 0.001 < floor < 0.1


# the script ----------------------------------------------------------------------------------


def test_on_a_gpu_the_script_measures_what_was_asked_for(gpu, run, tmp_path: Path) -> None:
    message = run(script, "--device", "cuda", "--only", 7, "--out", tmp_path)
    assert message.code == 0 and "128 is the fastest of 104, 112, 120 and 128" in message.out
    assert "1 of 1 settled; an A100, noise floor" in message.out
    assert (tmp_path / "samples" / "samples.parquet").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [(("--device", "cpu"), "about GPUs"), (("--only", 12), "no dispute 12: they go from 1 to 9")],
)
def test_what_is_no_gpu_and_no_dispute_is_refused_in_one_line(
    run, tmp_path: Path, arguments: tuple[object, ...], words: str
) -> None:
    run(script, *arguments, "--out", tmp_path).refused(words)
