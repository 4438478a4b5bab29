"""What the data do not decide is said: in the audit, in the guarantee, and by the estimator as a warning."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import vhat
from vhat.intervals.options import BOUNDS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)) * [1.0, 0.3, 0.1]
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.standard_normal(40)
POINTS = RNG.normal(size=(5, 3))


def linear(q, Z):
    return Z @ q


def ridge(lam, y=Y, x=X):
    theta = np.linalg.solve(x.T @ x / len(x) + lam * np.eye(x.shape[1]), x.T @ y / len(x))
    return vhat.from_jax(linear, theta, x, y, weight_decay=lam)


def share(lam, x=X):
    """``1 - sum s^2 / max(sum s, 1)`` over the shrinkage factors of ridge regression."""
    values = np.linalg.svd(x, compute_uv=False) ** 2 / len(x)
    s = values / (values + lam)
    return 1 - np.sum(s**2) / max(np.sum(s), 1.0)


def table(n=60):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, 100 + 20 * np.sin(2 * X[:, 0]) + rng.normal(size=n)


# -- the fit -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lam", [0.0, 1e-3, 0.05, 1.0, 1e3])
@pytest.mark.parametrize("unit", [1.0, 1e9])
def test_the_support_line_is_the_shrinkage_of_ridge_regression_in_any_unit(lam, unit):
    line = ridge(lam, unit * Y).audit()["support"]
    assert line.value == pytest.approx(share(lam), abs=1e-9)
    assert line.verdict == ("fails" if share(lam) > 0.5 else "holds")


@pytest.mark.parametrize("lam", [0.1, 0.9, 1.1])
def test_a_model_of_one_parameter_is_measured_by_its_own_shrinkage(lam):
    one = np.ones((9, 1))
    line = ridge(lam, np.linspace(0, 1, 9), one).audit(noise=0.3)["support"]
    assert line.value == pytest.approx(lam / (1 + lam), abs=1e-12)
    assert line.verdict == ("fails" if lam > 1 else "holds")


def test_outputs_in_other_units_do_not_change_the_share():
    lam, both = 0.05, np.column_stack([Y, 1e6 * np.sin(X[:, 0])])
    theta = np.linalg.solve(X.T @ X / 40 + lam * np.eye(3), X.T @ both / 40)
    line = vhat.from_jax(linear, theta, X, both, weight_decay=lam).audit()["support"]
    assert line.value == pytest.approx(share(lam), abs=1e-9)  # the same smoother twice


def test_a_network_left_with_nothing_but_its_offset_is_not_supported_for_being_small():
    """s = 1/(1 + lam) for the one parameter that is left: unsupported is 1/2 at lam = 1, the width near a mean's."""
    X, y = table()
    network = vhat.NetworkRegressor((4,), weight_decay=1.0).fit(X, y)
    assert network.score(X, y) == pytest.approx(0.0, abs=1e-9)
    line = network.audit()["support"]
    assert line.value == pytest.approx(1 - 0.25, abs=1e-6)
    assert line.verdict == "fails"


def test_a_fit_that_weight_decay_decides_says_so_in_the_guarantee_and_a_fit_that_it_does_not_is_silent():
    for noise in (None, 0.3):
        held = ridge(1e3).interval(POINTS, noise=noise)
        assert held.undetermined == pytest.approx(share(1e3), abs=1e-9)
        assert "beware: weight decay and not the data decides this fit" in held.guarantee
        free = ridge(1e-3).interval(X[:5], noise=noise)
        assert free.undetermined is None
        assert "beware" not in free.guarantee


@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_the_estimator_warns_once_of_a_huge_weight_decay(unit):
    X, y = table()
    network = vhat.NetworkRegressor((4,), weight_decay=1e3).fit(X, unit * y)
    with pytest.warns(vhat.SupportWarning, match=r"weight decay decides this fit.*Lower weight_decay") as said:
        band = network.predict_interval(X[:5])
    assert len(said) == 1
    assert said[0].filename == __file__
    assert band.half_width.max() < 1e-3 * np.std(unit * y)  # what had been handed out without a word
    assert not network.audit().holds
    with pytest.warns(vhat.SupportWarning, match="5 of 5 rows") as again:
        network.predict_interval(X[:5])
    assert len(again) == 1


# -- rows ----------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:column . was between:vhat.SupportWarning")
def test_rows_far_from_the_data_are_counted_and_named_alone_as_in_company():
    X, y = table()
    network = vhat.NetworkRegressor((4,), weight_decay=1e-2).fit(X, y)
    rows = np.concatenate([X[:3], [[50.0, 0.0], [1e3, 1e3]]])
    with pytest.warns(vhat.SupportWarning, match=r"hardly speak for 2 of 5 rows \(rows 3, 4: .*band.abstain") as said:
        band = network.predict_interval(rows)
    assert sum("hardly speak" in str(each.message) for each in said) == 1
    np.testing.assert_array_equal(band.abstain(max_unsupported=0.5), [False] * 3 + [True] * 2)
    assert "hardly speak for 2 of 5 values" in band.guarantee
    assert "hardly speak for 2 of 5 values" in repr(band)
    for row in range(3):
        network.predict_interval(rows[[row]])  # and no warning, or this test fails
    for row in (3, 4):
        with pytest.warns(vhat.SupportWarning, match=r"1 of 1 rows \(row 0:"):
            assert "for this value" in network.predict_interval(rows[[row]]).guarantee


@pytest.mark.filterwarnings("ignore:column . was between:vhat.SupportWarning")
def test_a_row_of_two_outputs_is_counted_once():
    X, y = table()
    network = vhat.NetworkRegressor((4,), weight_decay=1e-2).fit(X, np.column_stack([y, X[:, 1] ** 2]))
    with pytest.warns(vhat.SupportWarning, match=r"for 1 of 2 rows \(row 1:"):
        network.predict_interval([X[0], [1e3, 1e3]])


# -- few degrees of freedom ----------------------------------------------------------------------------
def test_a_noise_level_of_two_degrees_of_freedom_is_allowed_for():
    """For a straight line (f - E f)/standard_error is Student's t exactly: how often the default misses."""
    x, y = np.arange(4.0)[:, None], np.array([0.1, 0.9, 2.2, 2.9])
    network = vhat.NetworkRegressor((), weight_decay=0.0).fit(x, y)
    band = network.predict_interval(x[:1])
    assert band.df == pytest.approx(2.0)
    assert float(2 * stats.t.sf(band.half_width / band.standard_error, 2)[0]) == pytest.approx(0.05, rel=1e-6)
    tight = network.predict_interval(x[:1], bound="tight")
    assert float(2 * stats.t.sf(tight.half_width / tight.standard_error, 2)[0]) < 0.05


# -- rounding ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("unit", [1.0, 1e9])
def test_responses_that_the_model_reproduces_to_rounding_have_no_noise(unit):
    theta = unit * np.array([1 / 3, -2 / 7, 0.1])
    y = np.array([sum(float(a) * float(b) for a, b in zip(row, theta, strict=True)) for row in X])
    fitted = vhat.from_jax(linear, theta, X, y, weight_decay=0.0)
    assert 0 < np.abs(fitted.predict(X) - y).max() < 1e-14 * unit
    with pytest.raises(vhat.NoiseError, match="what rounding leaves of y"):
        fitted.interval(POINTS)
    assert fitted.audit()["noise"].verdict == "fails"


# -- one table of the bounds -----------------------------------------------------------------------------
def test_every_bound_has_a_row_in_the_docstring_and_in_the_page():
    page = (Path(__file__).parents[2] / "docs" / "bounds.md").read_text()
    which = page[page.index("## Which bound") : page.index("## Setting")]
    for bound in BOUNDS:
        assert re.search(rf'\n\|[^|]*`"{bound}"`[^|]*\|', which)
        assert re.search(rf"\n +``{bound}`` +\w", vhat.FittedModel.interval.__doc__)
    assert "table of all bounds" in vhat.NetworkRegressor.predict_interval.__doc__
