"""The transformation of skewed columns against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vhat.models.yeo_johnson import choose_power, transform


def column(kind, n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = {
        "long right": rng.lognormal(size=n),
        "long left": -rng.lognormal(size=n),
        "gamma": rng.gamma(3.0, size=n),
        "normal": rng.normal(size=n),
    }[kind]
    return (x - x.mean()) / x.std()


@pytest.mark.parametrize("power", [-2.0, 0.0, 0.5, 1.0, 2.0, 4.0])
def test_it_is_the_textbooks_transformation(power):
    x = column("long right")
    np.testing.assert_allclose(transform(x, power), stats.yeojohnson(x, lmbda=power), rtol=1e-12, atol=1e-14)


def test_the_power_is_that_of_the_highest_likelihood():
    x = column("gamma")
    assert 0 < stats.yeojohnson_normmax(x) < 1
    assert choose_power(x, np.ones(len(x))) == pytest.approx(stats.yeojohnson_normmax(x), abs=1e-4)


@pytest.mark.parametrize(("kind", "end"), [("long right", 0.0), ("long left", 2.0)])
def test_a_tail_is_drawn_in_by_a_logarithm_at_most_so_that_far_points_stay_far(kind, end):
    x = column(kind)
    power = choose_power(x, np.ones(len(x)))
    assert power == pytest.approx(end, abs=1e-3)
    far = transform(np.array([10.0, 100.0, 1000.0]) * (1 if end == 0 else -1), power)
    assert np.all(np.abs(np.diff(far)) > 2)


def test_a_weight_counts_like_copies():
    x = column("long right", n=60)
    weights = np.random.default_rng(1).integers(1, 4, size=60)
    repeated = np.repeat(x, weights)
    center, spread = repeated.mean(), repeated.std()
    copies = choose_power((repeated - center) / spread, np.ones(len(repeated)))
    assert choose_power((x - center) / spread, weights) == pytest.approx(copies, abs=1e-5)


def test_columns_that_are_not_skewed_and_switches_stay_exactly_as_they_are():
    x, switch = column("normal"), np.where(np.arange(400) < 20, 4.0, -0.2)
    for each in (x, switch):
        assert choose_power(each, np.ones(400)) == 1.0
        np.testing.assert_array_equal(transform(each, 1.0), each)
