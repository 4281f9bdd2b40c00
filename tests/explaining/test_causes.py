"""Explanations agree with what was published, cite their evidence, and never guess."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_names import ALIGN1, COPY, FILL, NATIVE, flash

from gacprof.cliffmap.curves import Axis, Measured, make_curve
from gacprof.cliffmap.schema import Curve, MapFile
from gacprof.core.errors import MapError
from gacprof.explaining.annotate import edge_points
from gacprof.explaining.causes import Explanation, Where, explain, explain_edge, explain_map
from gacprof.kernels.evidence import METRICS, KernelCounters
from gacprof.kernels.names import Kernel

A100 = MapFile.model_validate_json(
    (resources.files("gacprof.maps") / "a100-published.json").read_text()
)
ATTENTION = next(c for c in A100.curves if c.operator == "attention" and len(c.points.d) > 100)
WHERE = Where.of_map(A100)
STEPS = {64, 96, 128, 160, 192}
"""The FA2 template steps that the published curve crosses (torch 2.9.1, up to 256)."""


def kinds(explanation: Explanation) -> list[str]:
    return [cause.kind for cause in explanation.causes]


@pytest.mark.parametrize("d", ATTENTION.points.d[::5])
def test_padding_is_a_cause_below_each_multiple_of_8_and_only_there(d: int) -> None:
    explanation = explain(ATTENTION, d, WHERE)
    padding = [cause for cause in explanation.causes if cause.kind == "padding"]
    if d % 8 == 0:
        assert padding == []
        return
    (cause,) = padding
    to = -(-d // 8) * 8
    assert f"to {to} and slicing" in cause.sentence
    latency = ATTENTION.latencies
    # three pads and a slice cost 0.056 + 0.0049 · roundup8(d) ms, a line through these points
    assert cause.share == pytest.approx((latency[d] - latency[to]) / latency[d])
    assert cause.share * latency[d] / 1000 == pytest.approx(0.056 + 0.0049 * to, abs=0.045)
    assert kinds(explanation)[0] == "padding"


@pytest.mark.parametrize("d", [d for d in ATTENTION.points.d if d % 8 == 0 and d < 256])
def test_a_template_step_stands_at_64_96_128_160_192_and_nowhere_else(d: int) -> None:
    edge = explain_edge(ATTENTION, d, d + 8, WHERE)
    stepped = [c for c in edge.causes if c.kind == "template" and "instead of" in c.sentence]
    assert bool(stepped) == (d in STEPS)
    if stepped:
        assert stepped[0].share is not None and stepped[0].share > 0.2
        assert any("recorded from torch-2.9.1" in text for text in stepped[0].evidence)


def test_a_filled_template_needs_no_cause() -> None:
    for d in STEPS | {256}:
        found = explain(ATTENTION, d, WHERE)
        assert (found.reference, found.causes) == (d, ())
        assert "no larger dim is faster" in found.headline


def test_107_in_a_headline_and_its_reasons() -> None:
    found = explain_map(A100, "attention", 107)
    assert found.headline == (
        "head_dim 107 takes 2.15 ms, +45 % over 128 (1.48 ms): SDPA takes flash; q, k, v padded to "
        "112 by three kernels; FlashAttention-2 template 128 with even_k=false"
    )
    assert found.reasons == (
        "28 % of these 2.15 ms: padding q, k and v to 112 and slicing the output",
        "3 % of these 2.15 ms: template 128 is not filled",
    )


@given(st.sampled_from(ATTENTION.points.d), st.sampled_from(ATTENTION.points.d))
def test_shares_add_up_to_the_difference(a: int, b: int) -> None:
    """But for steps within the floor, which are not named."""
    if a == b:
        return
    edge = explain_edge(ATTENTION, a, b, WHERE)
    total = 1 - edge.reference_us / edge.latency_us
    named = sum(cause.share or 0.0 for cause in edge.causes)
    assert named == pytest.approx(total, abs=ATTENTION.floor + 1e-9)


def test_nothing_about_device_or_stack_means_nothing_is_guessed() -> None:
    bare = ATTENTION.model_copy(update={"period": None})
    explanation = explain(bare, 107, Where())
    assert kinds(explanation) == ["unexplained"]
    assert explanation.causes[0].sentence == "unexplained (no kernel was recorded)"
    assert explanation.served_by == ()
    measured = explain(ATTENTION, 107, Where()).causes[0]  # by the period that the curve has
    assert measured.kind == "residue" and "mechanism is not recorded" in measured.sentence
    of_another_torch = kinds(explain(ATTENTION, 107, Where("sm80", "2.9.0")))
    assert of_another_torch[0] == "padding" and "template" not in of_another_torch


def linear(axis: str, sizes: set[int]) -> Curve:
    """The published GEMM (M > 1) that has these sizes."""
    found = (c for c in A100.curves if (c.operator, c.axis) == ("linear", axis))
    return next(c for c in found if c.fixed.get("M") != 1 and sizes <= set(c.points.d))


@pytest.mark.parametrize(
    "d, needs, served",
    [(4034, "no multiple of 8", "align2"), (4033, "no multiple of 2", "align1")],
)
def test_unaligned_rows_of_a_gemm(d: int, needs: str, served: str) -> None:
    """A.3, by rules: the published map holds no kernel names."""
    explanation = explain(linear("K", {4033, 4034, 4040}), d, WHERE)
    cause = next(c for c in explanation.causes if c.kind == "alignment")
    assert needs in cause.sentence and served in cause.sentence
    assert cause.basis == "rules"
    assert cause.share is not None and cause.share > 0.3
    assert "rules of sm80" in cause.evidence


def test_a_plateau_edge_between_aligned_dims_is_unexplained_without_kernels() -> None:
    """N 1664 → 1672 costs 40 % more though both are multiples of 8: no rule tells why."""
    edge = explain_edge(linear("N", {1664, 1672}), 1664, 1672, WHERE)
    assert kinds(edge) == ["unexplained"]
    assert edge.excess == pytest.approx(0.40, abs=0.02)


# curves with kernels ----------------------------------------------------------------------

SMALLER = "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x6_tn"
SOFTMAX = "void at::native::(anonymous namespace)::softmax_warp_forward<c10::Half, float, 10>(x)"


def curve(latency: dict[int, float], kernels: dict[int, list[str]], **changes: Any) -> Curve:
    what: dict[str, Any] = {
        "operator": "linear", "axis": "K", "fixed": {"M": 128, "N": 4096}, "dtype": "float16",
        "flags": {"bias": False}, "timer": "cuda events",
    }  # fmt: skip
    measured = [
        Measured(d, us, 0.005, kernels=tuple(kernels.get(d, ()))) for d, us in latency.items()
    ]
    return make_curve(Axis(**what | changes), measured)


def test_kernel_names_outrank_rules_as_evidence() -> None:
    made = curve({107: 90.0, 112: 50.0}, {107: [ALIGN1], 112: [NATIVE]})
    (cause,) = explain(made, 107, Where("sm80", "2.9.1")).causes
    assert (cause.kind, cause.basis) == ("alignment", "measured")
    assert cause.share == pytest.approx(40 / 90)
    assert "rows of 1 (cutlass2 sm75" in cause.sentence and "instead of 8" in cause.sentence
    assert cause.evidence == ("kernel names", "latency at 107 and 112")


def test_where_the_kernels_contradict_the_rules_the_rules_are_not_cited() -> None:
    made = curve({107: 90.0, 112: 50.0}, {107: [NATIVE], 112: [NATIVE]})
    (cause,) = explain(made, 107, Where("sm80", "2.9.1")).causes
    assert cause.kind == "unexplained"
    assert "rules" not in " ".join(cause.evidence)


ALONG_N = {"axis": "N", "fixed": {"M": 2048, "K": 128}}


def test_another_kernel_of_the_same_alignment_is_a_switch() -> None:
    made = curve({1664: 13.0, 1672: 18.2}, {1664: [NATIVE], 1672: [SMALLER]}, **ALONG_N)
    edge = explain_edge(made, 1664, 1672, Where("sm80"))
    assert kinds(edge) == ["kernel_switch"]
    assert "64x64x64" in edge.causes[0].sentence and "128x64x64" in edge.causes[0].sentence
    assert edge.served_by[0].startswith("native sm80 float16 m16n8k16 align8 64x64x64")


def test_one_more_tile_of_the_same_kernel_is_tile_quantisation() -> None:
    """cuBLAS's tile is 128 of our N by 64 of our M: 1664 = 13 tiles, 1672 needs a 14th."""
    made = curve({1664: 13.0, 1672: 18.2}, {1664: [NATIVE], 1672: [NATIVE]}, **ALONG_N)
    (cause,) = explain_edge(made, 1664, 1672, Where("sm80")).causes
    assert cause.kind == "tile_quantisation"
    assert "14 tiles of 128 along N, not 13" in cause.sentence
    within = curve({1032: 13.0, 1040: 18.2}, {1032: [NATIVE], 1040: [NATIVE]}, **ALONG_N)
    same = explain_edge(within, 1032, 1040)
    assert kinds(same) == ["unexplained"]
    assert same.causes[0].sentence == "unexplained (the kernels are the same)"


ATT = {
    "operator": "attention", "axis": "head_dim", "flags": {"causal": False, "mask": "none"},
    "fixed": {"batch": 4, "heads": 32, "kv_heads": 32, "q_len": 2048, "kv_len": 2048},
}  # fmt: skip


def test_pads_are_counted_by_the_kernels_that_ran() -> None:
    kernels = {112: [flash(128, False)], 128: [flash(128, True)]}
    kernels[107] = [FILL, COPY] * 3 + kernels[112]
    made = curve({107: 2140.0, 112: 1530.0, 128: 1470.0}, kernels, **ATT)
    explanation = explain(made, 107)  # no device, no stack: the kernels alone tell
    assert explanation.served_by == (
        "SDPA took flash", "q, k, v padded to 112 by three kernels",
        "FlashAttention-2 template 128 with even_k=false",
    )  # fmt: skip
    assert kinds(explanation) == ["padding", "template"]
    assert explanation.causes[0].share == pytest.approx(610 / 2140)
    assert explanation.causes[0].basis == "measured"
    assert "kernel names" in explanation.causes[1].evidence


def test_a_fallback_to_math_is_told_with_the_refusal() -> None:
    """With a mask flash is out, and 107 suits the efficient backend no better."""
    made = curve(
        {107: 26995.0, 112: 2600.0},
        {107: [NATIVE, SOFTMAX, NATIVE], 112: ["fmha_cutlassF_f16_aligned_64x128_rf_sm80(x)"]},
        **(ATT | {"flags": {"causal": False, "mask": "float"}}),
    )
    explanation = explain(made, 107, Where("sm80", "2.9.1"))
    assert explanation.served_by == ("SDPA took math",)
    (cause,) = explanation.causes
    assert (cause.kind, cause.basis) == ("backend", "measured")
    assert "efficient refuses: head_dim 107 of q and k is no multiple of 8" in cause.sentence
    assert cause.share == pytest.approx(1 - 2600 / 26995)


def counters(duration_ns: float, opcodes: dict[str, int], **values: float) -> KernelCounters:
    full: dict[str, float | None] = dict.fromkeys((metric.key for metric in METRICS), None)
    full |= {"duration_ns": duration_ns} | values
    return KernelCounters(Kernel("k"), "sm90", "H200", (), full, {}, opcodes)


def test_counters_add_what_names_cannot_tell() -> None:
    made = curve({107: 90.0, 112: 50.0}, {})
    seen = {
        107: [counters(20_000, {"LDG.E.U16": 900, "HMMA.16816.F32": 10}, hmma_instructions=10,
                       gmma_instructions=0, l2_theoretical_sectors=200, l2_ideal_sectors=100,
                       waves_per_sm=1.2)],
        112: [counters(18_000, {"UTMALDG.2D": 90})],
    }  # fmt: skip
    explanation = explain(made, 107, Where(), seen)
    found = {cause.kind: cause for cause in explanation.causes}
    assert "loads of 2 bytes (LDG.2) instead of 16 (TMA)" in found["load_width"].sentence
    assert "2.00× the L2 sectors" in found["l2_sectors"].sentence
    assert "mma.sync instead of warpgroup MMA" in found["alignment"].sentence
    assert found["wave_quantisation"].share == pytest.approx(0.4)
    assert found["launch_bound"].share == pytest.approx(1 - 20 / 90)
    assert all(c.evidence for c in explanation.causes if c.kind != "unexplained")


def test_every_cause_but_the_unexplained_cites_evidence() -> None:
    for one in A100.curves:
        for d in one.points.d[:: max(1, len(one.points.d) // 12)]:
            for cause in explain(one, d, WHERE).causes:
                assert cause.evidence
                assert cause.share is not None or cause.kind != "unexplained"


def test_what_the_map_lacks_is_said() -> None:
    with pytest.raises(MapError, match=r"=161 was not measured \(nearest: 158, 159, 160, 162\)"):
        explain_map(A100, "attention", 161)
    with pytest.raises(MapError, match="needs two dims"):
        explain_edge(ATTENTION, 64, 64)


def test_edges_and_their_neighbours_are_the_points_worth_counting() -> None:
    points = edge_points(ATTENTION)
    dims = [point.dim["head_dim"] for point in points]
    assert dims == sorted(set(dims))
    assert {63 + 1, 65, 71 + 1, 73} <= set(dims)
    assert all(point.operator == "attention" and point.dim["heads"] == 32 for point in points)
