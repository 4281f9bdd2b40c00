"""What one device multiplies: the same for every verb, and as engines share it."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from decoders import write_decoder
from formula_source import FormulaSource, teeth_of
from tool_checkpoints import checkpoint
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gacprof.checkpoint.from_config import TABLES, ConfigSizes, inventory_of_sizes
from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.scan import inventory_of, scan
from gacprof.core.errors import ConfigError
from gacprof.core.sizes import ZERO, Gemm, Interval, SizeVerdict, Use
from gacprof.diagnosing.diagnosis import diagnose
from gacprof.kernels.requirements import load_engine
from gacprof.lint.lint import lint
from gacprof.sweeping.for_model import suite_for_model
from gacprof.workload.deployment import Deployment
from gacprof.workload.products import Products, products

LINT = Path(__file__).parents[1] / "fixtures" / "lint"
LAYER = "model.layers.0"
Shape = tuple[int, int]


def configs() -> list[Mapping[str, Any]]:
    """The configs of the published cases and of the facts. Each says how many experts it has and a
    token reaches, and how many heads of keys and values there are."""
    cases = json.loads((LINT / "cases.json").read_text())
    facts = tomllib.loads((LINT / "facts.toml").read_text())
    texts = {json.dumps(case["config"], sort_keys=True) for case in cases}
    texts |= {json.dumps(config, sort_keys=True) for config in facts["models"].values()}
    stated = []
    for config in map(json.loads, sorted(texts)):
        sizes = ConfigSizes(config)
        if sizes.has_experts and not sizes.get("experts"):
            config["num_experts"] = 16
        if sizes.get("heads") and not sizes.get("kv_heads"):
            config["num_key_value_heads"] = sizes.get("heads")
        stated.append({"num_experts_per_tok": 2, **config})
    return stated


@dataclass
class Recorder:
    """A source of sizes that knows every time and notes the products that it was asked about: for
    their times, and for verdicts on their sides."""

    asked: set[Shape] = field(default_factory=set)
    judged: set[Shape] = field(default_factory=set)
    name: str = "recorder"
    provenance: str = "made up"
    tokens: Sequence[int] = (64,)
    dtypes: Sequence[str] = ()
    tolerance: float = 0.02

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        self.asked.add((gemm.N, gemm.K))
        return ZERO

    def sizes(self, uses: Sequence[Use], low: int, high: int) -> list[int]:
        return []

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> list[SizeVerdict]:
        for use in uses:
            self.judged.update(filter(None, map(use.at, sizes)))
        return [SizeVerdict(size, "unknown") for size in sizes]

    def head_dim(self, head_dim: int, heads: int, kv_heads: int, dtype: str) -> SizeVerdict:
        return SizeVerdict(head_dim, "unknown")


def linted(config: Mapping[str, Any], tp: int) -> set[Shape]:
    """N and K of every product by lint, each for itself but what is always multiplied as one."""
    rows = [row for row in lint(config, engine="vllm", gpu="h100", tp=tp).products if row.K]
    names = {row.product for row in rows}
    shapes = set()
    for row in rows:
        whole, _, part = row.product.rpartition(".")
        is_part = whole in names and bool(part)
        is_fused = any(name.startswith(f"{row.product}.") for name in names)
        stored_as_one = row.product.endswith("in_proj") or whole.endswith("in_proj")
        stored_as_one |= "in_proj_qkvz" in row.product or "in_proj_ba" in row.product
        if row.role in ("embedding", "head") or (is_part if stored_as_one else is_fused):
            continue
        n = 2 * row.N if row.product.endswith("w1/w3") else row.N
        if n:
            shapes.add((n, row.K))
    return shapes


def named_by_diagnose(inventory: Inventory, tp: int) -> tuple[set[Shape], bool]:
    """N and K of every product that diagnose judges, and whether it has times of them all."""
    recorder = Recorder()
    diagnosis = diagnose(inventory, recorder, tokens=[64], tp=tp)
    if diagnosis.latency_us is not None:
        assert recorder.asked == recorder.judged
    return recorder.judged, diagnosis.latency_us is not None


def swept(inventory: Inventory, tp: int) -> set[Shape]:
    """N and K of every product that a sweep measures."""
    suite = suite_for_model(inventory, [64], tp=tp)
    points = [axis.point(size).dims for axis in suite.axes for size in axis.sizes]
    return {(dims["N"], dims["K"]) for dims in points if "N" in dims}


def vocabularies(inventory: Inventory) -> list[Module]:
    """The embedding and the head: lint judges them by the number of rows alone."""
    return [module for module in inventory.modules if module.role in ("embedding", "head")]


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("config", configs(), ids=lambda config: str(config.get("model_type")))
def test_diagnose_sweep_and_lint_name_the_same_products(config: Mapping[str, Any], tp: int) -> None:
    inventory = inventory_of_sizes(ConfigSizes(config))
    try:
        measured = swept(inventory, tp)
    except ConfigError:  # heads that so many ranks cannot share
        assert lint(config, engine="vllm", gpu="h100", tp=tp).outcome != "ok"
        return
    tables = {(-(-m.out_features // tp), m.in_features) for m in vocabularies(inventory)}
    assert measured - tables == linted(config, tp) - tables
    assert named_by_diagnose(inventory, tp)[0] == measured


UNKNOWN_SIZES = {
    "qwen3_omni_moe": "transformers' default has heads that don't divide the hidden size",
    "glm4_moe": "as qwen3_omni_moe",
    "glm4v_moe": "as qwen3_omni_moe",
    "deepseek_v2": "transformers' default says no number of experts that a token goes to",
    "dots1": "as deepseek_v2",
}
"""Types whose products diagnose cannot time as a whole, with why."""
NO_KV_HEADS = {"pixtral", "nemotron"}
"""Types whose defaults say no heads of keys and values, which a sweep refuses."""


def default_configs() -> dict[str, Mapping[str, Any]]:
    """transformers' own configs of the types in families.toml, by type: they state all sizes."""
    listed = chain.from_iterable(row["types"] for row in TABLES["families"].values())
    types = [name for name in dict.fromkeys(listed) if name in CONFIG_MAPPING]
    return {name: CONFIG_MAPPING[name]().to_dict() for name in types if name not in NO_KV_HEADS}


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_diagnose_sweep_and_lint_name_all_products_of_whole_configs(tp: int) -> None:
    whole = []
    for model_type, config in default_configs().items():
        inventory = inventory_of_sizes(ConfigSizes(config))
        try:
            measured = swept(inventory, tp)
        except ConfigError:  # heads that so many ranks cannot share
            continue
        judged, is_whole = named_by_diagnose(inventory, tp)
        assert judged == measured, model_type
        assert is_whole != (model_type in UNKNOWN_SIZES), model_type
        if is_whole:
            tables = {(-(-m.out_features // tp), m.in_features) for m in vocabularies(inventory)}
            assert measured - tables == linted(config, tp) - tables, model_type
            whole.append(model_type)
    assert len(whole) >= 75


def shapes_of(inventory: Inventory, **ranks: Any) -> dict[str, Shape]:
    """N and K on one device by the role of what is multiplied."""
    return {
        product.role.key: (product.N or 0, product.K or 0)
        for product in products(inventory, Deployment(**ranks))
    }


def test_more_ranks_than_kv_heads_repeat_them(tmp_path: Path) -> None:
    """Two of 8 TP ranks hold each of 4 heads of keys and values: none holds half of one."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    inventory = inventory_of(write_decoder(tmp_path / "dense", heads=[(8, 4), (8, 4)], **heads))
    head_dim = inventory.attentions[0].head_dim
    shapes = shapes_of(inventory, tp=8)
    hidden = shapes["q"][1]
    assert shapes["q"] == shapes["k"] == shapes["v"] == (head_dim, hidden)
    assert shapes["o"] == (hidden, head_dim)


def test_keys_and_values_are_repeated_in_one_weight_with_q(tmp_path: Path) -> None:
    """Of 8 heads and 2 of keys and values, 16 each, every one of 8 ranks holds one of each."""
    shapes = {
        f"{LAYER}.self_attn.qkv_proj.weight": ((8 + 2 * 2) * 16, 128),
        f"{LAYER}.self_attn.o_proj.weight": (128, 128),
    }
    config = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2}
    inventory = scan(checkpoint(tmp_path, shapes, config))
    assert shapes_of(inventory, tp=2)["qkv"] == (6 * 16, 128)
    assert shapes_of(inventory, tp=8)["qkv"] == (3 * 16, 128)


@pytest.mark.parametrize("tp, on_rank", [(1, 296), (2, 164)])
def test_a_finding_says_what_the_file_and_what_a_rank_has(
    tmp_path: Path, tp: int, on_rank: int
) -> None:
    """B and C of 16 states are on both ranks: 296 rows are 164 on each, and never 328."""
    shapes = {f"{LAYER}.mixer.in_proj.weight": (2 * 128 + 2 * 16 + 8, 64)}
    config = {"model_type": "nemotron_h", "mamba_num_heads": 8, "mamba_head_dim": 16}
    config |= {"n_groups": 1, "ssm_state_size": 16, "hidden_size": 64}
    inventory = scan(checkpoint(tmp_path, shapes, config))
    diagnosis = diagnose(inventory, FormulaSource(teeth_of(16)), tp=tp)
    (finding,) = (finding for finding in diagnosis.fixed if finding.axis == "N")
    assert (finding.stored, finding.now.size) == (296, on_rank)
    assert finding.better is not None and finding.better.size == -(-on_rank // 16) * 16


def test_a_head_is_judged_as_a_rank_holds_it(tmp_path: Path) -> None:
    """1008 rows divide by 16, and the 252 of each of four ranks do not."""
    inventory = scan(checkpoint(tmp_path, {"lm_head.weight": (1008, 64)}))
    source = FormulaSource(teeth_of(16))
    assert diagnose(inventory, source).fixed == ()
    (finding,) = diagnose(inventory, source, tp=4).fixed
    assert (finding.stored, finding.now.size) == (1008, 252)
    assert finding.better is not None and finding.better.size == 256


@pytest.mark.parametrize("tp, on_rank", [(2, 48), (4, None)])
def test_ranks_share_each_half_of_gate_and_up(tmp_path: Path, tp: int, on_rank: int | None) -> None:
    """Two of 4 ranks would hold an end of gate and a start of up: 96 rows are two times 48, which
    2 ranks share; of 2 times 42 only the sum divides by 4."""
    width = 48 if on_rank else 42
    stored = {
        f"{LAYER}.mlp.gate_up_proj.weight": (2 * width, 64),
        f"{LAYER}.mlp.down_proj.weight": (64, width),
    }
    inventory = scan(checkpoint(tmp_path / "one", stored))
    apart = scan(checkpoint(tmp_path / "two", gated(f"{LAYER}.mlp", width)))
    served = Deployment(tp=tp)
    (one, *_) = products(inventory, served)
    assert one.role.key == "gate_up" and on_rank == one.N
    halves = [product.N for product in products(apart, served) if product.role.key != "down"]
    assert halves == [on_rank and on_rank // 2] * 2


def test_heads_are_those_of_the_modules_own_tower(tmp_path: Path) -> None:
    """The text has 2 heads of keys and values, which 4 ranks repeat; the images' has 8."""
    text, images = "model.layers.0.self_attn", "vision_tower.encoder.layers.0.self_attn"
    shapes = {f"{text}.{name}_proj.weight": (128, 128) for name in "qo"}
    shapes |= {f"{text}.{name}_proj.weight": (32, 128) for name in "kv"}
    shapes |= {f"{images}.{name}_proj.weight": (64, 64) for name in "qkv"}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128}
    vision = {"num_attention_heads": 8, "hidden_size": 64}
    config = {"model_type": "llava", "text_config": heads, "vision_config": vision}
    inventory = scan(checkpoint(tmp_path, shapes, config))
    assert len(inventory.attentions) == 2
    lengths = {p.module: p.N for p in products(inventory, Deployment(tp=4))}
    assert lengths["model.layers.{}.self_attn.k_proj"] == 16
    assert lengths["vision_tower.encoder.layers.{}.self_attn.k_proj"] == 16
    assert lengths["model.layers.{}.self_attn.q_proj"] == 32


def test_a_module_outside_of_layers_has_the_heads_that_the_config_states(tmp_path: Path) -> None:
    """Layer 0 is pruned to 4 heads; a block of its own beside the layers has the config's 8."""
    pruned, beside = f"{LAYER}.self_attn", "model.midlayer.self_attn"
    shapes = {f"{pruned}.{name}_proj.weight": (64, 128) for name in "qkv"}
    shapes |= {f"{beside}.{name}_proj.weight": (128, 128) for name in "qkv"}
    config = {"num_attention_heads": 8, "hidden_size": 128, "head_dim": 16, "model_type": "llama"}
    inventory = scan(checkpoint(tmp_path, shapes, config))
    lengths = {p.module: p.N for p in products(inventory, Deployment(tp=8))}
    assert lengths["model.midlayer.self_attn.q_proj"] == 16
    assert lengths["model.layers.{}.self_attn.q_proj"] is None
    assert lengths["model.layers.{}.self_attn.k_proj"] == 16


def test_b_and_c_of_one_group_are_on_every_rank(tmp_path: Path) -> None:
    """z and x of 8 heads of 16 and 8 steps are shared, B and C of 32 states are not."""
    shapes = {
        f"{LAYER}.mixer.in_proj.weight": (2 * 128 + 2 * 32 + 8, 64),
        f"{LAYER}.mixer.out_proj.weight": (64, 128),
    }
    config = {"model_type": "nemotron_h", "mamba_num_heads": 8, "mamba_head_dim": 16}
    config |= {"n_groups": 1, "ssm_state_size": 32, "hidden_size": 64}
    inventory = scan(checkpoint(tmp_path, shapes, config))
    assert shapes_of(inventory, tp=4)["mamba_in"] == ((2 * 128 + 8) // 4 + 2 * 32, 64)
    assert shapes_of(inventory, tp=4)["mamba_out"] == (64, 32)


DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_attention_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}


def gated(prefix: str, width: int) -> dict[str, Shape]:
    sides = {"gate_proj": (width, 64), "up_proj": (width, 64), "down_proj": (64, width)}
    return {f"{prefix}.{name}.weight": shape for name, shape in sides.items()}


def test_latent_attention_and_shared_experts_are_shared(tmp_path: Path) -> None:
    attention = {
        "q_a_proj": (24, 64),
        "q_b_proj": (8 * 24, 24),
        "kv_a_proj_with_mqa": (24, 64),
        "kv_b_proj": (8 * 32, 16),
        "o_proj": (64, 8 * 16),
    }
    shapes = {f"{LAYER}.self_attn.{name}.weight": shape for name, shape in attention.items()}
    shapes |= gated(f"{LAYER}.mlp.shared_experts", 48)
    on_rank = shapes_of(scan(checkpoint(tmp_path, shapes, DEEPSEEK)), tp=8)
    assert on_rank["q_b"] == (24, 24) and on_rank["kv_b"] == (32, 16)
    assert on_rank["q_a"] == (24, 64) and on_rank["o"] == (64, 16)
    assert on_rank["shared_gate"] == (6, 64) and on_rank["shared_down"] == (64, 6)


@pytest.mark.parametrize(
    "engine, tp, rows", [(None, 8, 125), ("vllm", 8, 128), ("vllm", 1, 1024), (None, 1, 1000)]
)
def test_a_vocabulary_is_shared_as_the_engine_pads_it(
    tmp_path: Path, engine: str | None, tp: int, rows: int
) -> None:
    inventory = scan(checkpoint(tmp_path, {"lm_head.weight": (1000, 64)}))
    served = Deployment(tp=tp, engine=load_engine(engine) if engine else None)
    (head,) = products(inventory, served)
    assert (head.N, head.K, head.whole) == (rows, 64, 1000)


def experts(folder: Path, config: Mapping[str, Any], *, stacked: bool) -> Inventory:
    """8 experts of 48, in one tensor or each in its own."""
    folder.mkdir()
    place = f"{LAYER}.mlp.experts"
    shapes: dict[str, tuple[int, ...]] = {}
    if stacked:
        shapes = {f"{place}.gate_up_proj": (8, 96, 64), f"{place}.down_proj": (8, 64, 48)}
    else:
        for i in range(8):
            shapes |= gated(f"{place}.{i}", 48)
    return scan(checkpoint(folder, shapes, config))


@pytest.mark.parametrize("ranks", [{}, {"tp": 2}, {"tp": 4, "ep": 4}])
def test_experts_are_the_same_products_stacked_or_apart(
    tmp_path: Path, ranks: Mapping[str, int]
) -> None:
    tokens = {1: 1.0, 64: 2.0}
    answers = []
    for stacked in (True, False):
        inventory = experts(tmp_path / str(stacked), DEEPSEEK, stacked=stacked)
        rows: Counter[tuple[int | None, int | None, int]] = Counter()
        for product in products(inventory, Deployment(tokens=tokens, **ranks)):
            assert product.role.part == "expert"
            for length, often in product.rows.items():
                rows[product.N, product.K, length] += often  # type: ignore[assignment]
        answers.append(rows)
    assert answers[0].keys() == answers[1].keys()
    assert all(answers[0][key] == pytest.approx(answers[1][key]) for key in answers[0])


@pytest.mark.parametrize("stacked", [True, False])
def test_a_token_reaches_k_experts_with_one_row_each(tmp_path: Path, stacked: bool) -> None:
    """Of 8 experts one token reaches 2. 64 tokens reach all, with 16 rows each."""
    inventory = experts(tmp_path / "experts", DEEPSEEK, stacked=stacked)
    source = FormulaSource(teeth_of(1))

    def time_at(tokens: int) -> float:
        time = Products(inventory, {tokens: 1.0}).time_us(source, inventory.modules)
        assert time is not None
        return time.value

    def us(rows: int) -> float:
        return source.formula(rows, 96, 64) + source.formula(rows, 64, 48)

    assert time_at(1) == pytest.approx(2 * us(1))
    assert time_at(64) == pytest.approx(8 * us(16), rel=1e-6)


def test_without_the_number_of_experts_a_token_no_time_is_known(tmp_path: Path) -> None:
    config = {name: size for name, size in DEEPSEEK.items() if name != "num_experts_per_tok"}
    inventory = experts(tmp_path / "experts", config, stacked=False)
    model = Products(inventory, {64: 1.0})
    assert model.time_us(FormulaSource(teeth_of(1)), inventory.modules) is None
    assert model.uses_of(inventory.dims[0]) == []
    diagnosis = diagnose(inventory, "h100")
    assert {finding.now.verdict for finding in diagnosis.dims} == {"unknown"}
    assert diagnosis.fixed == () and diagnosis.latency_us is None
    assert any("experts" in warning for warning in diagnosis.warnings)


def test_an_engine_multiplies_q_k_and_v_as_one(tmp_path: Path) -> None:
    inventory = inventory_of(write_decoder(tmp_path / "dense"))
    alone = [p for p in products(inventory, Deployment()) if p.layer == 0]
    served = products(inventory, Deployment(engine=load_engine("vllm")))
    fused = [product for product in served if product.parts and product.layer == 0]
    assert not any(product.parts for product in alone)
    assert [len(product.parts) for product in fused] == [3, 2]
    for product in fused:
        assert sum(part.N or 0 for part in product.parts) == product.N


@pytest.mark.parametrize("ranks", [{"tp": 0}, {"ep": 0}, {"dp": -1}])
def test_ranks_are_at_least_one(ranks: Mapping[str, int]) -> None:
    with pytest.raises(ConfigError):
        Deployment(**ranks)
