"""Rows of a model among those that its recipe was given: weights that are counts, rounded responses, other units."""

from __future__ import annotations

import numpy as np
import pytest

import vhat
from vhat.fitted.match_rows import held_rows

Y = np.array([0.31, -1.2, 2.05, 0.77, 1.4])


def model(y):
    """Return a model that holds these responses."""
    return vhat.from_numpy(lambda q, x: q[0] + 0.0 * x, [0.0], np.arange(float(len(y))), y, weight_decay=1.0)


@pytest.mark.parametrize("size", [1e20, 2.0**62])
def test_weights_that_are_counts_of_a_survey_are_not_taken_for_copies(size):
    weights = size * np.array([1.0, 2.0, 0.0, 1.0, 3.0])
    np.testing.assert_array_equal(held_rows(model(Y), Y, weights), np.arange(5))
    np.testing.assert_array_equal(held_rows(model(Y[weights > 0]), Y, weights), [0, 1, 3, 4])
    with pytest.raises(vhat.InputError, match="handed 5 rows and its model holds 3"):
        held_rows(model(Y[:3]), Y, weights)


@pytest.mark.parametrize("counts", [[2, 0, 1, 0, 2], [3, 1, 0, 1, 2], [1, 0, 0, 0, 1]])
def test_copies_are_recognised_whatever_their_number(counts):
    rows = np.repeat(np.arange(5), counts)
    np.testing.assert_array_equal(held_rows(model(Y[rows]), Y, np.array(counts, dtype=float)), rows)


def test_weights_that_cannot_be_used_are_refused_also_where_all_rows_match():
    with pytest.raises(vhat.InputError, match="sample_weight"):
        held_rows(model(Y), Y, [1.0, 2.0])


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_rounded_responses_are_not_said_to_be_in_other_units(digits):
    y = np.random.default_rng(0).normal(size=50) * 10.0 ** (3 - digits)
    with pytest.raises(vhat.InputError, match="rounded inside"):
        held_rows(model(np.round(y, digits)), y)
    with pytest.raises(vhat.InputError, match="rounded inside"):
        held_rows(model(np.floor(y * 10.0**digits) / 10.0**digits), y)


@pytest.mark.parametrize(("scale", "shift"), [(1.0004, 0.0), (1.0, 1e-3), (1 / 3, 20.0), (-1.0, 0.0)])
def test_other_units_are_named_however_near_they_are(scale, shift):
    y = np.random.default_rng(0).normal(size=50)
    with pytest.raises(vhat.InputError, match="y in other units"):
        held_rows(model(np.float32(scale * y + shift).astype(float)), y)
    both = np.c_[scale * y + shift, y]
    targets = vhat.from_numpy(lambda q, x: np.zeros((len(x), 2)) + q[0], [0.0], y, both, weight_decay=1.0)
    with pytest.raises(vhat.InputError, match="y in other units"):
        held_rows(targets, np.c_[y, y])
