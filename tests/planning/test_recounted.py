"""What a plan says of itself, counted again from its file, the headers and the map alone."""

import math

import pytest
from planted import TOKENS

from gacprof.checkpoint import scan
from gacprof.core.errors import PlanError
from gacprof.planning import Plan, plan
from gacprof.planning.costs import dense_parameters, footprint, planned
from gacprof.planning.objectives import objective
from gacprof.resizing import realign

NAMES = (
    "asvd_mha_r1",
    "palu_mha_gs4_block1",
    "svdllm_mha_0.6",
    "llmpruner_mha_global_mlp_0.3",
    "slicegpt_mha_s0.22_r1",
    "torchpruning_mha_0.3",
)


def shapes_after(inventory, plan):
    """Tensor → shape with every choice of the plan applied; fused modules become one tensor."""
    sizes = {c.dim: c.after for c in plan.choices}
    grown, dropped, dense = {}, set(), []
    for dim in inventory.dims:
        after = sizes.get(dim.name, dim.size)
        for place in dim.places:
            if after is not None:
                key = place.tensor, place.axis
                grown[key] = grown.get(key, 0) + after - dim.size
    for module in inventory.modules:
        if any(name in sizes and sizes[name] is None for name in module.dims):
            dropped |= {g.weight for g in module.gemms}
            out = module.out_features + grown.get((module.gemms[-1].weight, 0), 0)
            dense.append((out, module.in_features + grown.get((module.gemms[0].weight, 1), 0)))
    shapes = {
        name: tuple(n + grown.get((name, axis), 0) for axis, n in enumerate(t.shape))
        for name, t in inventory.tensors.items()
        if name not in dropped
    }
    return shapes, dense


def counted(inventory, plan):
    shapes, dense = shapes_after(inventory, plan)
    own = [s for name, s in shapes.items() if not name.endswith("rotary_emb.inv_freq")]
    return sum(math.prod(shape) for shape in [*own, *dense])


def timed(inventory, cliff_map, plan):
    """Σ weight · latency over the workload, of every product of a module with a planned dim."""
    shapes, dense = shapes_after(inventory, plan)
    products = [
        (*shapes[gemm.weight], gemm.bias)
        for module in inventory.modules
        if module.dims
        for gemm in module.gemms
        if gemm.weight in shapes
    ]
    products += [(*shape, False) for shape in dense]
    flags = {"cache": "cold"}
    return sum(
        weight
        * cliff_map.latency(
            "linear", {"M": m, "N": n, "K": k}, plan.workload.dtype, flags | {"bias": bias}
        ).latency_us
        for m, weight in plan.workload.tokens.items()
        for n, k, bias in products
    )


@pytest.mark.parametrize("aim", ["pad", "gac"])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_budget_and_time_are_what_the_plan_says(planted, name, aim, tmp_path):
    inventory, cliff_map = planted(name)
    # A hundredth more than there are: sizes in no order (SliceGPT's) can only be padded.
    budget = inventory.parameters * 101 // 100 if aim == "gac" else None
    asked = {"tokens": TOKENS, "dtype": "float32", "budget_parameters": budget}
    made = plan(inventory, cliff_map, objective=aim, **asked)
    made.save(tmp_path / "plan.json")
    saved = Plan.load(tmp_path / "plan.json")
    after = counted(inventory, saved)
    assert saved.budget.checkpoint_before == inventory.parameters
    assert saved.budget.checkpoint_after == after
    assert saved.budget.used - saved.budget.before == after - inventory.parameters
    written = {place.tensor for dim in inventory.dims for place in dim.places}
    assert saved.budget.before == sum(inventory.tensors[name].numel for name in written)
    if budget is not None:
        assert after <= budget and saved.budget.used <= saved.budget.limit
    if saved.predicted_after_us is not None:
        assert saved.predicted_after_us == pytest.approx(timed(inventory, cliff_map, saved))
    assert saved.certificate.value <= saved.certificate.bound
    assert saved.certificate.gap == pytest.approx(saved.certificate.bound - saved.certificate.value)


@pytest.mark.parametrize("aim", ["pad", "energy", "latency", "gac"])
def test_the_value_is_that_of_the_whole_plan(planted, aim):
    inventory, cliff_map = planted("asvd_mha_r1")
    made = plan(
        inventory, cliff_map, objective=aim, tokens=TOKENS, budget_parameters=inventory.parameters
        if aim != "pad" else None,
    )  # fmt: skip
    units = {dim.name: dim.params_per_unit for dim in inventory.dims}
    value = {
        "pad": lambda: -made.budget.used,
        "energy": lambda: sum(c.energy_kept for c in made.choices),
        "latency": lambda: -made.predicted_after_us,
        "gac": lambda: sum((c.after - c.before) * units[c.dim] for c in made.choices),
    }[aim]()
    assert made.certificate.value == pytest.approx(value)
    assert made.certificate.measures == objective(aim).measures
    assert made.certificate.proved or "judged with other sizes" in made.certificate.notes[-1]


@pytest.mark.parametrize("settings", [{"budget": 0.8}, {"objective": "latency", "budget": 1.2}])
def test_the_realigned_checkpoint_has_the_parameters_and_bytes_that_were_planned(
    asvd, planted_map, tmp_path, settings
):
    made = plan(scan(asvd), planted_map, tokens=TOKENS, **settings)
    realign(asvd, made, tmp_path / "out")
    after = scan(tmp_path / "out")
    assert after.parameters == made.budget.checkpoint_after
    assert sum(t.nbytes for t in after.tensors.values()) == made.memory.after


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_dense_size_is_that_of_the_dense_weights(planted, name):
    """Undoing all factors leaves as many parameters as the share of a budget is counted from."""
    inventory, _ = planted(name)
    ranks = {d.name: None for d in inventory.dims if d.kind == "rank"}
    rest = inventory.parameters - planned(inventory, inventory.dims).parameters
    assert dense_parameters(inventory) + rest == footprint(inventory, ranks).parameters


def test_parameters_that_no_plan_can_change_are_those_of_other_weights(planted):
    inventory, cliff_map = planted("svdllm_mha_0.6")
    written = {place.tensor for dim in inventory.dims for place in dim.places}
    rest = inventory.parameters - sum(inventory.tensors[tensor].numel for tensor in written)
    assert rest > 0
    with pytest.raises(PlanError, match=f"fewer than the {rest:,} that no plan can change"):
        plan(inventory, cliff_map, objective="pad", tokens=TOKENS, budget_parameters=rest)
