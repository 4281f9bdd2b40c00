"""A suite is checked before anything is measured, and the message names the key at fault."""

import re
import tomllib

import pytest
from suites import over, suite_of

from gacprof.core.errors import SuiteError
from gacprof.operators import OPERATORS
from gacprof.sweeping.suite import load_suite, parse_suite, shipped_suites

GOOD = """
name = "t"
[[sweep]]
operator = "linear"
axis = "K"
values = [107, { from = 96, to = 112, step = 8 }]
dims = { M = [1, 64], N = 32 }
flags = { bias = [false, true] }
"""


def parsed(text: str):
    return parse_suite(tomllib.loads(text), "t.toml")


def test_lists_multiply_out_and_ranges_include_both_ends():
    points = parsed(GOOD).points("cpu")
    assert {p.dim["K"] for p in points} == {96, 104, 107, 112}
    assert len(points) == 4 * 2 * 2
    assert all(axes == ("K",) for axes in points.values())


def test_auto_dtype_is_half_on_a_gpu_and_single_on_a_cpu():
    assert {p.dtype for p in parsed(GOOD).points("cuda")} == {"float16"}
    assert {p.dtype for p in parsed(GOOD).points("cpu")} == {"float32"}


def test_a_point_on_two_axes_is_one_point():
    tables = over("K", [96, 107], {"M": 1, "N": 32}), over("N", [32, 40], {"M": 1, "K": 107})
    points = suite_of(*tables).points("cpu")
    shared = {"M": 1, "N": 32, "K": 107}
    assert [axes for p, axes in points.items() if p.dim == shared] == [("K", "N")]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"linear"', '"linaer"', "unknown operator 'linaer'"),
        ('axis = "K"', 'axis = "Q"', "axis 'Q' is no dim of 'linear'"),
        ("values = [107, { from = 96, to = 112, step = 8 }]", "values = []", "has no values"),
        ("values = [107,", "values = [0, -8,", "sweep[0].values[0]: 0 must be greater than 0"),
        ("step = 8", "step = 0", "sweep[0].values[1].step: 0 must be greater than 0"),
        ("to = 112, ", "", "sweep[0].values[1].to: Field required"),
        ("flags", 'dtype = "fp17"\nflags', "sweep[0].dtype: unknown dtype 'fp17': use auto"),
        ("[107, { from = 96, to = 112, step = 8 }]", "[{ from = 9, to = 8 }]", "from = 9 is above"),
        ("N = 32", "N = 0", "dim 'N' of operator 'linear' is 0"),
        ("N = 32", "P = 32", "has no dim 'P'"),
        (", N = 32", "", "needs a size for its dim 'N'"),
        ("bias = [false, true]", "bias = 3", "flag 'bias'"),
        ("bias = [false, true]", "colour = 3", "no flag 'colour'"),
        ("[[sweep]]", "[timing]\nprocesses = 0\n[[sweep]]", "timing.processes"),
        ("[[sweep]]", "surprise = 1\n[[sweep]]", "surprise"),
        ('name = "t"', 'name = "../t"', "name"),
        ("to = 112, ", "to = 1000000000000, ", "sweep[0]: axis 'K': a range to 1000000000000"),
        ("to = 112, step = 8", "to = 2000000000", "sweep[0]: axis 'K' has 1999999906 values"),
        ("values = [107,", 'values = ["8",', "sweep[0].values[0]: "),
        ("values = [107,", "values = [true,", "sweep[0].values[0]: "),
        ("N = 32", 'N = "32"', "sweep[0].dims.N: "),
        ("[[sweep]]", '[timing]\nblocks = "12"\n[[sweep]]', "timing.blocks: "),
        ("[[sweep]]", "[timing]\nblocks = true\n[[sweep]]", "timing.blocks: "),
        ("[[sweep]]", "[timing]\nbudget_s = inf\n[[sweep]]", "timing.budget_s: "),
        ("[[sweep]]", "[timing]\nblocks = 9\nmost_blocks = 8\n[[sweep]]", "most_blocks (8) is be"),
        ("[[sweep]]", "[timing]\npasses = 2\n[[sweep]]", "no such key here (there are processes"),
        ("flags", "colour = 3\nflags", "sweep[0].colour: no such key here (there are operator, ax"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str):
    text = GOOD.replace(old, new)
    assert text != GOOD
    with pytest.raises(SuiteError, match=re.escape(message)):
        parsed(text).points("cpu")


def test_unreadable_suites(tmp_path):
    with pytest.raises(SuiteError, match=r"no suite 'nonesuch'.*quick"):
        load_suite("nonesuch")
    with pytest.raises(SuiteError, match="cannot read"):
        load_suite(tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(SuiteError, match="not valid TOML"):
        load_suite(broken)
    for many in (str([*range(1, 4001)]), "9" * 5000, "[" * 3000 + "1" + "]" * 3000):
        broken.write_text(GOOD.replace("[1, 64]", many).replace("N = 32", f"N = {many}"))
        with pytest.raises(SuiteError) as error:
            load_suite(broken).curves("cpu")
        assert str(broken) in str(error.value) and "\n" not in str(error.value)
    broken.write_text("a" + ".a" * 3_000_000 + " = 1\n")
    with pytest.raises(SuiteError, match="more than 4,000,000 characters"):
        load_suite(broken)


def test_every_shipped_suite_holds_points_and_keeps_its_promise():
    assert {"quick", "paper", "paper-a", "paper-b", "cpu", "full"} == set(shipped_suites())
    points = {}
    for name in shipped_suites():
        suite = load_suite(name)
        kind = "cpu" if all(s.device == "cpu" for s in suite.sweep) else "cuda"
        assert points.setdefault(name, suite.points(kind))
    assert {point.operator for point in points["full"]} == set(OPERATORS)
    assert points["paper"].keys() <= points["paper-a"].keys() | points["paper-b"].keys()
    assert load_suite("quick").timing.budget_s < 60 and load_suite("full").timing.budget_s < 480


@pytest.mark.parametrize(
    ("suite", "kind", "dtypes"),
    [("quick", "cpu", {"bfloat16", "float32"}), ("quick", "cuda", {"float16"}),
     ("cpu", "cpu", {"bfloat16", "float32"})],
)  # fmt: skip
def test_prefill_and_decode_are_covered_on_any_device(suite, kind, dtypes):
    points = [p for p in load_suite(suite).points(kind) if p.operator == "linear"]
    assert {p.dtype for p in points} == dtypes
    for dtype in dtypes:
        rows = {p.dim["M"] for p in points if p.dtype == dtype}
        assert 1 in rows and rows & set(range(256, 513))


def test_sweeps_of_one_axis_with_all_else_equal_are_one_curve():
    more = over("K", [120, 107], {"M": 64, "N": 32}, flags={"bias": True}, weight=4)
    curves = suite_of(*tomllib.loads(GOOD)["sweep"], more).curves("cpu")
    assert len(curves) == 4
    (longer,) = [curve for curve in curves if curve.weight == 4]
    assert longer.dims == [96, 104, 107, 112, 120]
    assert {tuple(c.dims) for c in curves if c is not longer} == {(96, 104, 107, 112)}


@pytest.mark.parametrize(
    ("name", "full"),
    [("fp16", "float16"), ("BF16", "bfloat16"), ("torch.half", "float16"), ("fp8", "float8_e4m3")],
)
def test_a_dtype_goes_by_the_names_that_people_have_for_it(name, full):
    [sweep] = parsed(GOOD.replace("flags", f'dtype = "{name}"\nflags')).sweep
    assert sweep.dtype == full


def test_a_refined_range_beside_dims_that_are_all_measured():
    """Both are one curve: dims named twice are measured, the others refined."""
    dims = {"M": 1, "N": 32}
    refined = over("K", range(1000, 2001), dims, strategy="adaptive")
    (curve,) = suite_of(refined, over("K", [96, 104, 1007], dims)).curves("cpu")
    assert len(curve.points) == 1003
    assert curve.refined == set(range(1000, 2001)) - {1007}
