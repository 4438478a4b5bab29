"""Rows left out by products of p x p matrices are those that are left out by one solve each."""

from __future__ import annotations

import numpy as np
import pytest

import vhat
from vhat.evidence import factored_rows, leave_one_out


def fitted_to(outputs):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    y = np.column_stack([np.sin(X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]])[:, :outputs] + 0.3 * rng.normal(
        size=(50, outputs)
    )
    network = vhat.NetworkRegressor((3,), weight_decay=1e-2)
    return network.fit(X, y, sample_weight=rng.uniform(0.5, 2.0, 50)).fitted_


@pytest.mark.parametrize("outputs", [1, 2])
def test_products_of_matrices_leave_out_what_single_solves_do(outputs, monkeypatch):
    fitted = fitted_to(outputs)
    problem, sigma = fitted.problem, np.random.default_rng(1).uniform(0.2, 0.5, size=(50, outputs))
    prepared = fitted.workspace.own_solver("hessian")
    expected = leave_one_out.leave_rows_out(problem, prepared, sigma)
    monkeypatch.setattr(factored_rows, "_FEW", 0.0)
    found = leave_one_out._by_factor(problem, prepared, sigma)
    for name in ("prediction", "leverage", "variance"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-8)
    assert found.rough == expected.rough
    monkeypatch.setattr(factored_rows, "_MOST_BYTES", 0)  # a Jacobian that does not fit is made twice
    again = leave_one_out._by_factor(problem, prepared, sigma)
    np.testing.assert_allclose(again.variance, expected.variance, rtol=1e-8)


def test_products_that_the_solver_does_not_confirm_are_not_used(monkeypatch):
    fitted = fitted_to(1)
    problem, sigma, prepared = fitted.problem, np.full((50, 1), 0.3), fitted.workspace.own_solver("hessian")
    expected = leave_one_out.leave_rows_out(problem, prepared, sigma)
    monkeypatch.setattr(factored_rows, "_FEW", 0.0)
    exact = factored_rows.products_of_rows
    monkeypatch.setattr(leave_one_out, "products_of_rows", lambda *given: tuple(1.001 * each for each in exact(*given)))
    found = leave_one_out.leave_rows_out(problem, prepared, sigma)
    np.testing.assert_array_equal(found.prediction, expected.prediction)


def test_some_rows_are_left_out_as_among_all(monkeypatch):
    fitted = fitted_to(2)
    prepared, sigma, rows = fitted.workspace.own_solver("hessian"), np.full((50, 2), 0.3), np.array([3, 17, 40])
    every = leave_one_out.leave_rows_out(fitted.problem, prepared, sigma)
    some = leave_one_out.leave_rows_out(fitted.problem, prepared, sigma, rows)
    np.testing.assert_allclose(some.prediction, every.prediction[rows], rtol=1e-12)
    np.testing.assert_allclose(some.variance, every.variance[rows], rtol=1e-12)
    assert some.status.tolist() == ["converged"] * 3


def test_of_many_rows_without_a_factorisation_a_sample_is_scored(monkeypatch):
    from vhat.intervals import calibration_scores

    fitted = fitted_to(1)
    every = fitted.calibrate("loo", noise=0.3).scores
    monkeypatch.setattr(calibration_scores, "MOST_SOLVED", 20)
    found = fitted.calibrate("loo", noise=0.3, seed=1).scores
    assert len(found) == 20
    assert set(np.round(found, 10)) <= set(np.round(every, 10))
    monkeypatch.setattr(factored_rows, "_FEW", 0.0)  # by matrices all of them are cheap
    assert len(fitted.calibrate("loo", noise=0.3).scores) == 50
