"""What compressors are fed: safe dims, and the one number their option takes."""

from __future__ import annotations

import pytest

from gacprof.cliffmap.curves import Axis, Measured, make_curve
from gacprof.cliffmap.export import best_modulus, moduli, rows, settings
from gacprof.core.errors import MapError


def curve(latency, dims=range(64, 321)):
    what = Axis("linear", "K", {"M": 64, "N": 512}, "float16", {}, "recorded")
    return make_curve(what, [Measured(d, latency(d)) for d in dims])


@pytest.mark.parametrize("modulus", [2, 16])
def test_the_planted_modulus_is_the_best_one(modulus):
    best = best_modulus(moduli(curve(lambda d: 10.0 if d % modulus == 0 else 13.0)))
    assert best.modulus == modulus
    assert (best.penalty, best.safe_share, best.unreached) == (0.0, 1.0, 0)


def test_what_no_single_modulus_can_give_is_told():
    """Full speed at multiples of 32 and at 72: rounding up to 32 never finds 72."""
    c = curve(lambda d: (10.0 if d % 32 == 0 or d == 72 else 15.0) * (2 if d > 72 else 1))
    best = best_modulus(moduli(c))
    assert best.modulus == 32 and best.unreached == 1 and best.loses > 0


def test_doubling_a_modulus_must_be_worth_it():
    c = curve(lambda d: 10.0 if d % 16 == 0 else 10.3 if d % 8 == 0 else 14.0)
    assert best_modulus(moduli(c)).modulus == 8
    c = curve(lambda d: 10.0 if d % 16 == 0 else 12.0 if d % 8 == 0 else 14.0)
    assert best_modulus(moduli(c)).modulus == 16


def test_the_published_a100_gives_16_for_k_and_8_for_n(a100):
    k, n = a100.curve("linear", "K", M=512), a100.curve("linear", "N", M=512)
    assert best_modulus(moduli(k)).modulus == 16 and best_modulus(moduli(n)).modulus == 8
    assert moduli(k)[1].penalty > 1
    table = {row["tool"]: row for row in settings([k, n])}
    assert table["ASVD"]["value"] == 16 and table["ASVD"]["loses"] < 0.02
    assert table["ASVD"]["default"] == 1 and table["ASVD"]["default_penalty"] > 1
    (minitron,) = (row for tool, row in table.items() if "Minitron" in tool)
    assert minitron["default_penalty"] is None  # 4008–4100 holds no three multiples of 256


def test_too_few_dims_are_refused():
    with pytest.raises(MapError, match="too few dims"):
        best_modulus(moduli(curve(lambda d: 1.0, dims=[64, 65])))


def test_rows_for_csv_hold_every_measured_dim(a100):
    table = rows(a100)
    assert len(table) == sum(len(c.points.d) for c in a100.curves)
    assert set(table[0]) == {
        "operator", "axis", "dtype", "fixed", "flags",
        "d", "latency_us", "penalty", "penalty_low", "penalty_high", "verdict", "safe",
        "on_frontier", "curve", "tolerance",
    }  # fmt: skip
