"""What engines demand of sizes is met exactly, or refused by name.

The rules are written down here a second time, one line an engine, from the engines' own checks, and
every size is tried against them.
"""

from itertools import product

import pytest
from checkpoint_making import checkpoint
from planted import TOKENS, planted_map_of

from gacprof.checkpoint import scan
from gacprof.core.errors import PlanError
from gacprof.planning import Constraints, plan
from gacprof.planning.axes import bounds_of
from gacprof.planning.presets import ENGINES, parse_preset
from gacprof.planning.requirements import requirements
from gacprof.solver import InfeasibleBudget

TWO = "vllm,tp=2"
HIDDEN, HEADS = 256, 8
LAYERS = (683, 700, 517)
SIZES = range(1, 3000)


def layer(index, width, hidden=HIDDEN):
    at = f"model.layers.{index}"
    return {
        **{f"{at}.self_attn.{x}_proj.weight": (hidden, hidden) for x in "qkvo"},
        f"{at}.mlp.gate_proj.weight": (width, hidden),
        f"{at}.mlp.up_proj.weight": (width, hidden),
        f"{at}.mlp.down_proj.weight": (hidden, width),
    }


CONFIG = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": 1024}


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """Three layers of three odd widths."""
    shapes = {"model.embed_tokens.weight": (64, HIDDEN), "lm_head.weight": (64, HIDDEN)}
    for index, width in enumerate(LAYERS):
        shapes |= layer(index, width)
    return checkpoint(tmp_path_factory.mktemp("pruned"), shapes, CONFIG)


@pytest.fixture(scope="module")
def factored(tmp_path_factory):
    """One projection as a pair of rank 76, beside a width."""
    at = "model.layers.0.self_attn.q_proj"
    shapes = layer(0, 683)
    del shapes[f"{at}.weight"]
    shapes |= {f"{at}.BLinear.weight": (76, HIDDEN), f"{at}.ALinear.weight": (HIDDEN, 76)}
    config = CONFIG | {"truncation_ranks": {at: 76}}
    return checkpoint(tmp_path_factory.mktemp("factored"), shapes, config)


@pytest.fixture(scope="module")
def mapped():
    """The planted device's map of a checkpoint, with sizes for a preset; each made once."""
    made = {}

    def make(folder, preset=None):
        if (folder, preset) not in made:
            inventory = scan(folder)
            asked = requirements(inventory, preset)
            multiples = {name: required.multiple for name, required in asked.by_dim.items()}
            tp = asked.preset.tp if asked.preset else 1
            made[folder, preset] = planted_map_of(
                inventory, dtype="float16", multiples=multiples, tp=tp
            )
        return made[folder, preset]

    return make


WIDTHS = {
    "transformers": lambda w: True,
    "vllm": lambda w: True,
    "vllm,tp=4": lambda w: w % 4 == 0,
    # the hidden size is a multiple of 128, so that Marlin's other side needs 64 only
    "vllm,marlin": lambda w: w % 64 == 0,
    "vllm,tp=4,marlin": lambda w: w % 4 == 0 and w // 4 % 64 == 0,
    "vllm,tp=8,marlin": lambda w: w % 8 == 0 and w // 8 % 64 == 0,
    "sglang,marlin": lambda w: w % 256 == 0,
    "vllm,tp=2,fp8-block": lambda w: w % 2 == 0 and w // 2 % 128 == 0,
    "vllm,nvfp4,gpu=b200": lambda w: w % 32 == 0,
    "vllm==0.13,nvfp4,gpu=b200": lambda w: w % 32 == 0,
    "vllm,awq-g64,gpu=a100": lambda w: w % 64 == 0,
    "vllm,amx": lambda w: w % 16 == 0 and w % 32 == 0,
    "gptq": lambda w: w % 128 == 0 and w % 8 == 0,
    "gptq,group=32,tp=2": lambda w: w % 2 == 0 and w // 2 % 32 == 0 and w // 2 % 8 == 0,
    "awq,group=64": lambda w: w % 64 == 0 and w % 8 == 0,
    "sglang": lambda w: w % 256 == 0,
    "sglang,transformers": lambda w: True,
    "trt-llm": lambda w: w % 256 == 0,
    "trt-llm,tp=8": lambda w: w % 256 == 0 and w % 8 == 0,
    "mlx": lambda w: w % 256 == 0,
    "gguf": lambda w: True,
    "gguf,bf16": lambda w: True,
    "gguf,q8_0": lambda w: w % 32 == 0,
    "llama.cpp,q4_k_m": lambda w: w % 256 == 0,
}


def test_a_width_is_asked_for_exactly_what_the_engine_takes(pruned):
    assert {text.partition(",")[0].partition("==")[0] for text in WIDTHS} == set(ENGINES)
    inventory = scan(pruned)
    for text, takes in WIDTHS.items():
        found = requirements(inventory, text)
        for dim in inventory.dims:
            bounds = bounds_of([dim], Constraints(preset=text), found)
            assert [s for s in SIZES if bounds.allow(s)] == [s for s in SIZES if takes(s)], text


def test_gate_and_up_in_one_weight_count_twice_on_its_axis(tmp_path):
    mlp = "model.layers.0.mlp"
    shapes = {f"{mlp}.gate_up_proj.weight": (1000, 64), f"{mlp}.down_proj.weight": (64, 500)}
    inventory = scan(checkpoint(tmp_path, shapes, {"intermediate_size": 500}))
    asked = requirements(inventory, "gptq,group=4").by_dim[f"{mlp}:width"]
    taken = [s for s in SIZES if 2 * s % 8 == 0 and s % 4 == 0]
    assert [s for s in SIZES if s % asked.multiple == 0] == taken


def test_a_rank_is_the_outputs_of_one_product_and_the_inputs_of_the_next(factored):
    asked = requirements(scan(factored), "gptq,group=32,marlin").by_dim
    rank = asked["model.layers.0.self_attn.q_proj:rank"]
    taken = [r for r in SIZES if r % 64 == 0]
    assert [r for r in SIZES if r % rank.multiple == 0] == taken
    assert "Marlin's tiles" in rank.reasons


@pytest.mark.parametrize("text", ["vllm,tp=8,marlin", "awq,group=64"])
def test_a_padded_plan_takes_the_least_size_that_meets_map_and_engine(pruned, mapped, text):
    cliff_map = mapped(pruned, text)
    made = plan(
        pruned, cliff_map, tokens=TOKENS, objective="pad", constraints=Constraints(preset=text)
    )
    free = plan(pruned, mapped(pruned), tokens=TOKENS, objective="pad")
    assert made.certificate.proved
    for choice, width in zip(made.choices, LAYERS, strict=True):
        assert all(WIDTHS[text](size) and size % 8 == 0 for size in choice.candidates)
        assert choice.after == min(s for s in SIZES if s >= width and WIDTHS[text](s))
    assert made.budget.used >= free.budget.used
    assert made.preset.text == text
    assert sum(demand.dims for demand in made.preset.demands) >= len(LAYERS)
    assert all(demand.source for demand in made.preset.demands)


@pytest.mark.parametrize("objective", ["pad", "energy"])
def test_a_latency_limit_is_on_the_plan_though_ranks_cannot_share_the_model_as_it_is(
    pruned, mapped, objective
):
    """683 and 517 are odd: two ranks cannot run the model as it is, so it has no time."""
    asked = {"tokens": TOKENS, "objective": objective, "constraints": Constraints(preset=TWO)}
    free = plan(pruned, mapped(pruned, TWO), **asked)
    assert free.predicted_before_us is None
    limit = free.predicted_after_us * 1.001
    made = plan(pruned, mapped(pruned, TWO), latency_limit_us=limit, **asked)
    assert made.predicted_after_us <= limit and made.certificate.proved
    assert any("2 shards cannot divide" in warning for warning in made.warnings)
    assert {size % 16 for choice in made.choices for size in choice.candidates} == {0}  # 8 a rank
    with pytest.raises(InfeasibleBudget, match=r"the nearest (is|takes) \d") as refused:
        plan(pruned, mapped(pruned, TWO), latency_limit_us=1.0, **asked)
    assert "\n" not in str(refused.value)


def test_a_budget_under_a_preset_is_kept_by_the_best_of_all_combinations(factored, mapped):
    """Ranks and widths in one knapsack: the value of the plan is the largest there is."""
    text = "gptq,group=16"
    cliff_map = mapped(factored, text)
    inventory = scan(factored)
    budget = int(inventory.parameters * 0.99)
    settings = {"tokens": TOKENS, "objective": "gac", "budget_parameters": budget}
    made = plan(inventory, cliff_map, constraints=Constraints(preset=text), **settings)
    assert made.budget.checkpoint_after <= budget
    rows = [choice.candidates for choice in made.choices]
    assert all(size % 16 == 0 for row in rows for size in row)
    cost = [dim.params_per_unit for dim in inventory.dims]
    now = [dim.size for dim in inventory.dims]
    rest = inventory.parameters - sum(c * s for c, s in zip(cost, now, strict=True))
    gains = [
        sum(c * (s - n) for c, s, n in zip(cost, sizes, now, strict=True))
        for sizes in product(*rows)
        if rest + sum(c * s for c, s in zip(cost, sizes, strict=True)) <= budget
    ]
    assert made.certificate.value == pytest.approx(max(gains))


def test_a_map_without_such_sizes_names_the_layer_the_demand_and_the_sweep(pruned, mapped):
    constraints = Constraints(preset="vllm,tp=8,marlin")
    with pytest.raises(PlanError) as refused:
        plan(pruned, mapped(pruned), tokens=TOKENS, objective="pad", constraints=constraints)
    message = str(refused.value)
    assert "\n" not in message and "model.layers.0.mlp:width must be a multiple of 512" in message
    assert "Marlin's tiles" in message and "8 shards" in message
    assert "'gacprof sweep --for CHECKPOINT --preset vllm,tp=8,marlin' measures such" in message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"preset": "vllm,tp=8,marlin", "most": {"*": 500}}, "at most 500 and a multiple of 512"),
        ({"preset": "gguf,q4_k", "pinned": {"*layers.0*": 684}},
         r"pinned to 684 and must be a multiple of 256 \(gguf,q4_k"),
    ],
)  # fmt: skip
def test_bounds_and_pins_against_the_engine_are_refused(pruned, mapped, asked, message):
    with pytest.raises(PlanError, match=message):
        plan(
            pruned, mapped(pruned), tokens=TOKENS, objective="pad",
            constraints=Constraints(**asked),
        )  # fmt: skip


def test_an_engine_that_holds_no_factor_pairs_says_so(factored):
    for text in ("vllm", "transformers", "sglang,transformers", "vllm,marlin"):
        assert requirements(scan(factored), text).preset.text == text
    for text in ("gguf", "gguf,q4_k", "llama.cpp", "trt-llm", "mlx", "sglang"):
        with pytest.raises(PlanError, match=r"cannot express the factor pair of .*q_") as refused:
            requirements(scan(factored), text)
        assert "realign MODEL --fuse" in str(refused.value)


def test_shards_share_heads_evenly_or_are_refused(pruned):
    assert requirements(scan(pruned), "vllm,tp=8").preset.tp == 8
    with pytest.raises(PlanError, match=r"3 shards cannot share the 8 heads .* tp of 1, 2, 4, 8"):
        requirements(scan(pruned), "vllm,tp=3")


def test_what_no_plan_changes_is_refused_or_noted_as_the_engine_does_it(tmp_path):
    narrow = CONFIG | {"hidden_size": 80, "num_attention_heads": 5}
    inventory = scan(checkpoint(tmp_path, layer(0, 683, hidden=80), narrow))
    for text, multiple in (("gptq", 128), ("gguf,q8_0", 32)):  # 32-blocks have no fallback
        with pytest.raises(PlanError, match=rf"are 80, no multiple of {multiple}"):
            requirements(inventory, text)
    notes = " ".join(requirements(inventory, "gguf,q4_k").unmet)
    assert "are 80, no multiple of 256" in notes and "f16" in notes and "more like it)" in notes
    assert requirements(inventory, "gptq,group=16").unmet == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vlm", "no preset is called 'vlm': there are transformers, vllm"),
        ("", "no preset is called ''"),
        ("vllm,tp=0", "write tp=N with a positive whole number"),
        ("vllm,tp", "not understood|write tp=N"),
        ("vllm,tp=", "not understood at 'tp='"),
        ("vllm,tp=2,tp=4", "not understood at 'tp=4'"),
        ("vllm,,marlin", "not understood at ''"),
        ("vllm,marlin=3", "marlin takes no value"),
        ("vllm,q9_k", "vllm has no option 'q9_k'"),
        ("gguf,q4_k,q8_0", "names two types: q4_k and q8_0"),
        ("gguf,tp=2", "gguf has no option 'tp'"),
        ("gptq,group=100,marlin", "Marlin kernels know groups of 32, 64, 128 only"),
        ("sglang,transformers,tp=2", "custom code runs on one shard"),
        ("trt-llm,gptq-g128", "what trt-llm asks of gptq-g128 was not read"),
    ],
)
def test_a_preset_that_there_is_not_is_refused_in_one_line(text, message):
    with pytest.raises(PlanError, match=message) as refused:
        parse_preset(text)
    assert "\n" not in str(refused.value)
