"""``unsupported`` below zero: what it means, how it is shown, and which predictions are not to be relied on."""

from __future__ import annotations

import numpy as np
import pytest

import vhat
from vhat.variance.weighted_norm import MOSTLY, hardly_supported, shown_share

Y = np.tile([0.3, -0.3, 0.1, -0.1], 3)


def bent(lam, R):
    """Return f = q + b q^2/2 at q = 0: the data part of A is 1, that of the decay ``lam``, of the residuals ``R``."""
    b = -R * 12 / (Y @ Y) * Y
    columns = np.stack([np.ones(12), b], axis=1)
    return vhat.from_numpy(lambda q, Z: Z[:, 0] * q[0] + 0.5 * Z[:, 1] * q[0] ** 2, [0.0], columns, Y, weight_decay=lam)


def band(lam, R, curvature="hessian"):
    return bent(lam, R).interval([[1.0, 0.0]], noise=0.2, curvature=curvature)


@pytest.mark.parametrize(
    ("lam", "R", "unsupported"), [(10.0, -10.9, -9.0), (0.1, -0.8, -7 / 3), (0.1, 0.0, 1 / 11), (4.0, 0.0, 0.8)]
)
def test_the_share_is_that_of_decay_and_residual_curvature_in_the_whole(lam, R, unsupported):
    assert band(lam, R).unsupported[0] == pytest.approx(unsupported, rel=1e-5)
    assert (lam + R) / (1 + lam + R) == pytest.approx(unsupported)


def test_a_minimum_that_is_soft_is_supported_and_its_interval_wide():
    soft, gauss = band(0.1, -0.8), band(0.1, -0.8, "ggn")
    assert soft.unsupported[0] < -2
    assert gauss.unsupported[0] == pytest.approx(1 / 11)  # the data hold ten elevenths
    assert soft.half_width[0] > 3 * gauss.half_width[0]
    assert not soft.abstain(max_unsupported=0.5).any()
    assert soft.abstain(max_half_width=gauss.half_width[0]).all()


def test_a_share_that_says_nothing_of_the_data_is_counted_as_unsupported():
    cancelled, gauss = band(10.0, -10.9), band(10.0, -10.9, "ggn")
    assert gauss.unsupported[0] == pytest.approx(10 / 11)
    assert gauss.abstain(max_unsupported=0.5).all()
    assert cancelled.abstain(max_unsupported=0.5).all()
    assert not cancelled.abstain(max_unsupported=1.0).any()  # 1 asks nothing


@pytest.mark.parametrize(("lam", "R", "text"), [(0.1, -0.8, "0.000"), (10.0, -10.9, "1.000"), (4.0, 0.0, "0.800")])
def test_tables_show_a_share_between_0_and_1_and_the_numbers_stay(lam, R, text):
    found = band(lam, R)
    assert f"{text}  converged" in repr(found)
    assert found.to_pandas()["unsupported"][0] == found.unsupported[0] == pytest.approx((lam + R) / (1 + lam + R))


def test_the_rule_counts_high_shares_and_cancelled_ones():
    shares = np.array([0.0, 0.5, 0.51, 1.0, -0.4, -3.9, -4.1, -1e6, np.nan])
    expected = [False, False, True, True, False, False, True, True, False]
    assert hardly_supported(shares).tolist() == expected
    assert hardly_supported(shares, MOSTLY).tolist() == expected
    assert not hardly_supported(shares, 1.0).any()
    np.testing.assert_array_equal(shown_share(shares), [0.0, 0.5, 0.51, 1.0, 0.0, 0.0, 1.0, 1.0, np.nan])
