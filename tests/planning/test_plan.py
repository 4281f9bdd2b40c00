"""Plans keep to limits, pins and multiples, and say what they did."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formula_source import FormulaSource, teeth_of, write_checkpoint
from safetensors.numpy import save_file
from tool_folders import FIXTURES

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import GacprofError, PlanError
from gacprof.core.sizes import Use
from gacprof.diagnosing.diagnosis import diagnose
from gacprof.kernels.rules import Rules
from gacprof.planning.pareto import pareto
from gacprof.planning.plan import Plan, footprint, load_plan
from gacprof.planning.planner import plan
from gacprof.planning.quality import energy_lost
from gacprof.realigning.realign import realign
from gacprof.workload.products import Products

SOURCE = FormulaSource(teeth_of(8))
ATTENTION = "model.layers.0.self_attn"


@pytest.fixture(scope="module")
def asvd() -> Inventory:
    return scan(FIXTURES / "asvd_mha_r1")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """Three pairs whose entries are ordered, of spectra that fall at different rates."""
    folder = tmp_path_factory.mktemp("pairs")
    draw = np.random.default_rng(0)
    tensors = {}
    for i, (part, rank) in enumerate((("q", 61), ("k", 83), ("v", 45))):
        strength = np.exp(-np.arange(rank) * 0.02 * (i + 1)) ** 0.5
        v = np.linalg.qr(draw.standard_normal((192, rank)))[0].T * strength[:, None]
        u = np.linalg.qr(draw.standard_normal((160, rank)))[0] * strength
        tensors[f"{ATTENTION}.{part}_proj.BLinear.weight"] = np.ascontiguousarray(v, np.float32)
        tensors[f"{ATTENTION}.{part}_proj.ALinear.weight"] = np.ascontiguousarray(u, np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return scan(folder)


def sizes_of(chosen: Plan) -> dict[str, int | None]:
    return {choice.dim: choice.after for choice in chosen.choices}


def test_without_a_limit_nothing_is_lost_and_padding_is_least(asvd: Inventory) -> None:
    chosen = plan(asvd, SOURCE, pin=["*:width=keep"])
    ranks = [choice for choice in chosen.choices if choice.kind == "rank" and choice.after]
    assert all(c.after % 8 == 0 and 0 <= c.after - c.before < 8 for c in ranks if c.after)
    assert {choice.verdict for choice in ranks} == {"safe"} and chosen.value == 0.0
    assert chosen.latency_us is not None
    assert chosen.latency_us[1].value < chosen.latency_us[0].value


def test_planning_the_output_again_changes_nothing(asvd: Inventory, tmp_path: Path) -> None:
    realign(asvd, plan(asvd, SOURCE), tmp_path / "out")
    again = scan(tmp_path / "out")
    assert plan(again, SOURCE).sizes == {}
    assert {finding.now.verdict for finding in diagnose(again, SOURCE).dims} == {"safe"}


def test_what_a_plan_says_it_takes_is_what_the_checkpoint_then_has(
    asvd: Inventory, tmp_path: Path
) -> None:
    chosen = plan(asvd, SOURCE, budget=0.7)
    assert None in sizes_of(chosen).values() or chosen.sizes
    realign(asvd, chosen, tmp_path / "out")
    after = scan(tmp_path / "out")
    assert chosen.parameters == (asvd.parameters, after.parameters)
    assert chosen.nbytes[1] == footprint(after, after.tensors.values())[1]
    products = Products(asvd, chosen.tokens), Products(after, chosen.tokens)
    before_us = products[0].time_us(SOURCE, products[0].inventory.modules, chosen.sizes)
    after_us = products[1].time_us(SOURCE, products[1].inventory.modules)
    assert before_us is not None and after_us is not None
    assert before_us.value == pytest.approx(after_us.value)


@pytest.mark.parametrize("share", [0.62, 0.66, 0.7, 0.8])
def test_a_budget_is_kept_and_no_choice_keeps_more(pairs: Inventory, share: float) -> None:
    chosen = plan(pairs, SOURCE, budget=share, window=0.6)
    dense = 3 * 160 * 192
    assert chosen.parameters[1] <= share * dense
    options = []
    for dim in pairs.dims:
        lost = energy_lost(pairs, dim)
        sizes = [s for s in range(8, 129, 8) if abs(s - dim.size) <= max(32, 0.6 * dim.size)]
        options.append([(s * 352, lost[s] if s < dim.size else 0.0) for s in sizes])
        options[-1].append((160 * 192, 0.0))
    least = min(
        sum(loss for _, loss in choice)
        for choice in product(*options)
        if sum(parameters for parameters, _ in choice) <= share * dense
    )
    assert -chosen.value == pytest.approx(least, abs=1e-6)
    assert chosen.bound == pytest.approx(-least, abs=1e-5) and chosen.value <= chosen.bound


def test_energy_is_that_of_the_singular_values(pairs: Inventory) -> None:
    dim = pairs.dim(f"{ATTENTION}.q_proj:rank")
    strength = np.exp(-np.arange(61) * 0.02) ** 2
    lost = energy_lost(pairs, dim)
    assert lost[40] == pytest.approx(strength[40:].sum() / strength.sum(), rel=1e-3)
    assert lost[0] == pytest.approx(1.0) and lost[61] == 0.0


@pytest.mark.parametrize("rank", [130, 1500])
def test_energy_is_exact_over_many_blocks(tmp_path: Path, rank: int) -> None:
    draw = np.random.default_rng(0)
    first = draw.normal(size=(rank, 1024)).astype(np.float32)
    second = draw.normal(size=(1200, rank)).astype(np.float32)
    pair = {"BLinear": first, "ALinear": second}
    save_file(
        {f"{ATTENTION}.q_proj.{name}.weight": factor for name, factor in pair.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text("{}")
    inventory = scan(tmp_path)
    energy = (first.astype(float) ** 2).sum(1) * (second.astype(float) ** 2).sum(0)
    lost = energy_lost(inventory, inventory.dims[0])
    expected = energy[::-1].cumsum()[::-1] / energy.sum()
    assert lost[:-1] == pytest.approx(expected.tolist(), rel=1e-6)


class CountingRules(Rules):
    """Rules that count how often they are asked."""

    questions = 0

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> Any:
        self.questions += 1
        return super().judge(uses, sizes)


def test_a_source_is_asked_few_times_a_dim(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    shapes = {}
    for layer in range(8):
        mlp = f"model.layers.{layer}.mlp"
        ranks = draw.integers(200, 400, 3).tolist()
        for part, rank in zip(("gate", "up"), ranks[:2], strict=True):
            shapes[f"{mlp}.{part}_proj.ALinear.weight"] = (1400, rank)
            shapes[f"{mlp}.{part}_proj.BLinear.weight"] = (rank, 512)
        shapes[f"{mlp}.down_proj.ALinear.weight"] = (512, ranks[2])
        shapes[f"{mlp}.down_proj.BLinear.weight"] = (ranks[2], 1400)
    inventory = scan(write_checkpoint(tmp_path / "mlps", shapes))
    diagnosing, planning = CountingRules("h100"), CountingRules("h100")
    diagnose(inventory, diagnosing)
    plan(inventory, planning, objective="pad")
    assert diagnosing.questions <= 2 * len(inventory.dims)
    assert planning.questions <= 4 * len(inventory.dims)


def test_limits_of_memory_and_time_hold_together(pairs: Inventory) -> None:
    free = plan(pairs, SOURCE)
    assert free.latency_us is not None
    memory, latency = 0.8 * free.nbytes[1], 0.95 * free.latency_us[1].value
    chosen = plan(pairs, SOURCE, memory=memory, latency=f"{latency / 1e3}ms", window=0.6)
    assert chosen.nbytes[1] <= memory and chosen.latency_us is not None
    assert chosen.latency_us[1].value <= latency * (1 + 1e-6)
    assert chosen.value < free.value and chosen.value <= chosen.bound
    assert set(chosen.limits) == {"bytes", "latency_us"}


@pytest.mark.parametrize(
    "limits", [{"budget": 0.01}, {"memory": "1kB"}, {"latency": "1us"}, {"memory": "much"}]
)
def test_a_limit_that_cannot_be_met_is_refused(asvd: Inventory, limits: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        plan(asvd, SOURCE, **limits)  # type: ignore[arg-type]


def test_a_limit_on_time_needs_every_latency(asvd: Inventory) -> None:
    with pytest.raises(PlanError, match="sweep --model"):
        plan(asvd, FormulaSource(teeth_of(8), frozenset({(1, 1, 1)})), latency="1s")


def test_losses_by_dim_decide_where_they_are_given(pairs: Inventory) -> None:
    q, k, v = (f"{ATTENTION}.{part}_proj:rank" for part in "qkv")
    losses = {
        q: [5.0 - r / 20 for r in range(100)],
        k: [0.0],
        v: [0.1 - r / 600 for r in range(60)],
    }
    chosen = plan(pairs, SOURCE, losses=losses, window=0.6, pin=[f"{k}=48"], budget=0.6)
    sizes = sizes_of(chosen)
    assert sizes[k] == 48 and sizes[v] is not None and sizes[v] < 45
    assert sizes[q] is None or sizes[q] > 61


def test_pins_multiples_and_shared_sizes_hold(asvd: Inventory) -> None:
    pinned = sizes_of(plan(asvd, SOURCE, pin=["*.mlp:width=704", "*q_proj:rank=keep"]))
    for name, size in pinned.items():
        if fnmatchcase(name, "*.mlp:width"):
            assert size == 704
        if fnmatchcase(name, "*q_proj:rank"):
            assert size == asvd.dim(name).size
    multiples = sizes_of(plan(asvd, SOURCE, multiple=32))
    assert {size % 32 for size in multiples.values() if size} == {0}
    uniform = sizes_of(plan(asvd, SOURCE, uniform="role", objective="pad"))
    for role in {dim.role for dim in asvd.dims if dim.kind == "rank"}:
        dims = [dim for dim in asvd.dims if (dim.kind, dim.role) == ("rank", role)]
        sizes = {uniform[dim.name] for dim in dims}
        assert len(sizes) == 1 and (None in sizes or min(sizes) >= max(d.size for d in dims))


@pytest.mark.parametrize("pin", ["nothing=8", "*:rank=some", "*:rank", "*:rank=0"])
def test_a_pin_that_cannot_be_had_is_refused(asvd: Inventory, pin: str) -> None:
    with pytest.raises(PlanError):
        plan(asvd, SOURCE, pin=[pin])


def test_the_papers_value_grows_to_the_budget(pairs: Inventory) -> None:
    scores = {dim.name: score for dim, score in zip(pairs.dims, (3.0, 1.0, 2.0), strict=True)}
    chosen = plan(pairs, SOURCE, objective="gac", scores=scores)
    assert chosen.parameters[1] <= chosen.parameters[0] and chosen.value <= chosen.bound
    after = sizes_of(chosen)
    gained = [
        scores[dim.name] * ((after[dim.name] or 0) - dim.size) * dim.params_per_unit
        for dim in pairs.dims
    ]
    assert chosen.value == pytest.approx(sum(gained)) and chosen.value > 0


def test_rules_without_latencies_can_be_planned_by(asvd: Inventory) -> None:
    chosen = plan(asvd, "h100", objective="pad")
    assert chosen.latency_us is None
    assert {size % 8 for size in sizes_of(chosen).values() if size} == {0}


@pytest.mark.parametrize("tp", [1, 8])
def test_a_diagnosis_finds_nothing_to_pad_after_a_plan(
    asvd: Inventory, tmp_path: Path, tp: int
) -> None:
    realign(asvd, plan(asvd, "h100", tp=tp), tmp_path / "out")
    assert "misaligned" not in diagnose(scan(tmp_path / "out"), "h100", tp=tp).counts


def test_pinned_sizes_are_judged_and_their_losses_counted(asvd: Inventory, tmp_path: Path) -> None:
    chosen = plan(asvd, "h100", pin=["*:rank=50"])
    realign(asvd, chosen, tmp_path / "out")
    findings = {f.dim.name: f.now.verdict for f in diagnose(scan(tmp_path / "out"), "h100").dims}
    ranks = [choice for choice in chosen.choices if choice.kind == "rank"]
    assert {choice.verdict for choice in ranks} == {"misaligned"}
    assert all(choice.verdict == findings[choice.dim] for choice in ranks)
    lost = sum(choice.loss for choice in chosen.choices)
    assert lost > 1 and chosen.value == chosen.bound == pytest.approx(-lost)


def test_a_pinned_dim_leaves_those_that_share_a_size(asvd: Inventory) -> None:
    options: dict[str, Any] = {"objective": "pad", "uniform": "kind", "multiple": 8}
    name = next(dim.name for dim in asvd.dims if dim.kind == "rank" and dim.size % 8)
    pinned = plan(asvd, "h100", pin=[f"{name}=keep"], **options)
    after = {choice.dim: choice.after for choice in pinned.choices if choice.kind == "rank"}
    assert after.pop(name) == asvd.dim(name).size
    assert len(set(after.values())) == 1
    assert all(choice.after is None or choice.after >= choice.before for choice in pinned.choices)


@pytest.mark.parametrize(
    "options",
    [{"multiple": 0}, {"tp": 0}, {"window": -1.0}, {"budget": -1.0}, {"memory": "1.2.3GB"}],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(asvd: Inventory, options: dict[str, Any]) -> None:
    with pytest.raises(GacprofError):
        plan(asvd, SOURCE, **options)


def test_a_file_without_losses_is_refused(asvd: Inventory) -> None:
    with pytest.raises(PlanError):
        plan(asvd, SOURCE, losses=FIXTURES / "asvd_mha_r1" / "config.json")


def test_a_saved_plan_reads_back_and_another_schema_is_refused(
    asvd: Inventory, tmp_path: Path
) -> None:
    chosen = plan(asvd, SOURCE, budget=0.8)
    chosen.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == chosen
    old = (tmp_path / "plan.json").read_text().replace("gacprof.plan/2", "gacprof.plan/1")
    (tmp_path / "old.json").write_text(old)
    with pytest.raises(GacprofError, match="gacprof plan"):
        load_plan(tmp_path / "old.json")


def test_more_budget_loses_no_more(pairs: Inventory) -> None:
    table = pareto(pairs, SOURCE, budgets=(0.4, 0.5, 0.6, 0.7))
    assert list(table["loss"]) == sorted(table["loss"], reverse=True)
    assert list(table["parameters"]) == sorted(table["parameters"])


def test_budgets_that_no_plan_meets_have_no_row(pairs: Inventory) -> None:
    table = pareto(pairs, SOURCE, budgets=(0.001, 0.7))
    assert list(table["budget"]) == [0.7]
    with pytest.raises(PlanError):
        pareto(pairs, SOURCE, budgets=(0.001,))
