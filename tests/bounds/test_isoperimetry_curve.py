"""The curves of the multipliers equal the maximum over cells of the minimum over choices of the table."""

from __future__ import annotations

import numpy as np
import pytest

from vhat.bounds import isoperimetric, isoperimetric_multiplier
from vhat.bounds.isoperimetry_table import FINE, make_table


def by_the_table(delta, v, c, sd=None):
    """Return the value over all cells and choices, one row at a time."""
    square, divergence, spread = make_table(delta, FINE)
    growth = v * np.sqrt(2 * divergence) + c * divergence if sd is None else sd * np.sqrt(spread)
    return np.sqrt(np.max(np.min(square * (1 + growth), axis=1)))


@pytest.mark.parametrize("delta", [0.2, 0.05, 1e-3, 1e-10])
def test_multipliers_are_those_of_the_table_or_of_no_assumption(delta):
    rng = np.random.default_rng(0)
    no_assumption = float(isoperimetric_multiplier(delta, v=np.inf))
    for share in (0.0, 1 / 3, 1.0):
        totals = 10.0 ** rng.uniform(-6, 6, 40)
        found = isoperimetric_multiplier(delta, v=totals * (1 - share), c=totals * share)
        expected = [min(by_the_table(delta, t * (1 - share), t * share), no_assumption) for t in totals]
        np.testing.assert_allclose(found, expected, rtol=1e-11)
    spreads = 10.0 ** rng.uniform(-6, 6, 40)
    expected = [min(by_the_table(delta, 0, 0, sd), no_assumption) for sd in spreads]
    np.testing.assert_allclose(isoperimetric_multiplier(delta, sd=spreads), expected, rtol=1e-11)


def test_a_row_alone_has_the_multiplier_that_it_has_among_many_kinds():
    rng = np.random.default_rng(1)
    v, c = rng.gamma(1.0, 0.5, size=(2, 300))
    together = isoperimetric_multiplier(0.05, v=v, c=c)
    alone = [float(isoperimetric_multiplier(0.05, v=v[i], c=c[i])) for i in range(0, 300, 60)]
    np.testing.assert_allclose(together[::60], alone, rtol=1e-11)


def test_a_million_new_responses_take_no_memory_to_speak_of():
    """The ratios of v to the whole variance differ in every row; 3 million numbers in, 1 million out."""
    V = np.random.default_rng(2).gamma(2.0, 1.0, 10**6)
    half = isoperimetric(V, 100, 0.1, 0.05, v=V / 2, c=V / 4, observation_noise=0.1)
    some = slice(None, None, 99_991)
    again = isoperimetric(V[some], 100, 0.1, 0.05, v=V[some] / 2, c=V[some] / 4, observation_noise=0.1)
    np.testing.assert_array_equal(half[some], again)
