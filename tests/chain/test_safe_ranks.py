"""Before compression: measure what a dense model's layers would be cut into, and ask in a loop."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from planted import FEW, TOKENS, planted_latency, swept_map

import gacprof
from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.core.errors import MapError, SuiteError
from gacprof.core.points import Point
from gacprof.sweeping.for_checkpoint import suite_for_ranks

SHAPES = [(512, 256), (128, 256)]
RANKS = (16, 96)


def latency(point):
    """As the planted device; 60 % more where the second product's K is no multiple of 16."""
    k = point.dim["K"]
    return planted_latency(point) * (1.6 if k != 256 and k % 16 else 1.0)


def pair(rank, shape):
    out_features, in_features = shape
    return sum(
        weight
        * (
            latency(Point.of("linear", {"M": m, "N": rank, "K": in_features}, "float32"))
            + latency(Point.of("linear", {"M": m, "N": out_features, "K": rank}, "float32"))
        )
        for m, weight in TOKENS.items()
    )


def truly_safe(shapes, first, last):
    """By the definition: no larger rank is faster by more than the tolerance."""
    total = {r: sum(pair(r, shape) for shape in shapes) for r in range(first, RANKS[1] + 33)}
    best = {r: min(t for larger, t in total.items() if larger >= r) for r in total}
    return [r for r in range(first, last + 1) if total[r] <= 1.02 * best[r]]


@pytest.fixture(scope="module")
def ranks_map():
    suite = suite_for_ranks(SHAPES, RANKS, sorted(TOKENS), dtype="float32", timing=FEW)
    return swept_map(suite, latency)


@pytest.mark.parametrize("shapes", [SHAPES[:1], SHAPES[1:], SHAPES])
def test_the_safe_ranks_are_those_of_both_products_together(ranks_map, shapes):
    found = gacprof.safe_ranks(shapes, ranks_map, within=RANKS)
    assert [c.d for c in found] == truly_safe(shapes, *RANKS)
    assert all(c.d % 16 == 0 for c in found)
    for c in found:
        assert c.latency_us == pytest.approx(sum(pair(c.d, s) for s in shapes), rel=0.01)


def test_a_layer_is_as_good_as_its_shape(ranks_map):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(256, 512, bias=False)
    assert gacprof.safe_ranks(layer, ranks_map) == gacprof.safe_ranks((512, 256), ranks_map)
    both = [layer, (128, 256)]
    assert gacprof.safe_ranks(both, ranks_map) == gacprof.safe_ranks(SHAPES, ranks_map)


@pytest.mark.parametrize("within", [(80, 32), (0, 32), (16, math.inf), (16.5, 32), (16,), 32, "ab"])
def test_a_range_of_ranks_that_is_none_is_refused_and_not_answered_by_no_rank(ranks_map, within):
    with pytest.raises(MapError, match="no range of ranks"):
        gacprof.safe_ranks((512, 256), ranks_map, within=within)


def test_a_range_may_be_in_numbers_of_any_type(ranks_map):
    found = gacprof.safe_ranks((512, 256), ranks_map, within=(np.int64(32), np.float64(64.0)))
    assert found == gacprof.safe_ranks((512, 256), ranks_map, within=(32, 64))


def test_no_rank_is_above_the_weights_own(ranks_map):
    assert max(c.d for c in gacprof.safe_ranks((128, 256), ranks_map)) <= 128


def test_a_missing_curve_is_answered_by_a_command_that_can_be_pasted(ranks_map, run_dry):
    with pytest.raises(MapLookupError) as missed:
        gacprof.safe_ranks((640, 256), ranks_map, tokens=[64], within=(32, 80))
    assert missed.value.command in str(missed.value)
    assert "--ranks 640x256 --range 32:80 --tokens 64 --dtype float32" in missed.value.command
    assert "3 curves" in run_dry(missed.value.command)
    with pytest.raises(MapLookupError, match="holds ranks from 16 to 128"):
        gacprof.safe_ranks((512, 256), ranks_map, within=(16, 200))
    with pytest.raises(MapLookupError, match="--tokens 7 "):
        gacprof.safe_ranks((512, 256), ranks_map, tokens=[7])


@pytest.fixture
def run_dry(monkeypatch, capsys):
    """What a command says that it would measure on a CPU."""
    import sys

    from gacprof.cli import main

    def run(command):
        argv = [*command.split(), "--dry-run", "--device", "cpu", "--json"]
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr("gacprof.api.sweeps._if_here", lambda device: None)
        with pytest.raises(SystemExit):
            main()
        out = capsys.readouterr().out
        return re.sub(r'"curves": (\d+)', r"\1 curves", out)

    return run


@pytest.mark.parametrize("layers", [[], (512,), (0, 4), (1, 2, 3)])
def test_what_is_no_shape_is_refused(ranks_map, layers):
    with pytest.raises(MapError, match="shape"):
        gacprof.safe_ranks(layers, ranks_map)


def test_the_suite_of_a_dense_model_holds_both_products_of_every_layer(ranks_map):
    torch = pytest.importorskip("torch")
    from gacprof.checkpoint import inventory_for
    from gacprof.sweeping.for_checkpoint import suite_for_ranks_of

    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 64))
    suite = suite_for_ranks_of(inventory_for(model), (8, 24), [4])
    curves = {(c.axis, *sorted(next(iter(c.points.values())).dims)) for c in suite.curves("cpu")}
    sides = {(c[0], dict(c[1:])["K" if c[0] == "N" else "N"]) for c in curves if c[0] != "M"}
    assert sides == {("N", 64), ("N", 96), ("K", 64), ("K", 96)}


def test_the_products_that_a_factor_pair_replaces_are_measured_too():
    """A compressor that leaves a layer dense needs its time for a latency budget."""
    points = suite_for_ranks([(96, 64), (96, 64)], (8, 24), [1, 4], dtype="float32").points("cpu")
    dense = {(p.dim["M"], p.dim["N"], p.dim["K"]) for p in points} & {(1, 96, 64), (4, 96, 64)}
    assert len(dense) == 2


@pytest.mark.parametrize("ranks", [(0, 8), (9, 8), (1, 2**40)])
def test_a_range_that_is_none_is_refused(ranks):
    with pytest.raises(SuiteError, match="give the first and the last"):
        suite_for_ranks(SHAPES, ranks, [1])


def test_the_loop_in_the_docs_runs(ranks_map, monkeypatch):
    """Every python block of the section, one after another, on a map of its own shapes."""
    pytest.importorskip("torch")
    text = (Path(__file__).parents[2] / "docs" / "write-a-compressor.md").read_text()
    section = text.split("## Inside the loop")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(blocks) >= 4
    monkeypatch.setattr(CliffMap, "load", classmethod(lambda cls, path: ranks_map))
    names = {}
    for block in blocks:
        exec(block, names)
    assert {names[tool] % 16 for tool in ("asvd", "svdllm", "palu")} == {0}
    assert names["keep"] % 8 == 0


SHAPE = (14336, 4096)


@pytest.mark.parametrize(
    ("given", "as_good_as"),
    [
        ({"source": "h100", "gpu": True}, {}),
        ({"tokens": np.int64(64)}, {"tokens": 64}),
        ({"tokens": np.array([64, 128])}, {"tokens": [64, 128]}),
        ({"dtype": np.float16}, {"dtype": "float16"}),
        ({"layers": np.array(SHAPE)}, {}),
        ({"layers": tuple(np.array(SHAPE))}, {}),
    ],
)
def test_numpys_numbers_are_numbers_and_a_gpu_is_named_as_elsewhere(given, as_good_as):
    def ranks(layers=SHAPE, source=None, gpu=False, **asked):
        where = {"gpu": source} if gpu else {"source": gacprof.rule_table("h100")}
        return [c.d for c in gacprof.safe_ranks(layers, **where, **asked)]

    assert ranks(**given) == ranks(**as_good_as) != []


@pytest.mark.parametrize(
    "given",
    [
        {"layers": (4096.0, 4096)}, {"layers": (True, 4096)}, {"layers": np.zeros(2)},
        {"tokens": 64.5}, {"tokens": True}, {"source": None},
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_in_one_line(given):
    asked = {"layers": SHAPE, "source": gacprof.rule_table("h100")} | given
    with pytest.raises(MapError) as refused:
        gacprof.safe_ranks(asked.pop("layers"), **asked)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("source", ["a100-published", "rules"])
def test_a_scalar_array_is_a_size_to_look_near(source):
    held = gacprof.rule_table("h100") if source == "rules" else CliffMap.load(source)
    near = held.candidates("linear", axis="K", near=107, count=3)
    assert held.candidates("linear", axis="K", near=np.array(107), count=3) == near != []
    for none in (107.0, "107", True):
        with pytest.raises(MapError, match="near must be a whole number"):
            held.candidates("linear", axis="K", near=none)
    assert held.name in repr(held) and "object at" not in repr(held)
