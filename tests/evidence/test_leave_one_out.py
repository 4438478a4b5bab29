"""Leaving rows out by one solve each: against closed forms, deleted rows and true refits by SciPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import vhat
from tests import oracle
from vhat.evidence.leave_one_out import LeftOut, leave_rows_out, warn_of_rows
from vhat.fit import Minimum, Network, normal

RNG = np.random.default_rng(0)
N, P, LAM = 30, 4, 0.05
X = RNG.normal(size=(N, P))
Y = X @ RNG.normal(size=P) + 0.3 * RNG.standard_normal(N)


def linear(q, Z):
    return Z @ q


def ridge(X, y, lam, n, weight=None):
    """The penalised least-squares fit with 1/n as given, whatever rows are left."""
    w = np.ones(len(X)) if weight is None else weight
    return np.linalg.solve(
        X.T @ (w[:, None] * X) / n + lam * np.eye(X.shape[1]), X.T @ (w[:, None] * y.reshape(len(X), -1)) / n
    )


def without(i, *arrays):
    return tuple(np.delete(a, i, axis=0) for a in arrays)


# -- linear models: exact ----------------------------------------------------------------------------
@pytest.mark.parametrize("solver_memory", [None, "dual"])
def test_a_ridge_is_left_out_exactly(solver_memory, monkeypatch):
    if solver_memory == "dual":
        monkeypatch.setattr("vhat.linalg.solvers.plan._auto", lambda problem: (vhat.Dual(), "asked for here"))
    fitted = vhat.from_jax(linear, ridge(X, Y, LAM, N)[:, 0], X, Y, weight_decay=LAM)
    found = fitted.leave_one_out()
    assert found.solver == ("dense" if solver_memory is None else "dual")
    for i in range(N):
        X_, Y_ = without(i, X, Y)
        expected = X[i] @ ridge(X_, Y_, LAM, N)[:, 0]
        assert found.prediction[i] == pytest.approx(expected, rel=1e-7)
        A = X_.T @ X_ / N + LAM * np.eye(P)
        V = N * np.sum((X_ @ np.linalg.solve(A, X[i]) / N) ** 2)
        assert found.weighted_norm[i] == pytest.approx(V, rel=1e-6)
    np.testing.assert_allclose(found.residual, Y - found.prediction, rtol=1e-12)
    hat = X @ np.linalg.solve(X.T @ X / N + LAM * np.eye(P), X.T) / N
    np.testing.assert_allclose(found.leverage, np.diag(hat), rtol=1e-7)
    assert set(found.status) == {"converged"}


def test_a_weighted_ridge_is_left_out_exactly_and_a_row_of_weight_zero_was_never_in():
    weight = RNG.uniform(0.2, 3.0, N)
    weight[4] = 0.0
    theta = ridge(X, Y, LAM, N, weight)[:, 0]
    found = vhat.from_jax(linear, theta, X, Y, weight_decay=LAM, sample_weight=weight).leave_one_out()
    for i in range(N):
        X_, Y_, w_ = without(i, X, Y, weight)
        assert found.prediction[i] == pytest.approx(X[i] @ ridge(X_, Y_, LAM, N, w_)[:, 0], rel=1e-9)
    assert found.leverage[4] == 0.0
    assert found.prediction[4] == pytest.approx(X[4] @ theta, rel=1e-12)


def test_all_outputs_of_a_row_are_left_out_together():
    """Outputs that share their parameters: f_1 = x'q, f_2 = z'q."""
    Z = RNG.normal(size=(N, P))
    Y2 = np.stack([X @ np.ones(P), Z @ np.ones(P)], axis=1) + 0.2 * RNG.standard_normal((N, 2))
    rows = np.stack([X, Z], axis=1)

    def solve(rows, Y2):
        flat = rows.reshape(-1, P)
        return np.linalg.solve(flat.T @ flat / N + LAM * np.eye(P), flat.T @ Y2.ravel() / N)

    fitted = vhat.from_jax(lambda q, R: R @ q, solve(rows, Y2), rows, Y2, weight_decay=LAM)
    found = fitted.leave_one_out()
    assert found.prediction.shape == found.weighted_norm.shape == (N, 2)
    assert found.leverage.shape == found.status.shape == (N,)
    A = rows.reshape(-1, P).T @ rows.reshape(-1, P) / N + LAM * np.eye(P)
    for i in range(N):
        rows_, Y2_ = without(i, rows, Y2)
        np.testing.assert_allclose(found.prediction[i], rows[i] @ solve(rows_, Y2_), rtol=1e-8)
        flat = rows_.reshape(-1, P)
        A_ = flat.T @ flat / N + LAM * np.eye(P)
        V = N * np.sum((flat @ np.linalg.solve(A_, rows[i].T) / N) ** 2, axis=0)
        np.testing.assert_allclose(found.weighted_norm[i], V, rtol=1e-8)
        block = rows[i] @ np.linalg.solve(A, rows[i].T) / N
        assert found.leverage[i] == pytest.approx(np.linalg.eigvalsh(block).max(), rel=1e-9)


def test_noise_of_different_sizes_enters_the_variance_row_by_row():
    sigma = np.linspace(0.1, 2.0, N)
    fitted = vhat.from_jax(linear, ridge(X, Y, LAM, N)[:, 0], X, Y, weight_decay=LAM)
    work = fitted._work
    with fitted.problem.scope():
        found = leave_rows_out(fitted.problem, work.own_solver("hessian"), sigma[:, None])
    for i in (0, 7, 29):
        X_, s_ = without(i, X, sigma)
        leans = X_ @ np.linalg.solve(X_.T @ X_ / N + LAM * np.eye(P), X[i]) / N
        assert found.variance[i, 0] / N == pytest.approx(np.sum((s_ * leans) ** 2), rel=1e-9)


def test_blocks_do_not_matter(monkeypatch):
    fitted = vhat.from_jax(linear, ridge(X, Y, LAM, N)[:, 0], X, Y, weight_decay=LAM)
    whole = fitted.leave_one_out()
    monkeypatch.setattr("vhat.variance.weighted_norm.points_together", lambda _: 7)
    parts = fitted.leave_one_out()
    np.testing.assert_allclose(parts.prediction, whole.prediction, rtol=1e-12)
    np.testing.assert_allclose(parts.leverage, whole.leverage, rtol=1e-12)


# -- networks: true refits ------------------------------------------------------------------------------
CASES = {
    "tanh": ("tanh", 1, 6, None, 40, 1e-3, oracle.half_square),
    "softplus": ("softplus", 2, 8, None, 50, 1e-3, oracle.half_square),
    "two outputs": ("tanh", 2, 6, 2, 40, 3e-3, oracle.half_square),
    "log cosh": ("tanh", 1, 6, None, 40, 1e-3, oracle.log_cosh),
}


def refits(predict, params, X, y, lam, loss):
    """Predictions at each row by the fit without it: SciPy from the full fit, keeping 1/n and lam."""
    with jax.enable_x64(True):
        theta, unravel = ravel_pytree(jax.tree.map(jnp.asarray, params))
        Y = jnp.asarray(y).reshape(len(y), -1)

        def objective(t, w):
            f = predict(unravel(t), jnp.asarray(X)).reshape(len(y), -1)
            return jnp.mean(w * jax.vmap(loss)(f, Y)) + 0.5 * lam * jnp.sum(t**2)

        value, slope, bend = (jax.jit(f) for f in (objective, jax.grad(objective), jax.hessian(objective)))
        found = []
        for i in range(len(y)):
            w = jnp.ones(len(y)).at[i].set(0.0)
            result = minimize(
                lambda t, w=w: float(value(t, w)),
                theta,
                jac=lambda t, w=w: np.asarray(slope(t, w)),
                hess=lambda t, w=w: np.asarray(bend(t, w)),
                method="trust-exact",
                options={"gtol": 1e-9, "initial_trust_radius": 0.1},
            )
            assert np.linalg.norm(slope(result.x, w)) < 1e-7
            found.append(np.asarray(predict(unravel(jnp.asarray(result.x)), jnp.asarray(X[i : i + 1])))[0])
        return np.array(found)


@pytest.mark.parametrize("name", CASES)
def test_residuals_are_those_of_true_refits_without_each_row(name):
    activation, d, width, outputs, n, lam, loss = CASES[name]
    rng = np.random.default_rng(len(name))
    X = rng.uniform(-2, 2, size=(n, d))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, -1] ** 2
    y = y if outputs is None else np.stack([y, np.cos(X[:, 0]) * X[:, -1]], axis=1)
    y = y + 0.1 * rng.standard_normal(y.shape)
    predict = oracle.network(activation, outputs)
    start = oracle.random_params(rng, d, width, outputs)
    own = "half_mse" if loss is oracle.half_square else loss
    fitted = vhat.from_jax(predict, start, X, y, weight_decay=lam, loss=own).polish()
    found = fitted.leave_one_out()
    true = y - refits(predict, fitted.params, X, y, lam, loss)
    assert set(found.status) == {"converged"}
    assert np.corrcoef(found.residual.ravel(), true.ravel())[0, 1] >= 0.98
    assert np.median(np.abs(found.residual - true) / np.abs(true)) <= 0.02
    # and the residuals of the fit itself would not have passed
    assert np.median(np.abs(y - fitted.predict(X) - true) / np.abs(true)) > 0.1


# -- what cannot be left out ------------------------------------------------------------------------------
def test_a_row_that_alone_holds_a_parameter_is_flagged_not_divided():
    """Without decay, one row is all that determines its own offset: leverage 1 to rounding."""
    Z = np.column_stack([np.ones(8), np.arange(8) == 3]).astype(float)
    y = np.arange(8.0)
    fitted = vhat.from_jax(linear, np.linalg.lstsq(Z, y, rcond=None)[0], Z, y, weight_decay=0.0)
    with pytest.warns(vhat.LeverageWarning, match=r"1 of 8 training rows have leverage at or above 1 \(row 3\)"):
        found = fitted.leave_one_out()
    assert found.status[3] == "leverage"
    assert found.leverage[3] == pytest.approx(1.0)
    assert np.isnan(found.prediction[3])
    assert np.isnan(found.residual[3])
    others = np.delete(np.arange(8), 3)
    expected = [np.mean(np.delete(y[others], k)) for k in range(7)]
    np.testing.assert_allclose(found.prediction[others], expected, rtol=1e-9)
    assert "7 usable" in repr(found)


def test_one_row_that_stands_apart_is_warned_of():
    """Of leverage 0.998: a refit without it misses it by 3.6, the first-order step says 61."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(40, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=40)
    y[3] += 1.5
    X[3] = 3.5
    params = {"w": rng.normal(size=(1, 6)), "b": rng.normal(size=6), "v": rng.normal(size=6), "c": np.zeros(())}

    def minimum(params, weights):
        return vhat.from_jax(
            lambda q, Z: jnp.tanh(Z @ q["w"] + q["b"]) @ q["v"] + q["c"], params, X, y, weight_decay=1e-3,
            sample_weight=weights,
        ).polish()  # fmt: skip

    fitted = minimum(params, None)
    with pytest.warns(
        vhat.LeverageWarning, match=r"of 40 training rows have leverage above 0\.9 \(row.* 3.*largest 0\.9"
    ):
        found = fitted.leave_one_out()
    refit = minimum(fitted.params, np.where(np.arange(40) == 3, 0.0, 1.0))
    exact = y[3] - refit.predict(X[3:4])[0]
    assert abs(found.residual[3]) > 3 * abs(exact)
    assert found.rough >= 1
    assert f"{found.rough} of them roughly" in repr(found)


def test_a_row_of_leverage_above_one_hides_no_other():
    found = LeftOut(
        np.zeros((9, 1)), np.array([0.1] * 6 + [0.95, 1.2, 0.6]), np.ones((9, 1)),
        np.array(["converged"] * 7 + ["leverage", "converged"]), rough=3,
    )  # fmt: skip
    with pytest.warns(vhat.LeverageWarning) as said:
        warn_of_rows(found, few=True)
    first, second = (str(each.message) for each in said)
    assert "at or above 1 (row 7)" in first
    assert "1 of 9 training rows have leverage above 0.9 (row 6), the largest 0.95" in second


def test_many_rows_that_the_fit_leans_on_are_warned_of_where_the_step_is_not_exact():
    """One row of leverage 0.99, by a refit without it: the first-order step is off by three times the noise."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(14, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(14)
    recipe = Minimum(Network((1, 4, 1), "tanh", initial=normal(1.0)), weight_decay=1e-4)
    fitted = recipe(X, y, seed=0)
    with pytest.warns(vhat.LeverageWarning, match=r"7 of 14 training rows have leverage above 0\.5"):
        found = fitted.leave_one_out()
    row = int(np.argmax(found.leverage))
    refit = recipe.resume(fitted.params, X, y, sample_weight=np.where(np.arange(14) == row, 0.0, 1.0))
    assert abs(found.prediction[row] - refit.predict(X[row : row + 1])[0]) > 0.25
    with pytest.warns(vhat.LeverageWarning, match="errors at new rows are larger"):
        calibrated = fitted.calibrate("loo")
    assert calibrated.rough == 7
    assert "BUT 7 OF THEM HAVE LEVERAGE ABOVE 0.5" in calibrated.guarantee


def test_a_network_that_interpolates_is_not_taken_for_linear():
    """Without residuals the Hessian is that of Gauss-Newton, as for a linear model; the step is rough all the same."""
    network, rng = Network((1, 6, 1), "tanh", initial=normal(1.0)), np.random.default_rng(0)
    points, params = rng.uniform(-2, 2, size=(8, 1)), network.init(0)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        y = np.asarray(network(params, points)).reshape(-1) + 1e-9 * rng.standard_normal(8)
    fitted = vhat.from_jax(network, params, points, y, weight_decay=1e-6)
    with fitted.problem.scope():
        found = leave_rows_out(fitted.problem, fitted.workspace.own_solver("ggn"), np.ones((8, 1)))
    assert found.rough == np.sum(found.leverage > 0.5) > 4
    assert found.unreliable


def test_a_linear_model_is_left_out_exactly_whatever_the_leverage():
    y = Y[:6]
    fitted = vhat.from_jax(linear, ridge(X[:6], y, 1e-3, 6)[:, 0], X[:6], y, weight_decay=1e-3)
    found = fitted.leave_one_out()  # without a warning, which would be an error here
    assert np.sum(found.leverage > 0.5) >= 3
    for row in range(6):
        kept = ridge(*without(row, X[:6], y), 1e-3, 6)[:, 0]
        assert found.prediction[row] == pytest.approx(X[row] @ kept, rel=1e-8)
    assert "LEVERAGE" not in fitted.calibrate("loo").guarantee


def test_near_a_fold_the_leverage_exceeds_one_and_is_flagged():
    """A circle near its centre: S_ii = 20 by hand, and 1/(1 - S_ii) would have the wrong sign."""
    fitted = vhat.from_jax(
        lambda q, Z: Z @ jnp.stack([jnp.cos(q), jnp.sin(q)]),
        np.array(0.0),
        np.eye(2),
        np.array([0.05, 0.0]),
        weight_decay=0.0,
    )
    with pytest.warns(vhat.LeverageWarning, match="row 1"):
        found = fitted.leave_one_out()
    np.testing.assert_allclose(found.leverage, [0.0, 20.0], atol=1e-8)
    assert list(found.status) == ["converged", "leverage"]


def test_a_loss_without_residuals_has_predictions_and_no_residuals():
    """Poisson deviance in the log mean of one group: leaving a row out by Newton's step at the full fit."""
    y = np.array([1.0, 2.0, 0.0, 3.0, 4.0])

    def deviance(f, t):
        return jnp.sum(jnp.exp(f) - t * f)

    fitted = vhat.from_jax(
        lambda q, Z: q * jnp.ones(len(Z)), np.log(2.0), np.zeros((5, 1)), y, weight_decay=0.0, loss=deviance
    )
    found = fitted.leave_one_out()
    assert found.residual is None
    step = (2.0 - y) / (4 * 2.0)  # gradient of the left-out row over the curvature of the four others
    np.testing.assert_allclose(found.prediction, np.log(2.0) + step, rtol=1e-9)
    with pytest.raises(vhat.InputError, match="not a function of f - y"):
        fitted.calibrate("loo", noise=1.0)


def test_parameters_that_are_not_a_minimum_warn():
    off = vhat.from_jax(linear, ridge(X, Y, LAM, N)[:, 0] + 1.0, X, Y, weight_decay=LAM)
    with pytest.warns(vhat.NotMinimumWarning):
        off.leave_one_out()


def test_the_unit_of_y_and_the_container_of_x_change_nothing_else():
    theta = ridge(X, Y, LAM, N)[:, 0]
    plain = vhat.from_jax(linear, theta, X, Y, weight_decay=LAM).leave_one_out()
    scaled = vhat.from_jax(linear, 1e6 * theta, X, 1e6 * Y, weight_decay=LAM).leave_one_out()
    np.testing.assert_allclose(scaled.residual, 1e6 * plain.residual, rtol=1e-9)
    np.testing.assert_allclose(scaled.leverage, plain.leverage, rtol=1e-9)
    np.testing.assert_allclose(scaled.weighted_norm, plain.weighted_norm, rtol=1e-9)
    frame, series = pd.DataFrame(X, columns=list("abcd")), pd.Series(Y)
    from_pandas = vhat.from_numpy(lambda q, F: F.to_numpy() @ q, theta, frame, series, weight_decay=LAM)
    np.testing.assert_allclose(from_pandas.leave_one_out().residual, plain.residual, rtol=1e-5)
