"""Whatever limits and constraints are asked for: a plan that keeps all of them, or a refusal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import TOKENS

from gacprof.core.errors import GacprofError
from gacprof.planning import Constraints, plan

RANKS = ("*q_proj:rank", "*.0.*:rank", "*down_proj:rank", "*:rank")


def sometimes(strategy):
    return st.none() | strategy


@pytest.fixture(scope="module")
def now_us(planted):
    """The predicted time of the checkpoint as it is."""
    return plan(
        *planted("asvd_mha_r1"), tokens=TOKENS, constraints=Constraints(pinned={"*": "keep"})
    ).predicted_after_us


@settings(max_examples=20)
@given(
    aim=st.sampled_from(["pad", "energy", "gac", "latency"]),
    parameters=sometimes(st.integers(2_500_000, 2_900_000)),
    memory=sometimes(st.integers(5_000_000, 5_800_000)),
    time=sometimes(st.floats(0.7, 1.1)),
    floor=sometimes(st.floats(0.85, 1.0)),
    least=st.dictionaries(st.sampled_from(RANKS), st.integers(8, 96), max_size=2),
    most=st.dictionaries(st.sampled_from(RANKS), st.integers(48, 160), max_size=2),
    pinned=st.dictionaries(
        st.sampled_from(RANKS), st.integers(40, 128) | st.just("keep"), max_size=1
    ),
    uniform=st.sampled_from(["none", "role", "module", "*:width"]),
    untouched=st.booleans(),
    fuse=st.booleans(),
)
def test_all_of_it_holds_or_it_is_refused(
    planted, now_us, aim, parameters, memory, time, floor, least, most, pinned, uniform,
    untouched, fuse,
):  # fmt: skip
    inventory, cliff_map = planted("asvd_mha_r1")
    limit = None if time is None else time * now_us
    try:
        made = plan(
            inventory, cliff_map, objective=aim, tokens=TOKENS, budget_parameters=parameters,
            memory=memory, latency_limit_us=limit, quality_floor=floor,
            constraints=Constraints(uniform, pinned, least, most, untouched, fuse),
        )  # fmt: skip
    except GacprofError as error:
        assert "\n" not in str(error)
        return
    assert parameters is None or made.budget.checkpoint_after <= parameters
    assert memory is None or made.memory.after <= memory
    assert limit is None or made.predicted_after_us <= limit * (1 + 1e-9)
    assert floor is None or made.energy_kept >= floor - 1e-9
    proof = made.certificate
    assert proof.value <= proof.bound
    why_not = ("nothing is proved", "judged with other sizes", "not over all joint sizes")
    assert proof.proved or any(why in note for note in proof.notes for why in why_not)
    for choice in made.choices:
        size = choice.after or inventory.dim(choice.dim).dense_size
        dim = inventory.dim(choice.dim)
        assert size >= max([v for p, v in least.items() if matches(dim, p)], default=1)
        assert size <= min([v for p, v in most.items() if matches(dim, p)], default=size)
        for pattern, pin in pinned.items():
            assert not matches(dim, pattern) or size == (dim.size if pin == "keep" else pin)
        shared = uniform == "role" and pinned  # a pin holds for all that share the size
        if not untouched and not shared and aim != "latency":
            assert choice.safe or any(matches(dim, p) for p in pinned)
    if uniform == "*:width":
        assert len({c.after for c in made.choices if c.kind == "width"}) == 1


def matches(dim, pattern):
    from fnmatch import fnmatchcase

    return fnmatchcase(dim.name, pattern)


def test_a_dim_without_a_safe_size_stays_and_the_plan_says_why(planted):
    inventory, cliff_map = planted("asvd_mha_r1")
    rank = next(dim for dim in inventory.dims if dim.kind == "rank" and dim.size % 8 > 2)
    only = {"least": {rank.name: rank.size - 1}, "most": {rank.name: rank.size + 1}}
    made = plan(
        inventory, cliff_map, objective="pad", tokens=TOKENS,
        constraints=Constraints(fuse=False, **only),
    )  # fmt: skip
    assert {c.dim: c.after for c in made.choices}[rank.name] == rank.size
    assert (
        f"1 dim stays as it is, {rank.name}: of the sizes near it that the map knows none is safe "
        "(3 misaligned)"
    ) in made.warnings
