"""A dense model in, a compressed one out: loadable, within the ratio, and aligned by a map."""

import json
from dataclasses import replace

import pytest
import torch
from compressing_models import logits_of, make_model

import gacprof
from gacprof.checkpoint import scan
from gacprof.core.errors import CheckpointError
from gacprof.extras.compress.outcome import PhaseTime

ASVD = pytest.param("asvd", marks=pytest.mark.slow)  # its search takes long
METHODS = ["svd", "svd-llm", ASVD, "palu", "llm-pruner"]
LAYOUTS = {"svd": "svd-llm", "svd-llm": "svd-llm", "asvd": "asvd", "palu": "palu"}


@pytest.mark.parametrize("method", METHODS)
def test_the_output_is_scanned_loaded_and_gives_logits(unaligned, dense, ids, method):
    out = unaligned(method)
    inventory = scan(out)
    assert inventory.layout == LAYOUTS.get(method, inventory.layout)
    if method == "asvd":
        factored = {m.name: m.gemms[0].N for m in inventory.modules if m.kind == "factored"}
        assert inventory.config["truncation_ranks"] == factored
    if method in ("svd-llm", "asvd", "llm-pruner"):  # the ratio is of the compressed layers
        layers = 3 * (2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 160) + (method == "asvd") * 96 * 128
        assert 0.3 * layers <= scan(dense).parameters - inventory.parameters <= 0.38 * layers
    assert torch.isfinite(logits_of(out, ids[:2])).all()
    assert "gacprof.compressed/1" in (out / "gacprof.json").read_text()
    assert "base model" in (out / "README.md").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_with_a_map_every_size_is_safe_and_within_the_same_budget(
    unaligned, own_map, map_of, compress, ids, tmp_path, method
):
    out = tmp_path / "out"
    result = compress(method, out, cliff_map=own_map(method))
    assert result.aligned == len(result.plan.choices) and result.plan.certificate.proved
    assert all(c.after is None or c.after % 8 == 0 for c in result.plan.choices)
    assert any(c.before % 8 for c in result.plan.choices)
    if method != "palu":
        assert result.removed >= 0.3
    else:  # its ratio is one of latent entries: dense is cheaper, and holds none
        assert scan(out).parameters <= scan(unaligned(method)).parameters
        assert None not in result.sizes.values()
        assert sum(result.sizes.values()) <= sum(result.requested.values())
        assert result.as_dict()["energy_of_requested"] == result.energy_of_requested
    assert scan(out).parameters == result.parameters_after
    if method in ("svd-llm", "llm-pruner"):  # planned again, it stays as it is
        assert not gacprof.plan(out, map_of(out), budget_parameters=result.parameters_after).changes
    assert torch.isfinite(logits_of(out, ids[:1])).all()


def test_the_papers_objective_aligns_by_the_score_that_is_asked_for(compress, own_map, tmp_path):
    chosen = {}
    for score in ("activation", "fisher"):
        result = compress(
            "svd-llm", tmp_path / score, cliff_map=own_map("svd-llm"), objective="gac", score=score
        )
        assert result.aligned == len(result.plan.choices) and result.removed >= 0.3
        chosen[score] = tuple(result.sizes.items())
    assert len(set(chosen.values())) > 1


def test_limits_on_latency_are_kept_and_the_records_say_what_was_done(compress, own_map, tmp_path):
    m = own_map("svd-llm")
    free = compress("svd-llm", tmp_path / "free", cliff_map=m)
    limit = free.plan.predicted_after_us * 0.99
    held = compress("svd-llm", tmp_path / "held", cliff_map=m, latency_limit_us=limit)
    assert held.plan.predicted_after_us <= limit
    assert held.energy_kept < free.energy_kept
    record = json.loads((tmp_path / "held" / "gacprof.json").read_text())
    assert record["request"]["ratio"] == 0.3 and record["calibration"]["tokens"] == 12 * 32
    assert record["sizes"] == dict(held.sizes)
    assert gacprof.Plan.load(tmp_path / "held" / "plan.json").choices == held.plan.choices
    at = max(free.predicted, key=lambda time: time.tokens)
    share = 0.995 * at.written_us / at.own_us - 1  # of the time of the method's own sizes
    limit = f"prefill:{at.tokens}=own{100 * share:+.3f}%"
    held = compress("svd-llm", tmp_path / "own", cliff_map=m, latency_limit_us=limit)
    (phase,) = (p for p in held.plan.phases if p.tokens == at.tokens)
    assert phase.after_us <= at.own_us * (1 + share + 1e-5)
    assert held.energy_kept <= free.energy_kept


def test_dominating_the_methods_own_rounding_is_no_slower_no_larger_and_keeps_more(
    compress, own_map, tmp_path
):
    m = own_map("svd-llm")
    rounded = compress("svd-llm", tmp_path / "rounded", round_to=8)
    ours = compress("svd-llm", tmp_path / "ours", cliff_map=m, dominate="rounded-8")
    assert ours.parameters_after <= rounded.parameters_after
    (line,) = (note for note in ours.notes if note.startswith("rounded-8"))
    assert f": {rounded.parameters_after:,} parameters" in line
    assert f"the plan: {ours.parameters_after:,} parameters" in line
    assert "; uncompressed: decode " in line and " µs" in line.rpartition("uncompressed: ")[2]
    assert ours.energy_kept >= rounded.energy_kept
    for phase in ours.plan.phases:
        took = gacprof.diagnose(tmp_path / "rounded", m, tokens={phase.tokens: 1.0})
        names = {choice.dim.rpartition(":")[0] for choice in ours.plan.choices}
        known = [w.latency_us for w in took.weights if w.name in names]
        assert phase.after_us <= sum(known) * (1 + 1e-9)


def test_what_the_map_predicts_is_told_for_each_count_of_tokens_by_itself(
    compress, own_map, tmp_path
):
    done = compress("svd", tmp_path / "out", cliff_map=own_map("svd"))
    workload = done.plan.workload.tokens
    assert [time.tokens for time in done.predicted] == sorted(workload)
    sums = {"own_us": done.plan.predicted_before_us, "written_us": done.plan.predicted_after_us}
    for part, whole in sums.items():
        each = [workload[time.tokens] * getattr(time, part) for time in done.predicted]
        assert sum(each) == pytest.approx(whole)
    slower = replace(done, predicted=(PhaseTime(1, 9.0, 11.0, 10.0), PhaseTime(64, 9.0, 9.0, 8.0)))
    assert any("as fast or faster for 1 token: " in note for note in slower.notes)


@pytest.mark.parametrize("method", [ASVD, "palu", "llm-pruner"])
def test_rounding_is_the_tools_own(compress, tmp_path, method):
    result = compress(method, tmp_path / "8", round_to=8)
    for name, size in result.requested.items():
        if size is None or name.endswith(":heads"):
            expected = size
        elif method == "asvd":
            expected = -(-size // 8) * 8
        elif method == "palu":
            expected = min(max(1, round(size / 8)) * 8, 32)
        else:
            expected = 160 - (160 - size) // 8 * 8
        assert result.sizes[name] == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.slow
def test_weights_stay_in_their_type(tmp_path, ids, dtype):
    model = make_model(tmp_path / "model", dtype, tie_word_embeddings=True)
    result = gacprof.compress(model, tmp_path / "out", method="svd-llm", ratio=0.2, calib=ids)
    inventory = scan(tmp_path / "out")
    assert inventory.main_dtype == str(dtype).removeprefix("torch.")
    assert "lm_head.weight" not in inventory.tensors
    assert "the method does not touch it" in result.left["lm_head"]
    assert torch.isfinite(logits_of(tmp_path / "out", ids[:1])).all()


@pytest.mark.parametrize("method", ["svd-llm", "palu", "llm-pruner"])
@pytest.mark.slow
def test_biases_go_along(tmp_path, ids, method):
    model = make_model(tmp_path / "model", attention_bias=True, mlp_bias=True)
    gacprof.compress(model, tmp_path / "out", method=method, ratio=0.02, calib=ids)
    logits, dense = (logits_of(tmp_path / n, ids[:1]) for n in ("out", "model"))
    stored = {name for name in scan(tmp_path / "out").tensors if name.endswith("bias")}
    assert len(stored) >= 3 * 7
    assert torch.isfinite(logits).all()
    assert torch.linalg.norm(logits - dense) < 0.9 * torch.linalg.norm(dense)


def test_a_model_in_memory_is_compressed_like_its_folder(dense, unaligned, ids, tmp_path):
    model = gacprof.load_model(dense)
    gacprof.compress(model, tmp_path / "out", method="svd-llm", ratio=0.3, calib=ids)
    a, b = (logits_of(path, ids[:1]) for path in (tmp_path / "out", unaligned("svd-llm")))
    assert torch.equal(a, b)


def test_what_a_kill_after_the_last_step_left_goes_with_the_next_run(compress, tmp_path):
    """The output stands whole, the state of the work beside it: killed between the two steps."""
    out = tmp_path / "out"
    compress("svd", out)
    left = tmp_path / ".out.compress-svd-0123"
    left.mkdir()
    (left / "factors-0.safetensors").write_bytes(b"of a finished work")
    with pytest.raises(CheckpointError, match="exists already"):
        compress("svd", out)
    assert not left.exists() and out.is_dir()
