"""Whole models by the rules of a GPU: odd widths, shards, 8-bit weights, vocabularies, heads."""

import pytest
from checkpoint_making import checkpoint

import gacprof
from gacprof.cliffmap.intersect import intersect
from gacprof.core.errors import GacprofError, MapError, PlanError

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


@pytest.fixture
def llama(tmp_path):
    """A decoder of two layers; weights of ``dtype``, packed by ``scheme`` if there is one."""

    def make(hidden=256, width=1367, heads=2, vocab=32000, dtype="bfloat16", scheme=None):
        shapes = {
            "model.embed_tokens.weight": ("bfloat16", (vocab, hidden)),
            "lm_head.weight": ("bfloat16", (vocab, hidden)),
        }
        sides = dict.fromkeys(("q", "k", "v", "o"), (hidden, hidden))
        mlp = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        for i in range(2):
            for part, of in (("self_attn", sides), ("mlp", mlp)):
                for name, shape in of.items():
                    weight = f"model.layers.{i}.{part}.{name}_proj.weight"
                    shapes[weight] = (dtype, shape)
                    if scheme:
                        blocks = tuple(-(-size // 128) for size in shape)
                        shapes[f"{weight}_scale_inv"] = ("float32", blocks)
        config = {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
            "intermediate_size": width, "num_attention_heads": heads, "num_hidden_layers": 2,
            "num_key_value_heads": heads, "vocab_size": vocab, "torch_dtype": "bfloat16",
        }  # fmt: skip
        return checkpoint(
            tmp_path / "model", shapes, config | ({"quantization_config": scheme} if scheme else {})
        )

    return make


@pytest.mark.parametrize("tokens", [None, "512", "1", "4096:2"])
def test_an_odd_width_is_found_at_any_token_count(llama, run, tmp_path, tokens):
    table = tmp_path / "h100.json"
    asked = ("--gpu", "h100", "--torch", "2.11", "--dtype", "bfloat16", "--out", table)
    assert run("map", "rules", *asked)[0] == 0
    more = ("--tokens", tokens) if tokens else ()
    code, out, _ = run("diagnose", llama(), "--map", table, *more)
    assert code == 1 and "6 of 15 weights" in out and "pad to 1368" in out
    assert ("9 not judged" in out) == (tokens == "1")  # one row says nothing of what stays as it is


@pytest.mark.parametrize(
    ("tp", "best"), [(1, 1368), (2, 1376), (4, 1376), (8, 1408)]
)  # fmt: skip
def test_a_width_is_judged_and_planned_as_one_rank_holds_it(llama, tp, best):
    """1368 at eight ranks is 171 on each."""
    model, table = llama(heads=8), gacprof.rule_table("h100", "2.11")
    found = gacprof.diagnose(model, table, tp=tp).findings
    assert {dim.best_size for dim in found} == {best} and best // tp % 8 == 0
    constraints = gacprof.Constraints(preset=f"vllm,tp={tp}" if tp > 1 else None)
    made = gacprof.plan(model, table, objective="pad", constraints=constraints)
    assert {choice.after for choice in made.choices} == {best}
    assert all(size // tp % 8 == 0 for choice in made.choices for size in choice.candidates)


def test_eight_bit_weights_are_judged_as_they_are_computed(llama):
    """In fp8 a multiple of 16 is served and nothing else; the head stays bfloat16."""
    good = gacprof.diagnose(llama(width=1376, dtype="float8_e4m3fn", scheme=FP8), h100())
    assert good.dtype == "float8_e4m3" and not good.findings and not good.unknown
    odd = gacprof.diagnose(llama(width=1384, dtype="float8_e4m3fn", scheme=FP8), h100())
    assert {dim.size for dim in odd.findings} == {1384} and odd.misaligned == 6
    a100 = gacprof.diagnose(llama(dtype="float8_e4m3fn", scheme=FP8), gacprof.rule_table("a100"))
    assert a100.unknown == 14 and "no rules for float8_e4m3" in " ".join(a100.notes)


def test_a_table_of_one_dtype_judges_what_is_served_in_it(llama):
    """A checkpoint stored in float32, where no size is odd, is served in bfloat16."""
    model = llama(dtype="float32")
    whole = gacprof.diagnose(model, h100())
    assert whole.dtype == "float32" and "--dtype bfloat16" in " ".join(whole.notes)
    halves = gacprof.diagnose(model, gacprof.rule_table("h100", "2.11", ("bfloat16",)))
    assert halves.dtype == "bfloat16" and halves.misaligned == 6
    assert gacprof.diagnose(model, h100(), dtype="bfloat16").misaligned == 6


def test_weights_that_are_unpacked_first_are_judged_in_what_they_are_computed_in(llama):
    def diagnosed(dtype, **also):
        group = {"weights": {"num_bits": 8, "type": "int" if dtype == "int8" else "float"}} | also
        scheme = {"quant_method": "compressed-tensors", "config_groups": {"0": group}}
        return gacprof.diagnose(llama(width=1368, dtype=dtype, scheme=scheme), h100())

    for dtype in ("int8", "float8_e4m3fn"):
        found = diagnosed(dtype)
        assert found.dtype == "bfloat16" and not found.findings
    found = diagnosed("float8_e4m3fn", input_activations={"num_bits": 8, "type": "float"})
    assert found.dtype == "float8_e4m3" and found.misaligned == 6


@pytest.mark.parametrize(
    ("sizes", "code", "says"),
    [
        ({"width": 1368, "vocab": 50257}, 1, ["lm_head", "50304 would be served well"]),
        ({"hidden": 848, "width": 1368}, 1, ["head_dim", "128 would be served well"]),
        ({"hidden": 896, "width": 1408}, 0, ["head_dim 112 is undecided"]),
        ({"hidden": 1024, "width": 1408}, 0, []),
    ],
)
def test_vocabularies_and_head_dims_that_no_plan_changes_are_findings(
    llama, run, sizes, code, says
):
    ended, out, _ = run("diagnose", llama(heads=8, **sizes), "--gpu", "h100", "--torch", "2.11")
    assert ended == code and all(one in out for one in says)
    assert says or "head_dim" not in out


def test_the_vocabulary_of_a_rank_is_not_judged(llama):
    """Engines pad it, each to another multiple, before ranks share it."""
    found = gacprof.diagnose(llama(width=1408, heads=8, vocab=50257), h100(), tp=8)
    assert not found.findings and "engines pad the vocabulary" in " ".join(found.notes)
    assert {w.name: w.verdict for w in found.weights}["lm_head"] == "fixed"


def test_a_width_beside_a_size_that_nothing_changes_is_promised_no_gain(llama):
    """The worst side of a product decides: with a hidden size of 1002 no width is of tier 1."""
    found = gacprof.diagnose(llama(hidden=1002, heads=2), h100())
    (width,) = {d.size: d for d in found.dims if d.kind == "width"}.values()
    assert width.verdict == "misaligned" and width.advice == "pad to 1368"  # of tier 2
    even = gacprof.diagnose(llama(hidden=1002, heads=2, width=1370), h100())
    (width,) = {d.size: d for d in even.dims if d.kind == "width"}.values()
    assert width.verdict == "undecided" and "something else holds it there" in width.advice
    assert {d.size for d in even.findings if d.name.endswith(":K")} == {1002}


def test_a_published_map_that_lacks_the_shapes_offers_the_rules(llama, run):
    model = llama()
    code, out, _ = run("diagnose", model, "--map", "h100-published")
    assert code == 1 and "--gpu h100" in out
    assert "--axis N --range 1351:1383 --fixed K=256,M=1 " in out  # of the width that is unknown
    code, _, err = run("plan", model, "--map", "h100-published", "--objective", "pad")
    assert code == 2 and "--gpu h100" in err and "--axis N" in err


def test_one_source_is_asked_for(llama, run):
    for given, message in (
        ((), "give either a map"),
        (("--map", "a100-published", "--gpu", "h100"), "give either a map"),
        (("--map", "a100-published", "--torch", "2.11"), "goes with a GPU's name"),
        (("--gpu", "v100"), "no GPU 'v100' is known"),
        (("--gpu", "h100", "--torch", "1.0"), "not known"),
    ):
        code, _, err = run("diagnose", llama(), *given)
        assert code == 2 and message in err and err.count("\n") == 1


def h100():
    return gacprof.rule_table("h100", "2.11")


def test_heads_that_ranks_cannot_share_whole_are_refused(llama, run):
    model = llama(hidden=896, heads=14, width=1408)
    code, _, err = run("diagnose", model, "--gpu", "h100", "--tp", 4)
    assert code == 2 and "4 ranks cannot share the 14 heads" in err and "1, 2, 7, 14" in err
    with pytest.raises(PlanError, match="shards cannot share"):
        gacprof.plan(model, h100(), constraints=gacprof.Constraints(preset="vllm,tp=8"))
    assert gacprof.diagnose(model, h100(), tp=2).tp == 2


@pytest.mark.parametrize("tp", [0, -8, "8", 2.0, True])
def test_a_number_of_ranks_is_a_whole_number(llama, tp):
    with pytest.raises(GacprofError, match="it must be a whole number"):
        gacprof.diagnose(llama(), h100(), tp=tp)


def test_what_is_no_gpu_and_no_map_is_refused():
    for call in (
        lambda: gacprof.open_source(5),
        lambda: gacprof.open_source(["a100-published"]),
        lambda: gacprof.rule_table(5),
        lambda: intersect([5, 6], "linear", "K"),
        lambda: intersect([None, h100()], "linear", "K"),
    ):
        with pytest.raises(GacprofError, match=r"give either a map|no source of sizes|be a name"):
            call()


def test_sizes_on_offer_are_those_of_whole_heads_that_are_safe(llama):
    """8 heads of 106: 856 is aligned and of heads of 107; 1024 is of heads of 128."""
    found = gacprof.diagnose(llama(hidden=856, heads=8, width=1408), h100(), tp=8)
    by_heads = [d for d in found.findings if d.name.endswith("q_proj.weight:N")]
    assert by_heads and {d.best_size for d in by_heads} == {1024}
    (head_dim,) = [d for d in found.findings if d.role == "attention"]
    assert head_dim.size == 107 and head_dim.best_size == 128


def test_no_rank_is_safe_where_nothing_tells_one_from_another():
    with pytest.raises(MapError, match=r"one tier in float32.*dtype='bfloat16'"):
        gacprof.safe_ranks((1024, 1360), h100(), dtype="float32")
    with pytest.raises(MapError, match="1367, which no rank changes, is no multiple of 8"):
        gacprof.safe_ranks((1367, 1024), h100(), dtype="bfloat16")


def test_pairs_that_an_engine_cannot_hold_are_refused_before_any_work(llama, tmp_path):
    asked = {"method": "svd", "ratio": 0.2, "preset": "vllm,tp=8"}
    with pytest.raises(GacprofError, match="cannot express the factor pairs that svd makes"):
        gacprof.compress(llama(heads=8), tmp_path / "out", cliff_map=h100(), **asked)
    assert not list(tmp_path.glob(".*"))
