"""The ridge refit of a linearisation: the model's own predictions, and the exact law of a linear model around them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import vhat

N, LAM = 60, 0.02


def smooth(q, Z):
    return np.tanh(Z @ q[:6].reshape(2, 3)) @ q[6:9]


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    q = rng.normal(size=9)
    return X, q, smooth(q, X) + 0.2 * rng.normal(size=n), rng.normal(size=(5, 2))


def numpy_model(**options):
    X, q, y, x = data()
    return vhat.from_numpy(smooth, q + 0.3, X, y, weight_decay=1e-3, **options), x


def jax_model(**options):
    X, q, y, x = data()
    params = {"a": (q + 0.3)[:6].reshape(2, 3), "b": (q + 0.3)[6:9]}
    return vhat.from_jax(lambda p, Z: jnp.tanh(Z @ p["a"]) @ p["b"], params, X, y, weight_decay=1e-3, **options), x


def torch_model(**options):
    X, q, y, x = data()
    first, last = torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor((q + 0.3)[:6].reshape(2, 3).T))
        last.weight.copy_(torch.tensor((q + 0.3)[None, 6:9]))
    module = torch.nn.Sequential(first, torch.nn.Tanh(), last, torch.nn.Flatten(0)).double()
    return vhat.from_torch(module, X, y, weight_decay=1e-3, **options), x


MODELS = {"numpy": numpy_model, "jax": jax_model, "torch": torch_model}


def jacobian(fitted, inputs):
    problem = fitted.problem
    with problem.scope():
        return problem.numpy(problem.gradients(inputs))


@pytest.mark.parametrize("framework", MODELS)
def test_width_and_sensitivity_are_those_of_ridge_regression_on_the_gradients(framework):
    """Against the closed form with the Jacobian of the model as given, which is no minimum of anything."""
    fitted, x = MODELS[framework]()
    tangent = fitted.linearised(LAM)
    J, g = jacobian(fitted, fitted.problem.X), jacobian(fitted, fitted.problem.inputs(x))
    A = J.T @ J / N + LAM * np.eye(J.shape[1])
    moved = np.linalg.solve(A, g.T).T @ J.T / N  # d f(x) / d y
    band = tangent.interval(x, noise=0.2)
    np.testing.assert_array_equal(band.center, fitted.predict(x))
    np.testing.assert_allclose(band.standard_error, 0.2 * np.linalg.norm(moved, axis=1), rtol=1e-9)
    np.testing.assert_allclose(tangent.sensitivity(x), moved, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(band.half_width, 1.959964 * band.standard_error, rtol=1e-6)
    assert band.bound == "exact"


@pytest.mark.parametrize("solver", [vhat.Dense(), vhat.Primal(), vhat.Dual(), vhat.CG()], ids=lambda each: each.name)
def test_every_solver_gives_the_same(solver):
    fitted, x = jax_model()
    tangent = fitted.linearised(LAM)
    exact = tangent.weighted_norm(x, solver=vhat.Dense()).value
    np.testing.assert_allclose(tangent.weighted_norm(x, solver=solver).value, exact, rtol=1e-6)


def test_leaving_a_row_out_is_refitting_without_it():
    fitted, _ = numpy_model()
    tangent = fitted.linearised(LAM)
    J, f, y = jacobian(fitted, fitted.problem.X), fitted.predict(data()[0]), data()[2]
    anchor = np.asarray(fitted.params)
    shift = J.T @ (f - y) / N + LAM * anchor
    left_out = tangent.leave_one_out().prediction
    for row in (0, 7, 31):
        rest = np.arange(N) != row
        A = J[rest].T @ J[rest] / N + LAM * np.eye(9)  # the same objective without the row's term
        right = J[rest].T @ (y[rest] - f[rest] + J[rest] @ anchor) / N + shift
        theta = np.linalg.solve(A, right)
        np.testing.assert_allclose(left_out[row], f[row] + J[row] @ (theta - anchor), rtol=1e-8)


def test_the_sentence_says_whose_refit_it_is_and_guarantees_nothing():
    fitted, x = numpy_model()
    told = fitted.linearised(LAM).interval(x, noise=0.2).guarantee
    assert told.startswith("Nominal 95%")
    assert "by the ridge refit of the model's linearisation" in told
    assert "lam = 0.02 as given" in told
    assert "held fixed although they came from these data" in told
    assert "Guaranteed" not in told


def test_no_warning_leads_nowhere_and_the_audit_says_by_construction():
    """The model itself is no minimum and would warn; warnings are errors here."""
    fitted, x = numpy_model()
    tangent = fitted.linearised(LAM)
    tangent.interval(x)
    audit = tangent.audit()
    for name in ("stationarity", "smallest eigenvalue", "smoothness", "basin"):
        assert audit[name].verdict == "by construction"
    assert audit["ridge penalty"].verdict == "assumed"
    assert "by construction" in repr(audit)
    assert tangent.polish() is tangent


def test_lack_of_fit_of_a_linearisation_is_answered_by_calls_that_it_can_follow():
    """A straight line through a parabola; a linearisation cannot lower the decay of the training."""
    rng = np.random.default_rng(0)
    x, z = rng.uniform(-1, 1, size=(2, 120))
    y, t = (v**2 + 0.05 * rng.normal(size=120) for v in (x, z))
    theta = np.polyfit(x, y, 1)
    fitted = vhat.from_numpy(np.polyval, theta, x, y, weight_decay=1e-3, validation=(z, t))
    tangent = fitted.linearised(LAM)
    line = tangent.audit()["lack of fit"]
    assert line.verdict == "fails"
    assert "lower weight_decay" not in line.remedy
    assert "train longer or with more units, and linearise that model" in line.remedy
    assert "fitted.calibrate(X, y)" in line.remedy
    w = rng.uniform(-1, 1, size=60)
    tangent.calibrate(w, w**2 + 0.05 * rng.normal(size=60)).interval(x[:3])  # what the line advises
    assert "lower weight_decay" in fitted.audit()["lack of fit"].remedy


def test_a_noise_level_from_rows_that_training_fitted_is_doubted():
    """As many free parameters as will pass near every point: residuals say little of the noise."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, size=40)
    y = 0.5 * rng.normal(size=40)
    waves = rng.normal(size=20) * 8
    fitted = vhat.from_numpy(lambda q, Z: np.cos(np.outer(Z, waves) + 1.0) @ q, np.ones(20), X, y, weight_decay=1e-4)
    fitted = fitted.polish()
    tangent = fitted.linearised(1e-4)
    assert "read off rows that training fitted" in tangent.interval(X[:3]).guarantee
    assert tangent.audit()["noise"].verdict == "undecided"
    assert "validation=(X, y)" in tangent.audit()["noise"].remedy
    assert "read off rows" not in tangent.interval(X[:3], noise=0.5).guarantee
    told = fitted.linearised(1e-4, validation=(X + 0.01, y)).interval(X[:3]).guarantee
    assert "read off rows" not in told


def test_relu_networks_are_taken_as_they_are():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)).astype(np.float32)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1), torch.nn.Flatten(0))
    y = X[:, 0] + 0.1 * rng.normal(size=80).astype(np.float32)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    fitted = vhat.from_torch(module, X, y, weight_decay=1e-4).linearised(1e-2)
    band = fitted.interval(X[:5], target="observation")
    assert np.all(np.isfinite(band.half_width))
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    twin = module.double()
    with torch.no_grad():
        np.testing.assert_allclose(band.center, twin(torch.as_tensor(X[:5], dtype=torch.float64)), rtol=1e-12)


def test_units_of_responses_and_a_scaled_penalty():
    X, q, y, x = data()
    fitted = vhat.from_numpy(smooth, q + 0.3, X, y, weight_decay=1e-3)
    unit = 1e3
    scaled = vhat.from_numpy(lambda p, Z: unit * smooth(p, Z), q + 0.3, X, unit * y, weight_decay=1e-3)
    one = fitted.linearised(LAM).interval(x)
    other = scaled.linearised(LAM * unit**2).interval(x)
    np.testing.assert_allclose(other.half_width, unit * one.half_width, rtol=1e-7)
    doubled = fitted.linearised(LAM).scale_weight_decay(2.0).interval(x, noise=1.0)
    direct = fitted.linearised(2 * LAM).interval(x, noise=1.0)
    np.testing.assert_allclose(doubled.half_width, direct.half_width, rtol=1e-12)


def test_refusals_name_the_call_that_works():
    fitted, x = numpy_model()
    with pytest.raises(vhat.InputError, match=r"give validation=\(X, y\), recipe=, or a number"):
        fitted.linearised()
    with pytest.raises(vhat.InputError, match="Give a positive number, or 'auto'"):
        fitted.linearised("best")
    for lam in (0.0, -1.0, np.nan):
        with pytest.raises(vhat.InputError, match="not a positive number"):
            fitted.linearised(lam)
    with pytest.raises(vhat.InputError, match="y has shape"):
        fitted.linearised(validation=(x, np.zeros(3)))


# -- everything else that a fitted model can do ------------------------------------------------------
def test_functionals_and_acquisition_are_those_of_the_ridge_refit():
    """Against the closed form: covariance of the parameters, and the pool's variance after each choice."""
    fitted, _ = numpy_model()
    tangent = fitted.linearised(LAM)
    J = jacobian(fitted, fitted.problem.X)
    inverse = np.linalg.inv(J.T @ J / N + LAM * np.eye(9))
    weights = np.linspace(-1, 1, 9)
    band = tangent.functional(lambda q: q @ weights, noise=0.2)
    np.testing.assert_allclose(band.center, np.asarray(fitted.params) @ weights, rtol=1e-12)
    np.testing.assert_allclose(band.standard_error, 0.2 * np.linalg.norm(weights @ inverse @ J.T / N), rtol=1e-8)
    np.testing.assert_allclose(tangent.covariance(noise=0.2), 0.04 * inverse @ J.T @ J @ inverse / N**2, rtol=1e-6)
    pool = np.random.default_rng(4).normal(size=(12, 2))
    g = jacobian(fitted, fitted.problem.inputs(pool))
    kernel = g @ inverse @ g.T / N  # the posterior kernel that acquisition reduces
    first = np.argmax(np.sum(kernel**2, axis=0) / (1 + np.diag(kernel)))
    assert tangent.acquire(pool, 3).indices[0] == first


def test_calibration_covers_and_says_so():
    q = data()[1]
    rng = np.random.default_rng(6)
    Z, fresh = rng.normal(size=(999, 2)), rng.normal(size=(2000, 2))
    calibrated = numpy_model()[0].linearised(LAM).calibrate(Z, smooth(q, Z) + 0.2 * rng.normal(size=999))
    assert "is missed with probability at most delta" in calibrated.guarantee
    band = calibrated.interval(fresh, 0.1)
    inside = np.abs(smooth(q, fresh) + 0.2 * rng.normal(size=2000) - band.center) <= band.half_width
    error = np.sqrt(0.09 / 1000 + 0.09 / 2000)  # of the calibration rows and of the fresh ones
    assert abs(np.mean(inside) - 0.9) < 3 * error
