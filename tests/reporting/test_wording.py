"""Sentences say no more than the numbers they are made of."""

from gacprof.reporting import wording


def interval(low, value, high):
    return {"low": low * 1e3, "value": value * 1e3, "high": high * 1e3}


def test_at_least_is_the_sum_of_lower_bounds():
    step = {
        "tokens": 1024, "good": None, "timed": interval(14.255, 16.7, 19.6), "now": None,
        "saved": interval(6.11, 8.9, 24.0), "open": 1, "unknown": 0,
    }  # fmt: skip
    times = {"gpu": "h100", "totals": [step], "parts": [], "left_out": [], "notes": []}
    assert "save 8.9 ms (6.11 to 24) of at least 20.4 ms" in wording._step(times, 0, "")
    whole = {**times, "totals": [step | {"open": 0}]}
    assert "of 25.6 ms" in wording._step(whole, 0, "")
