"""A diagnosis follows the measurements; the rule d % 8 is only counted beside them."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from planted import TOKENS, planted_latency

from gacprof.checkpoint import scan
from gacprof.checkpoint.inventory import AttentionHeads
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import PlanError
from gacprof.core.points import Point
from gacprof.diagnosing import diagnose


def test_on_a_device_that_wants_multiples_of_8_exactly_the_others_are_misaligned(asvd, planted_map):
    found = diagnose(asvd, planted_map, tokens=TOKENS)
    judged = {d.name: d for d in found.dims}
    inventory = scan(asvd)
    for dim in inventory.dims:
        others_fit = all(
            getattr(inventory.gemm(f.weight), axis) % 8 == 0
            for f in dim.feeds
            for axis in "NK"
            if axis != f.axis
        )
        if others_fit:
            verdict = "safe" if dim.size % 8 == 0 else "misaligned"
            assert judged[dim.name].verdict == verdict, dim.name
    assert 0 < found.misaligned < len(found.weights)


def test_what_padding_recovers_is_the_difference_of_the_measured_latencies(asvd, planted_map):
    found = diagnose(asvd, planted_map, tokens=TOKENS)
    inventory = scan(asvd)
    dim = next(d for d in found.dims if d.kind == "rank" and d.verdict == "misaligned")
    stored = inventory.dim(dim.name)

    def total(size):
        time = 0.0
        for feed in stored.feeds:
            gemm = inventory.gemm(feed.weight)
            shape = {"N": gemm.N, "K": gemm.K} | {feed.axis: size}
            time += sum(
                planted_latency(Point.of("linear", {"M": m} | shape, "float32")) for m in TOKENS
            )
        return time

    assert dim.latency_us == pytest.approx(total(dim.size))
    assert dim.best_latency_us == pytest.approx(total(dim.best_size))
    assert dim.lost_us == pytest.approx(total(dim.size) - total(dim.best_size), rel=1e-3)
    assert dim.advice == f"pad to {dim.best_size}" and dim.best_size % 8 == 0


def test_the_totals_add_up(asvd, planted_map):
    found = diagnose(asvd, planted_map, tokens=TOKENS)
    totals = found.totals()
    assert totals["predicted_us"] == pytest.approx(sum(w.latency_us for w in found.weights))
    assert totals["lost_us"] == pytest.approx(sum(d.lost_us for d in found.dims))
    assert totals["recoverable_us"] <= totals["lost_us"] < totals["predicted_us"]
    assert totals["unknown"] == 0
    json.dumps(found.as_dict(), allow_nan=False)


def test_what_the_map_lacks_is_unknown_and_names_the_sweep(asvd):
    found = diagnose(asvd, CliffMap.load("a100-published"), tokens={64: 1.0}, dtype="float16")
    assert found.unknown > 0 and found.predicted_us is None
    missing = [w.missing for w in found.weights if w.verdict == "unknown"]
    assert all("sweep" in reason for reason in missing)


def test_another_dtype_than_the_maps_is_refused_when_asked_for(asvd, planted_map):
    with pytest.raises(PlanError, match="holds no bfloat16; it holds float32"):
        diagnose(asvd, planted_map, tokens=TOKENS, dtype="bfloat16")


def test_diagnosing_imports_no_torch(asvd, planted_map, tmp_path):
    planted_map.save(tmp_path / "map.json")
    code = (
        "import sys, gacprof;"
        f"gacprof.diagnose({str(asvd)!r}, {str(tmp_path / 'map.json')!r}, tokens={{1: 1.0}});"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("tokens", [{}, [], [0], [1.5], ["64"], {1: 0}, {1: "1"}, {1: True}, 64])
def test_a_workload_that_is_none_is_refused(asvd, planted_map, tokens):
    with pytest.raises(PlanError, match="token"):
        diagnose(asvd, planted_map, tokens=tokens)


def test_other_tokens_than_the_maps_are_told_with_the_maps_own(asvd, planted_map):
    found = diagnose(asvd, planted_map, tokens=[7, 64])
    assert not found.judged and found.totals()["judged"] == 0
    (note,) = [n for n in found.notes if "tokens" in n]
    assert "measured at 1, 64 tokens, not at 7" in note and "--tokens 1,64" in note


def test_a_dtype_that_is_not_the_checkpoints_is_told_with_what_it_means(asvd, planted_map):
    (note,) = [n for n in diagnose(asvd, planted_map, tokens=TOKENS).notes if "stored as" in n]
    assert "computed in float32" in note and "--dtype float16" in note


@pytest.mark.parametrize("head_dim", [107, 128, 1000])
def test_a_head_dim_that_the_map_calls_misaligned_is_found(asvd, head_dim):
    """It is no dim of a plan, and yet it costs time: named with its cost."""
    inventory = replace(scan(asvd), attentions=(AttentionHeads(0, 32, 32, head_dim),) * 2)
    found = [d for d in diagnose(inventory, "h100-published").findings if "head_dim" in d.name]
    assert len(found) == (head_dim == 107)
    for finding in found:
        assert (finding.kind, finding.size) == ("fixed", 107)
        assert round(finding.penalty_low, 3) == 0.511 and "--d 107" in finding.advice
