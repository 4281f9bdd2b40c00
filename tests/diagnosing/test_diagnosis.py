"""Diagnoses of the tools' checkpoints, by maps, by rules and by a formula."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from formula_source import FormulaSource, stairs_of, teeth_of, write_checkpoint
from planted import TOKENS, planted_map_of
from safetensors.torch import save_file
from tool_checkpoints import checkpoint
from tool_folders import FIXTURES, restored

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan
from gacprof.cliffmap.cliffmap import CliffMap, Curve
from gacprof.core.errors import ConfigError, MapError, PlanError
from gacprof.core.points import Axis, Environment
from gacprof.core.sizes import TOLERANCE, Interval, SizeVerdict, seems_safe
from gacprof.diagnosing.diagnosis import diagnose
from gacprof.diagnosing.source import open_source
from gacprof.planning.planner import plan
from gacprof.workload.deployment import workload
from gacprof.workload.products import Products

GOLDENS = Path(__file__).parents[1] / "goldens" / "plans.json.gz"
with gzip.open(GOLDENS) as _file:
    ANSWERS: dict[str, Any] = json.load(_file)
MLP = "model.layers.0.mlp"
K_PROJ = "model.layers.0.self_attn.k_proj"
RULES = sorted(key for key in ANSWERS["by rules"] if "|None|" in key)


@pytest.fixture(scope="module")
def inventory_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    inventories: dict[str, Inventory] = {}

    def make(name: str) -> Inventory:
        if name not in inventories:
            plain = name.rpartition("/")[2]
            folder = FIXTURES / plain
            if plain != name:
                folder = restored(plain, tmp_path_factory.mktemp("tools"))
            inventories[name] = scan(folder)
        return inventories[name]

    return make


@pytest.mark.parametrize("name", sorted(ANSWERS["fixtures"]))
def test_by_a_map_every_dim_has_its_frozen_verdict_and_size(name: str, inventory_of: Any) -> None:
    inventory = inventory_of(name)
    answers = ANSWERS["fixtures"][name]["diagnosis"]["dims"]
    diagnosis = diagnose(inventory, planted_map_of(inventory, dtype="float32"), tokens=TOKENS)
    for finding in diagnosis.dims:
        answer = answers[finding.dim.name]
        assert finding.now.verdict == answer["verdict"], finding
        size = finding.better.size if finding.better else finding.dim.size
        # an undecided size that a plan would not choose is padded, too
        if finding.now.verdict != "undecided" or seems_safe(finding.now, TOLERANCE):
            assert size == answer["best_size"], finding


@pytest.mark.parametrize("key", [key for i, key in enumerate(RULES) if i % 5 == 0])
def test_by_rules_no_frozen_verdict_flips(key: str, inventory_of: Any) -> None:
    name, gpu, _, tp = key.split("|")
    answer = ANSWERS["by rules"][key]
    if "error" in answer:
        with pytest.raises(ConfigError):
            diagnose(inventory_of(name), gpu, tp=int(tp[2:]))
        return
    for finding in diagnose(inventory_of(name), gpu, tp=int(tp[2:])).dims:
        frozen = answer["diagnosis"]["dims"][finding.dim.name]
        assert {finding.now.verdict, frozen["verdict"]} != {"safe", "misaligned"}
        if frozen["verdict"] == "misaligned" and finding.better is not None:
            # on a Hopper K is padded further, to whole sectors of 32 bytes
            padded = int(frozen["advice"].removeprefix("pad to ").split()[0].rstrip(";,:"))
            assert 0 <= finding.better.size - padded <= 8 * int(tp[2:])


def factored(width: int, rank: int, hidden: int = 256) -> dict[str, tuple[int, int]]:
    """An MLP whose weights are all factored: every product with the width has a rank in it."""
    shapes = {
        f"{MLP}.down_proj.ALinear.weight": (hidden, rank),
        f"{MLP}.down_proj.BLinear.weight": (rank, width),
    }
    for part in ("gate", "up"):
        shapes[f"{MLP}.{part}_proj.ALinear.weight"] = (width, rank)
        shapes[f"{MLP}.{part}_proj.BLinear.weight"] = (rank, hidden)
    return shapes


def test_dims_that_hide_each_others_cost_are_misaligned(tmp_path: Path) -> None:
    inventory = scan(write_checkpoint(tmp_path / "odd", factored(683, 131)))
    findings = diagnose(inventory, FormulaSource(teeth_of(8))).dims
    assert {finding.now.verdict for finding in findings} == {"misaligned"}
    sizes = {finding.better.size for finding in findings if finding.better}
    assert sizes == {136, 688}


def test_groups_that_add_up_are_judged_beside_padded_groups(tmp_path: Path) -> None:
    shapes = {
        f"{K_PROJ}.VT.weight": (84, 256),
        f"{K_PROJ}.U.0.weight": (64, 41),
        f"{K_PROJ}.U.1.weight": (64, 43),
    }
    config = {"head_wise_ranks": {K_PROJ: [41, 43]}}
    inventory = scan(write_checkpoint(tmp_path / "palu", shapes, config))
    findings = diagnose(inventory, FormulaSource(teeth_of(8))).dims
    assert [finding.better and finding.better.size for finding in findings] == [48, 48]


def test_what_the_source_does_not_know_is_to_be_measured(tmp_path: Path) -> None:
    inventory = scan(write_checkpoint(tmp_path / "odd", factored(683, 131)))
    diagnosis = diagnose(inventory, FormulaSource(teeth_of(8), frozenset({(1, 1, 1)})))
    assert {finding.action for finding in diagnosis.dims} == {"measure"}
    assert diagnosis.latency_us is None and diagnosis.counts == {"unknown": 4}


def test_a_virtual_gpus_map_sends_to_its_rules_and_never_to_a_sweep(tmp_path: Path) -> None:
    inventory = scan(write_checkpoint(tmp_path / "odd", factored(683, 131)))
    axis = Axis("linear", "N", (96, 128), {"M": 1, "K": 512}, "float16")
    curve = Curve(axis, tuple(SizeVerdict(size, "unknown") for size in axis.sizes))
    virtual = Environment("virtual", "NVIDIA H100 80GB HBM3", "sm90")
    cliff_map = CliffMap("quick", "virtual", virtual, (curve,))
    diagnosis = diagnose(inventory, cliff_map)
    assert {finding.action for finding in diagnosis.dims} == {"keep"}
    texts = [finding.now.reason for finding in diagnosis.dims]
    for limits in ({}, {"latency": "5ms"}):
        with pytest.raises(PlanError) as refusal:
            plan(inventory, cliff_map, objective="pad", **limits)
        texts.append(str(refusal.value))
    for text in texts:
        assert "--gpu h100" in text
        assert "gacprof sweep" not in text


def test_the_actions_give_the_better_time(tmp_path: Path) -> None:
    inventory = scan(write_checkpoint(tmp_path / "odd", factored(683, 131)))
    source = FormulaSource(teeth_of(8))
    diagnosis = diagnose(inventory, source, tokens=[1, 64])
    targets = {finding.dim.name: finding.target_size for finding in diagnosis.dims}
    products = Products(inventory, {1: 1.0, 64: 1.0})
    assert diagnosis.better_us == products.time_us(source, products.inventory.modules, targets)
    assert isinstance(diagnosis.latency_us, Interval) and isinstance(diagnosis.better_us, Interval)
    assert diagnosis.better_us.value < diagnosis.latency_us.value


def test_a_vocabulary_and_a_head_dim_are_reported_and_not_padded(tmp_path: Path) -> None:
    shapes = {
        "model.embed_tokens.weight": (1001, 64),
        "lm_head.weight": (1001, 64),
        "model.layers.0.self_attn.q_proj.weight": (60, 64),
        "model.layers.0.self_attn.k_proj.weight": (60, 64),
        "model.layers.0.self_attn.v_proj.weight": (60, 64),
        "model.layers.0.self_attn.o_proj.weight": (64, 60),
    }
    config = {"model_type": "llama", "num_attention_heads": 4, "hidden_size": 64, "head_dim": 15}
    folder = write_checkpoint(tmp_path / "odd", shapes, config)
    diagnosis = diagnose(folder, FormulaSource(teeth_of(8)))
    found_sizes = {
        (finding.axis, finding.now.size, finding.better and finding.better.size)
        for finding in diagnosis.fixed
    }
    assert {("N", 1001, 1008), ("head_dim", 15, 16)} <= found_sizes


class HeadDtypes(FormulaSource):
    """A source that notes the types in which head_dims are asked about."""

    def head_dim(self, head_dim: int, heads: int, kv_heads: int, dtype: str) -> SizeVerdict:
        self.head_dtypes = {*getattr(self, "head_dtypes", ()), dtype}
        return super().head_dim(head_dim, heads, kv_heads, dtype)


ATTENTION = "model.layers.0.self_attn"


def test_attention_is_judged_in_the_type_of_most_layers_or_the_one_asked_for(
    tmp_path: Path,
) -> None:
    """Not in that of the embedding, the first tensor of the file; 8-bit products leave it."""
    weights = {
        f"{ATTENTION}.{name}_proj.weight": torch.zeros(64, 64, dtype=torch.float16)
        for name in "qkvo"
    }
    config = {"model_type": "llama", "num_attention_heads": 4, "hidden_size": 64, "head_dim": 16}
    save_file(
        {"model.embed_tokens.weight": torch.zeros(9, 64), **weights}, tmp_path / "m.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    for dtype, expected in ((None, "float16"), ("float32", "float32"), ("fp8", "float16")):
        source = HeadDtypes(teeth_of(8))
        diagnose(tmp_path, source, dtype=dtype)
        assert source.head_dtypes == {expected}
        kernels = diagnose(tmp_path, "h100", dtype=dtype).kernels
        assert [line for line in kernels if f"in {expected}" in line] == list(kernels[1:])


def test_tp_ranks_share_a_width(tmp_path: Path) -> None:
    """1368 is a multiple of 8, a TP rank's 171 is not: 1408 makes it 176."""
    shapes = {
        f"{MLP}.gate_proj.weight": (1368, 64),
        f"{MLP}.up_proj.weight": (1368, 64),
        f"{MLP}.down_proj.weight": (64, 1368),
    }
    inventory = scan(write_checkpoint(tmp_path / "mlp", shapes))
    source = FormulaSource(stairs_of(8), largest=4096)
    (alone,) = diagnose(inventory, source).dims
    source = FormulaSource(teeth_of(8), largest=4096)
    (shared,) = diagnose(inventory, source, tp=8).dims
    assert alone.now.verdict == "safe" and shared.now.verdict == "misaligned"
    assert shared.better is not None and shared.better.size == 1408


def test_a_source_is_opened_by_name(tmp_path: Path) -> None:
    assert open_source("h100").provenance.startswith("by rules")
    source = FormulaSource(teeth_of(8))
    assert open_source(source) is source
    assert open_source("NVIDIA H100 PCIe").name == "h100-pcie"
    with pytest.raises(ConfigError, match="no map and no GPU"):
        open_source("no-such-map")
    with pytest.raises(MapError):
        open_source("no-such-map.json")


@pytest.mark.parametrize("tokens", [[], [0], {1: 0.0}])
def test_a_workload_is_of_positive_counts(tokens: Any) -> None:
    with pytest.raises(ConfigError):
        workload(tokens, FormulaSource(teeth_of(8)))


def test_what_is_not_recognised_is_said_first_and_is_not_ok(tmp_path: Path) -> None:
    """Factor pairs under names of their own: no size was looked at, so that none is fine."""
    shapes = {"model.embed_tokens.weight": (96, 64), "lm_head.weight": (96, 64)}
    for role in ("q", "k", "v", "o"):
        name = f"model.layers.0.self_attn.{role}_proj"
        shapes |= {f"{name}.w_out": (64, 24), f"{name}.w_in": (24, 64)}
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 4, "vocab_size": 96, "num_hidden_layers": 1}
    folder = checkpoint(tmp_path / "odd", shapes, config)
    diagnosis = diagnose(folder, "h100")
    assert not diagnosis.ok and not diagnosis.dims
    assert {gap.kind for gap in diagnosis.gaps} == {"tensor", "product"}
    assert "q_proj.w_out [64, 24]" in diagnosis.not_recognised
    named = diagnose(scan(folder, factors=("{module}.w_out", "{module}.w_in")), "h100")
    assert len(named.dims) == 4 and not named.gaps
