"""What a plan promises holds at its end, whatever is asked: its limits, sizes that realigning
takes, and no choice on offer that is better."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formula_source import FormulaSource, teeth_of, write_checkpoint
from tool_folders import FIXTURES, restored

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import GacprofError, PlanError
from gacprof.core.sizes import SizeSource
from gacprof.diagnosing.diagnosis import diagnose
from gacprof.planning import solver
from gacprof.planning.plan import Plan
from gacprof.planning.planner import plan
from gacprof.realigning.realign import realign
from gacprof.workload.products import Products

LAYER = "model.layers.0"
TEETH = FormulaSource(teeth_of(8))
TOOLS = ("palu_mha_gs4_block1", "slicegpt_mha_s0.22_r1", "svdllm_mha_0.6", "torchpruning_mha_0.3")


def pair(name: str, out: int, rank: int, n_in: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.BLinear.weight": (rank, n_in), f"{name}.ALinear.weight": (out, rank)}


def mlp_of_pairs(hidden: int, width: int, ranks: Sequence[int]) -> dict[str, tuple[int, ...]]:
    gate, up, down = ranks
    return {
        **pair(f"{LAYER}.mlp.gate_proj", width, gate, hidden),
        **pair(f"{LAYER}.mlp.up_proj", width, up, hidden),
        **pair(f"{LAYER}.mlp.down_proj", hidden, down, width),
    }


def falling_losses(inventory: Inventory, draw: random.Random) -> dict[str, list[float]]:
    """Losses of ranks that rise as they are cut, each at a rate of its own."""
    losses = {}
    for dim in inventory.dims:
        if dim.kind == "rank":
            rate = draw.uniform(1, 6)
            losses[dim.name] = np.exp(-rate * np.arange(dim.size + 1) / dim.size).tolist()
            losses[dim.name][-1] = 0.0
    return losses


@pytest.fixture(scope="module", params=["mlp of pairs", "many groups", "experts", "asvd", *TOOLS])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Inventory:
    folder = tmp_path_factory.mktemp("promises")
    if request.param == "asvd":
        return scan(FIXTURES / "asvd_mha_r1")
    if request.param in TOOLS:
        return scan(restored(request.param, folder))
    shapes: dict[str, tuple[int, ...]] = mlp_of_pairs(64, 173, (51, 40, 45))
    config: dict[str, Any] = {"intermediate_size": 173}
    if request.param == "many groups":
        k_proj = f"{LAYER}.self_attn.k_proj"
        ranks = [75 + i % 5 for i in range(12)]
        shapes = {f"{k_proj}.VT.weight": (sum(ranks), 512)}
        shapes |= {f"{k_proj}.U.{i}.weight": (128, rank) for i, rank in enumerate(ranks)}
        config = {"head_wise_ranks": {k_proj: ranks}}
    if request.param == "experts":
        shapes = {
            f"{LAYER}.mlp.{part}.{x}_proj.weight": (n, 64) if x != "down" else (64, n)
            for part, n in (("experts.0", 51), ("experts.1", 51), ("shared_experts", 102))
            for x in ("gate", "up", "down")
        }
        config = {"moe_intermediate_size": 51, "n_shared_experts": 2}
        config |= {"n_routed_experts": 2, "num_experts_per_tok": 1}
    return scan(write_checkpoint(folder / "model", shapes, config))


SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed else ()) for seed in range(8)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_keeps_every_limit_and_can_be_realigned_or_is_refused(
    checkpoint: Inventory, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "SECONDS", 0.5)  # a promise holds wherever HiGHS stops
    draw = random.Random(seed)
    names = [dim.name for dim in checkpoint.dims]
    losses = falling_losses(checkpoint, draw)
    plans = refusals = 0
    for trial in range(4):
        source: SizeSource | str = draw.choice(["h100", TEETH])
        asked: dict[str, Any] = {
            "objective": draw.choice(["quality", "quality", "pad", "gac"]),
            "uniform": draw.choice(["none", "none", "module", "role", "kind"]),
            "window": draw.choice([0.1, 0.25, 0.6]),
            "multiple": draw.choice([1, 1, 8, 16]),
            "pin": draw.sample(
                [f"{draw.choice(names)}=keep", "*:width=keep"], draw.choice([0, 0, 1])
            ),
        }
        if losses and asked["objective"] == "quality":
            asked["losses"] = losses
        if draw.random() < 0.6:
            asked["budget"] = draw.uniform(0.3, 1.2)
        if draw.random() < 0.3:
            asked["memory"] = draw.uniform(0.6, 1.2) * sum(
                t.nbytes for t in checkpoint.tensors.values()
            )
        if source is TEETH and draw.random() < 0.4:
            time = Products(checkpoint, {1: 1.0, 64: 1.0}).time_us(TEETH, checkpoint.modules)
            assert time is not None
            asked["latency"] = time.value * draw.uniform(0.7, 1.1)
        try:
            chosen = plan(checkpoint, source, **asked)
        except PlanError:
            refusals += 1
            continue
        plans += 1
        realign(checkpoint, {**chosen.sizes}, tmp_path / str(trial))
        assert_is_as_promised(chosen, scan(tmp_path / str(trial)), source)
    assert plans + refusals == 4


def assert_is_as_promised(chosen: Plan, after: Inventory, source: SizeSource | str) -> None:
    """Compare a plan with the checkpoint that realigning made of it."""
    takes = {
        "parameters": after.parameters,
        "bytes": sum({t.stored_at: t.nbytes for t in after.tensors.values()}.values()),
    }
    assert chosen.parameters[1] == takes["parameters"] and chosen.nbytes[1] == takes["bytes"]
    if not isinstance(source, str):
        time = Products(after, chosen.tokens).time_us(source, after.modules)
        takes["latency_us"] = time.value if time else 0.0
    for name, most in chosen.limits.items():
        assert takes[name] <= most * (1 + 1e-9)
    assert chosen.value <= chosen.bound
    for choice in chosen.choices:
        if choice.after is not None:
            assert after.dim(choice.dim).size == choice.after


@pytest.mark.parametrize("budget", [0.5, 0.6, 0.7, 0.8, 1.01])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_mlp_of_factor_pairs_is_planned_as_well_as_enumeration(
    tmp_path: Path, budget: float, seed: int
) -> None:
    """Every joint size of a width and three ranks, dense weights among them: none is better."""
    ranks, hidden, width = (36, 43, 29), 64, 117
    folder = write_checkpoint(
        tmp_path / "model", mlp_of_pairs(hidden, width, ranks), {"intermediate_size": width}
    )
    losses = falling_losses(scan(folder), random.Random(seed))
    dense = 3 * hidden * width
    least = np.inf
    names = [f"{LAYER}.mlp.{x}_proj:rank" for x in ("gate", "up", "down")]
    for new_width in range(120, 150, 8):
        offers = []
        for name, rank in zip(names, ranks, strict=True):
            offer = [(new_width * hidden, 0.0)]
            for size in range(8, 65, 8):
                if abs(size - rank) <= 32 and size <= hidden:
                    lost = losses[name][size] if size < rank else 0.0
                    offer.append((size * (hidden + new_width), lost))
            offers.append(offer)
        for joint in product(*offers):
            if sum(parameters for parameters, _ in joint) <= int(budget * dense):
                least = min(least, sum(lost for _, lost in joint))
    if np.isinf(least):
        with pytest.raises(PlanError):
            plan(folder, "a100", losses=losses, budget=budget)
        return
    chosen = plan(folder, "a100", losses=losses, budget=budget)
    assert -chosen.value <= least + 1e-9
    assert chosen.bound == pytest.approx(chosen.value, abs=1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        {"pin": ["*=keep"], "memory": "1kb"},
        {"pin": ["*=keep"], "budget": 0.1},
        {"uniform": "kind", "budget": 0.05},
        {"pin": ["*:rank=keep"], "latency": "1us"},
    ],
    ids=str,
)
def test_a_limit_holds_where_no_dim_has_a_choice(asked: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        plan(FIXTURES / "asvd_mha_r1", TEETH, **asked)


def test_a_refusal_names_what_was_asked_and_the_least_that_there_is() -> None:
    model = FIXTURES / "asvd_mha_r1"
    with pytest.raises(PlanError) as refusal:
        plan(model, TEETH, memory=1000)
    numbers = [
        int(word.replace(",", "")) for word in str(refusal.value).split() if word[0].isdigit()
    ]
    asked, least = numbers[:2]
    assert asked == 1000
    chosen = plan(model, TEETH, memory=least)
    assert chosen.nbytes[1] == least
    with pytest.raises(PlanError):
        plan(model, TEETH, memory=least - 1)
    with pytest.raises(PlanError):
        plan(model, TEETH, pin=["*=keep"], memory=scan_bytes(model) - 1)
    assert plan(model, TEETH, pin=["*=keep"], memory=scan_bytes(model)).sizes == {}


def scan_bytes(model: Path) -> int:
    return sum(tensor.nbytes for tensor in scan(model).tensors.values())


def test_a_merge_whose_time_is_not_known_is_not_made(tmp_path: Path) -> None:
    """The dense weight has fewer parameters than the pair, which alone was measured."""
    q_proj = f"{LAYER}.self_attn.q_proj"
    folder = write_checkpoint(tmp_path / "model", pair(q_proj, 192, 150, 192))
    known = set()
    for m, size in product((1, 64), (150, 152)):
        known |= {(m, size, 192), (m, 192, size)}
    chosen = plan(folder, FormulaSource(teeth_of(8), frozenset(known)), objective="pad")
    assert [choice.after for choice in chosen.choices] == [152]


def test_the_verdict_on_a_merged_rank_is_the_sources(tmp_path: Path) -> None:
    for n_in, verdict in ((173, "misaligned"), (192, "undecided")):
        q_proj = f"{LAYER}.self_attn.q_proj"
        folder = write_checkpoint(tmp_path / str(n_in), pair(q_proj, 192, 150, n_in))
        (choice,) = plan(folder, "h100", objective="pad").choices
        assert (choice.after, choice.verdict) == (None, verdict)


def test_a_size_that_the_config_could_not_say_is_not_planned(tmp_path: Path) -> None:
    shapes = {f"{LAYER}.mlp.up_proj.weight": (173, 64), f"{LAYER}.mlp.down_proj.weight": (64, 173)}
    table = {"per_layer_config": {"0": {"some_width": 173}}}
    folder = write_checkpoint(tmp_path / "model", shapes, table)
    with pytest.raises(PlanError):
        plan(folder, "h100")


def test_a_model_whose_products_nobody_knows_is_not_planned(tmp_path: Path) -> None:
    """A source that knows the dense product and not the pair would only undo the compression."""
    q_proj = f"{LAYER}.self_attn.q_proj"
    folder = write_checkpoint(tmp_path / "model", pair(q_proj, 192, 100, 192))
    dense = FormulaSource(teeth_of(8), frozenset({(m, 192, 192) for m in (1, 64)}))
    for objective in ("pad", "quality"):
        with pytest.raises(PlanError):
            plan(folder, dense, objective=objective, losses={f"{q_proj}:rank": [0.0] * 101})  # type: ignore[arg-type]
    both = write_checkpoint(
        tmp_path / "both",
        {
            **pair(q_proj, 192, 100, 192),
            f"{LAYER}.mlp.up_proj.weight": (61, 192),
            f"{LAYER}.mlp.down_proj.weight": (192, 61),
        },
    )
    known = {(m, 192, 192) for m in (1, 64)}
    known |= {
        (m, n, k) for m in (1, 64) for size in (61, 64) for n, k in ((size, 192), (192, size))
    }
    chosen = plan(both, FormulaSource(teeth_of(8), frozenset(known)), objective="pad")
    sizes = {choice.dim: (choice.after, choice.verdict) for choice in chosen.choices}
    assert sizes == {f"{q_proj}:rank": (100, "unknown"), f"{LAYER}.mlp:width": (64, "safe")}


def test_a_merge_that_loses_nothing_is_taken_before_a_cut(tmp_path: Path) -> None:
    """Tiles of 24: dense products are faster than any pair, and lose nothing."""
    folder = write_checkpoint(tmp_path / "model", mlp_of_pairs(192, 176, (43, 43, 43)))
    losses = falling_losses(scan(folder), random.Random(0))

    def tiles(m: int, n: int, k: int) -> float:
        return 10.0 + m * -(-n // 24) * 24 * -(-k // 24) * 24 / 1e6

    source = FormulaSource(tiles)
    free = plan(folder, source, losses=losses)
    assert free.latency_us is not None
    merged = dict.fromkeys(dim.name for dim in scan(folder).dims if dim.kind == "rank")
    time = Products(scan(folder), {1: 1.0, 64: 1.0}).time_us(
        source, scan(folder).modules, {**merged, f"{LAYER}.mlp:width": 192}
    )
    assert time is not None
    chosen = plan(folder, source, losses=losses, latency=time.value)
    assert chosen.value == 0.0
    assert [choice.after for choice in chosen.choices if choice.kind == "rank"] == [None] * 3


def test_a_plan_of_experts_with_several_shared_ones_loads(tmp_path: Path) -> None:
    """A config says one number of both widths: they change together."""
    from transformers import AutoModelForCausalLM, DeepseekV2Config

    config = DeepseekV2Config(
        vocab_size=64, hidden_size=64, intermediate_size=96, moe_intermediate_size=51,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4,
        n_shared_experts=2, num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=None,
        kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, n_group=1,
        topk_group=1,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    asked: list[dict[str, Any]] = [{}, {"objective": "pad"}, {"pin": ["*experts.0:width=60"]}]
    for number, options in enumerate(asked):
        chosen = plan(tmp_path / "model", "h100", **options)
        widths = {c.dim: c.after for c in chosen.choices if "expert" in c.dim}
        shared = {size for name, size in widths.items() if "shared" in name}
        others = {size for name, size in widths.items() if "shared" not in name}
        assert len(others) == 1 and shared == {2 * (others.pop() or 0)}
        realign(tmp_path / "model", chosen, tmp_path / str(number))
        AutoModelForCausalLM.from_pretrained(tmp_path / str(number))


def test_losses_by_size_offer_only_those_sizes(tmp_path: Path) -> None:
    q, k = (f"{LAYER}.self_attn.{x}_proj" for x in "qk")
    folder = write_checkpoint(
        tmp_path / "model", {**pair(q, 256, 48, 256), **pair(k, 256, 48, 256)}
    )
    few = {f"{q}:rank": {"40": 800, "32": 1600}, f"{k}:rank": {"40": 8, "32": 16}}
    chosen = plan(folder, "a100", losses=few, budget=0.3)  # type: ignore[arg-type]
    assert {choice.after for choice in chosen.choices} <= {32, 40, 48}
    assert -chosen.value == sum(choice.loss or 0.0 for choice in chosen.choices) > 0
    with pytest.raises(PlanError):  # 24 was not measured
        plan(folder, "a100", losses=few, budget=0.2)  # type: ignore[arg-type]
    as_lists = {name: [0.0] * 3 for name in few}
    with pytest.raises(PlanError):
        plan(folder, "a100", losses=as_lists, budget=0.3)


@pytest.mark.parametrize(
    "losses",
    [
        '{"DIM": [1, "x"]}',
        '{"DIM": [NaN]}',
        '{"DIM": 3}',
        "[1, 2]",
        "{",
        '{"DIM": {"x": 1}}',
        "null",
    ],
)
def test_a_file_of_no_losses_is_refused(tmp_path: Path, losses: str) -> None:
    model = FIXTURES / "asvd_mha_r1"
    name = scan(model).dims[-1].name
    (tmp_path / "losses.json").write_text(losses.replace("DIM", name))
    with pytest.raises(GacprofError):
        plan(model, "h100", losses=tmp_path / "losses.json")


@pytest.mark.parametrize(
    "asked",
    [
        {"budget": float("inf")},
        {"budget": float("nan")},
        {"budget": 80},
        {"window": 1e9},
        {"multiple": 10**9},
        {"multiple": 1.5},
        {"tokens": {1: float("nan")}},
        {"tokens": {1: float("inf")}},
        {"tokens": {"1": 1}},
        {"objective": "fastest"},
        {"uniform": "everything"},
        {"pin": ["*=0"]},
        {"pin": ["*=" + "9" * 5000]},
        {"memory": "12 parsecs"},
    ],
    ids=str,
)
def test_what_nobody_means_is_refused(asked: Mapping[str, Any]) -> None:
    with pytest.raises(GacprofError):
        plan(FIXTURES / "asvd_mha_r1", "h100", **asked)


def test_bytes_are_counted_in_powers_of_two_as_well() -> None:
    model = FIXTURES / "asvd_mha_r1"
    limits = [plan(model, "h100", memory=text).limits["bytes"] for text in ("1GB", "1GiB", "1e9")]
    assert limits == [1e9, 2**30, 1e9]


def test_dims_of_one_kind_are_cut_together_to_what_the_smallest_can_have(tmp_path: Path) -> None:
    """Ranks of 60 and 200 share one size: it is looked for around both."""
    q, k = (f"{LAYER}.self_attn.{x}_proj" for x in "qk")
    folder = write_checkpoint(
        tmp_path / "model", {**pair(q, 512, 60, 512), **pair(k, 512, 200, 512)}
    )
    losses = falling_losses(scan(folder), random.Random(0))
    sizes = []
    for budget in (0.2, 0.25, 0.3):
        chosen = plan(folder, "a100", uniform="kind", losses=losses, budget=budget)
        (size,) = {choice.after for choice in chosen.choices}
        sizes.append(size)
    assert sizes == [48, 64, 72]


def test_a_hidden_size_without_an_order_is_never_cut(tmp_path: Path) -> None:
    sliced = scan(restored("slicegpt_mha_s0.22_r1", tmp_path))
    hidden = [dim for dim in sliced.dims if dim.kind == "hidden" and not dim.ordered]
    assert hidden
    losses = {dim.name: [0.0] * dim.size for dim in hidden}
    chosen = plan(sliced, "h100", losses=losses, budget=1.2)
    assert all(c.after is not None and c.after >= c.before for c in chosen.choices)
    kept = plan(sliced, "h100", pin=["*=keep"])
    assert kept.sizes == {}


def test_a_plan_and_a_diagnosis_agree_on_what_is_safe(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", mlp_of_pairs(64, 173, (51, 40, 45)))
    chosen = plan(folder, TEETH, objective="pad")
    realign(folder, chosen, tmp_path / "out")
    findings = {f.dim.name: f.now.verdict for f in diagnose(tmp_path / "out", TEETH).dims}
    for choice in chosen.choices:
        if choice.after is not None:
            assert choice.verdict == findings[choice.dim]


def test_sizes_that_were_not_compared_are_counted() -> None:
    assert plan(FIXTURES / "asvd_mha_r1", "h100", pin=["*:width=keep"]).not_compared == 0
    assert plan(FIXTURES / "asvd_mha_r1", "h100", window=1.0).not_compared > 0


def test_few_joint_sizes_are_all_compared(tmp_path: Path) -> None:
    """What pins can reach a plan without them reaches, too."""
    folder = restored("palu_mha_gs4_block1", tmp_path)
    pinned = plan(folder, "a100", pin=["*:rank*=8"])
    chosen = plan(folder, "a100", window=1.0, memory=pinned.nbytes[1])
    assert chosen.nbytes[1] <= pinned.nbytes[1]
    assert chosen.not_compared == 0


def test_a_wider_hub_that_slows_one_product_and_speeds_the_class_is_taken(tmp_path: Path) -> None:
    """N of gate and up is slow off 16; padding the width costs down's pair a little."""

    def penalty_on_n(m: int, n: int, k: int) -> float:
        return 0.05 + m * n * k / 1e5 * (1.4 if n % 16 or k % 8 else 1.0)

    shapes = {
        f"{LAYER}.mlp.gate_proj.weight": (100, 64),
        f"{LAYER}.mlp.up_proj.weight": (100, 64),
        **pair(f"{LAYER}.mlp.down_proj", 64, 24, 100),
    }
    folder = write_checkpoint(tmp_path / "model", shapes, {"intermediate_size": 100})
    losses = falling_losses(scan(folder), random.Random(0))
    for asked in ({"losses": losses}, {"objective": "pad"}):
        chosen = plan(folder, FormulaSource(penalty_on_n), **asked)  # type: ignore[arg-type]
        assert {choice.after for choice in chosen.choices} == {112, 24}
        assert chosen.latency_us is not None
        assert chosen.latency_us[1].value < chosen.latency_us[0].value


def test_a_limit_on_time_leaves_out_what_has_no_time(tmp_path: Path) -> None:
    q_proj = f"{LAYER}.self_attn.q_proj"
    folder = write_checkpoint(tmp_path / "model", pair(q_proj, 192, 107, 192))
    known = set()
    for m, size in product((1, 64), range(96, 129)):
        known |= {(m, size, 192), (m, 192, size)}
    source = FormulaSource(teeth_of(8), frozenset(known))
    chosen = plan(folder, source, objective="pad", latency="1s")
    assert chosen.sizes == {f"{q_proj}:rank": 112}
    with pytest.raises(PlanError):
        plan(folder, source, objective="pad", latency="1us")


def test_a_larger_size_loses_what_the_present_one_does(tmp_path: Path) -> None:
    q_proj = f"{LAYER}.self_attn.q_proj"
    folder = write_checkpoint(tmp_path / "model", pair(q_proj, 192, 51, 192))
    losses = {f"{q_proj}:rank": {48: 0.1, 51: 0.3}}
    (choice,) = plan(folder, "h100", losses=losses).choices
    assert (choice.after, choice.loss) == (48, 0.1)


@pytest.mark.parametrize("gpu", ["h100", "a100", "l4", "b200"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_plan_that_pads_takes_the_sizes_that_diagnose_names(gpu: str, tp: int) -> None:
    folder = FIXTURES / "asvd_mha_r1"
    named = {finding.dim.name: finding.target_size for finding in diagnose(folder, gpu, tp=tp).dims}
    planned = plan(folder, gpu, tp=tp, objective="pad").choices
    assert {choice.dim: choice.after for choice in planned} == named


@pytest.mark.parametrize("budget", [None, 1.0, 0.9])
def test_without_need_nothing_is_cut_however_noisy_the_map(budget: float | None) -> None:
    """A rank of 74 is undecided there and the next size that is surely safe is 68."""
    noisy = FIXTURES.parent / "maps" / "asvd-on-a-busy-cpu.json"
    chosen = plan(FIXTURES / "asvd_mha_r1", noisy, dtype="float32", budget=budget)
    assert chosen.value == chosen.bound == 0
    assert all(choice.after is None or choice.after >= choice.before for choice in chosen.choices)
