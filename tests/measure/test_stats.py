"""Order statistics: exact on known cases, and the interval covers as often as it claims."""

import random

import pytest

from gacprof.measure.stats import median, median_interval


def test_the_interval_of_ten_values_runs_from_the_second_to_the_ninth():
    # Binomial(10, 1/2): P(2 ≤ X ≤ 8) = 97.9 % and one rank further in is only 89 %.
    assert median_interval(list(range(1, 11))) == (2, 5.5, 9)


def test_few_values_give_their_range():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
    assert median_interval([7.0]) == (7.0, 7.0, 7.0)


def test_the_interval_covers_the_true_median_as_often_as_it_claims():
    draw = random.Random(1)
    for n in (10, 25, 60):
        covered = 0
        for _ in range(2000):
            low, _, high = median_interval([draw.expovariate(1.0) for _ in range(n)])
            covered += low <= 0.693147 <= high
        assert covered / 2000 >= 0.945, n


def test_the_approximation_for_many_values_joins_the_exact_rule():
    below = median_interval([float(i) for i in range(999)])
    above = median_interval([float(i) for i in range(1000)])
    assert abs(below[0] - above[0]) <= 2 and abs(below[2] - above[2]) <= 2


def test_nothing_has_no_median():
    for statistic in (median, median_interval):
        with pytest.raises(ValueError):
            statistic([])
