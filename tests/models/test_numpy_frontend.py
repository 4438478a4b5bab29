"""NumPy models as problems: derivatives against calculus, refusals in words."""

from __future__ import annotations

import pickle
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit

import vhat
from vhat.errors import InputError, MemoryBudgetError, ModelError
from vhat.linalg.curvature import assemble
from vhat.models.numpy import curve_fit_problem, numpy_problem
from vhat.models.problem import Problem

x = np.linspace(0.1, 100.0, 60)
z = np.linspace(-1.0, 1.0, 60)
noise = np.random.default_rng(0).normal(size=60)


def michaelis_menten(t, x, xp):
    return t[0] * x / (t[1] + x)


def decay(t, x, xp):
    return t[0] * xp.exp(-t[1] * x)


def logistic_growth(t, x, xp):
    return t[0] / (1 + xp.exp(-t[1] * (x - t[2])))


def gaussian_peak(t, x, xp):
    return t[0] * xp.exp(-((x - t[1]) ** 2) / (2 * t[2] ** 2)) + t[3] + t[4] * x


def linear(t, x, xp):
    return t[0] + t[1] * x


def near_boundary(t, x, xp):
    return t[0] * xp.log(t[1] + x - 0.1) + xp.sqrt(t[2] + x - 0.1)


def offset(t, x, xp):
    return 1000.0 + t[0] * xp.exp(-t[1] * x)


def oscillation(t, x, xp):
    return t[0] * xp.cos(2 * np.pi * (t[1] * x - t[2]))


def tanh_network(t, x, xp):
    return xp.tanh((x[:, None] / 50 - 1) * 3 * t[:5] + t[5:10]) @ t[10:15] + t[15]


def two_outputs(t, x, xp):
    return xp.stack([t[0] * xp.exp(-t[1] * x), 1e6 * t[2] * x / (t[3] + x)], 1)


CASES = {
    "michaelis_menten": (michaelis_menten, [212.0, 0.06]),
    "michaelis_menten_slow": (michaelis_menten, [2e-4, 3e3]),
    "fast_decay": (decay, [3.0, 1.0]),
    "badly_scaled_decay": (decay, [1e3, 1e-4]),
    "decay_at_zero": (decay, [2.0, 0.0]),
    "logistic_growth": (logistic_growth, [5.0, 0.3, 40.0]),
    "gaussian_peak": (gaussian_peak, [3.0, 50.0, 5.0, 10.0, 0.1]),
    "gaussian_peak_without_baseline": (gaussian_peak, [3.0, 50.0, 5.0, 0.0, 0.0]),
    "linear": (linear, [1e-4, 1e3]),
    "linear_at_zero": (linear, [0.0, 0.0]),
    "near_boundary": (near_boundary, [2.0, 1e-2, 1e-3]),
    "oscillation": (oscillation, [2.0, 1.0, 0.5]),
    "tanh_network": (tanh_network, np.random.default_rng(1).normal(size=16)),
    "two_outputs": (two_outputs, [3.0, 0.05, 2.0, 7.0]),
}


def make(f, theta, **options) -> Problem:
    theta = np.asarray(theta, dtype=float)
    fitted = f(theta, x, np)
    shift = 0.1 * (np.abs(fitted).mean(0) + 1e-300) * (noise if fitted.ndim == 1 else np.stack([noise, noise[::-1]], 1))
    return numpy_problem(lambda t, x: f(t, x, np), theta, x, fitted - shift, **options)


def exact(f, theta, x=x):
    """Jacobian (n * K, p) and Hessians (n * K, p, p) by automatic differentiation."""
    with jax.enable_x64(True):
        call = lambda t: f(t, jnp.asarray(x), jnp).reshape(-1)  # noqa: E731
        point = jnp.asarray(theta, float)
        return np.asarray(jax.jacfwd(call)(point)), np.asarray(jax.jacfwd(jax.jacfwd(call))(point))


def scaled(matrix, J):
    """A p x p matrix without the units of the parameters."""
    s = np.sqrt((J**2).mean(0))
    return matrix / np.where(s > 0, s, 1) / np.where(s > 0, s, 1)[:, None]


# -- derivatives by differences ---------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_jacobian_by_differences_equals_calculus(case):
    f, theta = CASES[case]
    problem, (J, _) = make(f, theta), exact(f, theta)
    found = problem.jvp(np.eye(problem.p)).reshape(problem.p, -1).T
    size = np.abs(J).reshape(60, -1, problem.p).max(0)
    assert np.all(np.abs(found - J).reshape(60, -1, problem.p).max(0) <= 1e-10 * size)


@pytest.mark.parametrize("case", CASES)
def test_hessian_by_differences_equals_calculus(case):
    f, theta = CASES[case]
    problem, (J, second) = make(f, theta), exact(f, theta)
    r = (problem.fitted_values - problem.targets).reshape(-1)
    H = (J.T @ J + np.tensordot(r, second, 1)) / problem.n
    error = np.abs(scaled(assemble(problem, "hessian") - H, J))
    assert error.max() < (1e-6 if case == "near_boundary" else 1e-8) * max(1.0, np.abs(scaled(H, J)).max())
    np.testing.assert_allclose(scaled(assemble(problem, "ggn"), J), scaled(J.T @ J / problem.n, J), atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_stated_accuracy_covers_the_error_of_the_hessian(case):
    f, theta = CASES[case]
    problem, (J, second) = make(f, theta), exact(f, theta)
    r = (problem.fitted_values - problem.targets).reshape(-1)
    H = scaled((J.T @ J + np.tensordot(r, second, 1)) / problem.n, J)
    error = np.linalg.norm(scaled(assemble(problem, "hessian"), J) - H, 2)
    accuracy = problem.facts().accuracy
    assert error <= (10 * accuracy + 1e-14) * max(1.0, np.linalg.norm(H, 2))
    assert accuracy < 1e-6


def test_small_variations_on_a_large_constant_lose_only_the_digits_of_the_constant():
    theta = [1.0, 0.05]
    problem, (J, _) = make(offset, theta), exact(offset, theta)
    found = problem.jvp(np.eye(2))[:, :, 0].T
    assert np.all(np.abs(found - J).max(0) <= 1e-9 * np.abs(J).max(0))


@pytest.mark.parametrize("unit", [1e-3, 1e3, 1e9])
def test_unit_of_a_parameter_changes_nothing(unit):
    theta = np.array([3.0, 50.0, 5.0, 0.0, 0.1])
    y = gaussian_peak(theta, x, np) + 0.1 * noise
    plain = numpy_problem(lambda t, x: gaussian_peak(t, x, np), theta, x, y)
    for j in range(5):
        scale = np.where(np.arange(5) == j, unit, 1.0)
        changed = numpy_problem(lambda t, x, s=scale: gaussian_peak(t / s, x, np), theta * scale, x, y)
        J, moved = plain.jvp(np.eye(5))[..., 0], changed.jvp(np.diag(scale))[..., 0]
        assert np.all(np.abs(J - moved).max(1) <= 1e-9 * np.abs(J).max(1))
        H, other = assemble(plain, "hessian"), assemble(changed, "hessian") * scale * scale[:, None]
        assert np.abs(scaled(H - other, J.T)).max() < 1e-8


def test_unit_of_the_response_changes_nothing():
    f, theta = CASES["logistic_growth"]
    plain = make(f, theta)
    large = numpy_problem(lambda t, x: 1e6 * f(t, x, np), theta, x, 1e6 * plain.targets[:, 0])
    np.testing.assert_allclose(assemble(large, "hessian") / 1e12, assemble(plain, "hessian"), rtol=1e-7)


def test_gradient_of_a_row_is_the_same_alone_and_in_company():
    problem = make(*CASES["fast_decay"])
    points = problem.inputs([0.2, 1.0, 30.0, 100.0])
    together = problem.gradients(points)
    alone = [problem.gradients(problem.take(points, i, i + 1))[0] for i in range(4)]
    np.testing.assert_allclose(alone, together, rtol=1e-13)


def test_gradients_far_from_the_data_and_beyond_their_scale_are_right():
    theta = [3.0, 1.0]
    problem = make(decay, theta)
    points = np.array([1e-6, 0.5, 300.0])
    np.testing.assert_allclose(problem.gradients(problem.inputs(points)), exact(decay, theta, points)[0], rtol=1e-8)


def test_parameter_with_no_first_order_effect_has_a_zero_column_and_its_curvature():
    y = np.cos(0.01 * x) - 0.5
    problem = numpy_problem(lambda t, x: np.cos(t[0] * x), [0.0], x, y)
    np.testing.assert_allclose(problem.diagonal(), 0, atol=1e-20)
    R = np.mean((1 - y) * -(x**2))
    np.testing.assert_allclose(problem.product(np.ones((1, 1)), "hessian"), [[R]], rtol=1e-9)


def test_parameter_behind_a_zero_weight_keeps_its_mixed_curvature():
    problem = numpy_problem(lambda t, x: t[0] * np.tanh(t[1] * x) + t[2], [0.0, 0.02, 1.0], x, np.zeros(60))
    H = assemble(problem, "hessian")
    np.testing.assert_allclose(H[0, 1], np.mean(x / np.cosh(0.02 * x) ** 2), rtol=1e-9)


# -- derivatives given ------------------------------------------------------------------------------
def decay_jac(t, x):
    e = np.exp(-t[1] * x)
    return np.stack([e, -t[0] * x * e], 1)


def decay_hess(t, x):
    e = np.exp(-t[1] * x)
    return np.stack([np.stack([0 * e, -x * e], 1), np.stack([-x * e, t[0] * x**2 * e], 1)], 1)


def test_given_derivatives_are_used_and_agree_with_differences():
    theta = [3.0, 0.05]
    plain, first = make(decay, theta), make(decay, theta, jac=decay_jac)
    both = make(decay, theta, jac=decay_jac, hess=decay_hess)
    only_second = make(decay, theta, hess=decay_hess)
    for problem in (first, both, only_second):
        np.testing.assert_allclose(assemble(problem, "hessian"), assemble(plain, "hessian"), rtol=1e-9)
    assert both.facts().accuracy < 1e-13
    np.testing.assert_array_equal(first.gradients(x), decay_jac(np.array(theta), x))


def test_given_second_derivatives_are_summed_in_blocks_within_the_budget():
    small = make(decay, [3.0, 0.05], jac=decay_jac, hess=decay_hess, memory=2500)
    large = make(decay, [3.0, 0.05], jac=decay_jac, hess=decay_hess)
    np.testing.assert_allclose(assemble(small, "hessian"), assemble(large, "hessian"), rtol=1e-13)


@pytest.mark.parametrize(
    ("slip", "where"),
    [
        (lambda x: -1.0, r"row \d+ in theta\[\d\]"),
        (lambda x: np.array([1.0, 1.001]), r"row \d+ in theta\[1\]"),
        (lambda x: 1 + 1e-3 * (x[:, None] > 99), r"row 59 in theta\[\d\]"),
    ],
)
def test_wrong_jacobian_is_refused_with_its_row_and_parameter(slip, where):
    with pytest.raises(InputError, match=r"jac\(theta, X\) is .* at " + where):
        make(decay, [3.0, 0.05], jac=lambda t, x: slip(x) * decay_jac(t, x))


def test_wrong_second_derivative_is_refused():
    with pytest.raises(InputError, match=r"hess\(theta, X\) is .* in theta\[1\], theta\[1\]"):
        make(decay, [3.0, 0.05], hess=lambda t, x: decay_hess(t, x) * [[1.0, 1.0], [1.0, 0.5]])
    with pytest.raises(InputError, match=r"hess\(theta, X\) is .* in theta\[0\], theta\[1\]"):
        make(decay, [3.0, 0.05], hess=lambda t, x: decay_hess(t, x) * [[1.0, 0.0], [2.0, 1.0]])


def test_given_derivatives_of_the_wrong_shape_are_refused():
    with pytest.raises(InputError, match=r"jac\(theta, X\) returned shape \(2, 5\); it must return \(5, 2\)"):
        make(decay, [3.0, 0.05], jac=lambda t, x: decay_jac(t, x).T)
    with pytest.raises(InputError, match="hess"):
        make(decay, [3.0, 0.05], hess=decay_jac)


# -- products, losses, weights ----------------------------------------------------------------------
def test_products_agree_with_the_dense_matrices_for_two_outputs():
    f, theta = CASES["two_outputs"]
    w = np.linspace(0.5, 2.0, 60)
    problem, (J, second) = make(f, theta, sample_weight=w), exact(f, theta)
    rows, r = np.repeat(w, 2), (problem.fitted_values - problem.targets).reshape(-1)
    v, t = np.random.default_rng(3).normal(size=(3, 4)), np.random.default_rng(4).normal(size=(3, 60, 2))
    np.testing.assert_allclose(problem.jvp(v), (v @ J.T).reshape(3, 60, 2), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(problem.vjp(t), t.reshape(3, -1) @ J, rtol=1e-8)
    np.testing.assert_allclose(problem.gradient(), J.T @ (rows * r) / 60, rtol=1e-9)
    np.testing.assert_allclose(problem.diagonal(), (rows[:, None] * J**2).sum(0) / 60, rtol=1e-10)
    np.testing.assert_allclose(problem.objective(), (rows * r**2).sum() / 120, rtol=1e-12)
    H = (J.T * rows @ J + np.tensordot(rows * r, second, 1)) / 60
    unit = np.sqrt((J**2).mean(0))
    np.testing.assert_allclose(problem.product(v / unit, "hessian") / unit, (v / unit) @ H / unit, atol=1e-8)
    np.testing.assert_allclose(problem.gradients(problem.inputs(x)), J, rtol=1e-8)


def test_mse_turns_decay_into_lam_by_half_the_outputs():
    f, theta = CASES["two_outputs"]
    np.testing.assert_array_equal(make(f, theta, loss="mse", weight_decay=0.3).decay, [0.3] * 4)
    np.testing.assert_array_equal(make(decay, [1.0, 0.1], loss="mse", weight_decay=[0.0, 0.3]).decay, [0.0, 0.15])


LOSSES = {
    "half_square": (lambda f, y: 0.5 * (f - y) ** 2, True),
    "log_cosh": (lambda f, y: jnp.log(jnp.cosh(3 * (f - y))), True),
    "gamma": (lambda f, y: y / f + jnp.log(f), False),
}


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_of_a_loss_equal_calculus_in_any_unit(name, unit):
    loss, location = LOSSES[name]
    scaled_loss = lambda f, y: loss(f / unit, y / unit)  # noqa: E731
    theta = np.array([5.0, 0.3, 40.0])
    y = unit * (logistic_growth(theta, x, np) + 1.0 + 0.3 * noise)
    with jax.enable_x64(True):
        problem = numpy_problem(
            lambda t, x: unit * (logistic_growth(t, x, np) + 1),
            theta,
            x,
            y,
            loss=lambda f, y: float(scaled_loss(f, y)),
        )
        found = problem.loss_derivatives
        f = problem.fitted_values[:, 0]
        first = jax.vmap(jax.grad(scaled_loss))(f, y)
        second = jax.vmap(jax.grad(jax.grad(scaled_loss)))(f, y)
        cross = jax.vmap(jax.grad(jax.grad(scaled_loss), argnums=1))(f, y)
        for mine, true, power in (
            (found.first, first, 1),
            (found.curvature, second, 2),
            (found.cross, cross, 2),
        ):
            np.testing.assert_allclose(mine[:, 0] * unit**power, true * unit**power, rtol=1e-7, atol=1e-8)
    assert found.location is location


def test_loss_that_couples_outputs_has_full_blocks_and_a_separable_one_does_not():
    P = np.array([[2.0, 0.7], [0.7, 1.0]])
    f = lambda t, x: np.stack([t[0] * np.exp(-0.1 * x), t[1] * x / (3 + x)], 1)  # noqa: E731
    y = f([1.0, 2.0], x) + 0.1 * np.stack([noise, noise[::-1]], 1)
    coupled = numpy_problem(f, [1.0, 2.0], x, y, loss=lambda f, y: 0.5 * (f - y) @ P @ (f - y))
    found, r = coupled.loss_derivatives, f([1.0, 2.0], x) - y
    assert found.curvature.shape == found.cross.shape == (60, 2, 2)
    np.testing.assert_allclose(found.curvature, np.broadcast_to(P, (60, 2, 2)), rtol=1e-8)
    np.testing.assert_allclose(found.cross, -np.broadcast_to(P, (60, 2, 2)), rtol=1e-8)
    np.testing.assert_allclose(found.first, r @ P, rtol=1e-8, atol=1e-12)
    J = exact(lambda t, x, xp: xp.stack([t[0] * xp.exp(-0.1 * x), t[1] * x / (3 + x)], 1), [1.0, 2.0])[0]
    blocks = np.kron(np.eye(60), P)
    np.testing.assert_allclose(assemble(coupled, "ggn"), J.T @ blocks @ J / 60, rtol=1e-8)
    np.testing.assert_allclose(coupled.diagonal(), np.tile(np.diag(P), 60) @ J**2 / 60, rtol=1e-8)
    apart = numpy_problem(f, [1.0, 2.0], x, y, loss=lambda f, y: (f[0] - y[0]) ** 4 + np.cosh(f[1] - y[1]))
    assert apart.loss_derivatives.curvature.shape == (60, 2)
    np.testing.assert_allclose(apart.loss_derivatives.curvature[:, 1], np.cosh(r[:, 1]), rtol=1e-8)


def test_loss_with_a_kink_at_a_fitted_value_is_refused():
    y = linear([1.0, 2.0], x, np) + noise
    y[7] = linear([1.0, 2.0], x, np)[7]
    with pytest.raises(ModelError, match=r"loss does not look .*differentiable .* row 7"):
        _ = numpy_problem(lambda t, x: t[0] + t[1] * x, [1.0, 2.0], x, y, loss=lambda f, y: abs(f - y)).loss_derivatives
    with pytest.raises(InputError, match="loss"):
        make(linear, [1.0, 2.0], loss="huber")
    with pytest.raises(InputError, match="failed: TypeError"):
        _ = make(linear, [1.0, 2.0], loss=lambda f: f).loss_derivatives


def test_square_loss_as_a_callable_gives_the_same_problem():
    named = make(*CASES["logistic_growth"])
    called = make(*CASES["logistic_growth"], loss=lambda f, y: (f - y) ** 2 / 2)
    for curvature in ("hessian", "ggn"):
        np.testing.assert_allclose(assemble(called, curvature), assemble(named, curvature), rtol=1e-8, atol=1e-12)


# -- functionals ------------------------------------------------------------------------------------
def test_linear_functionals_come_out_to_rounding():
    problem = make(gaussian_peak, [3e-4, 50.0, 5e3, 0.0, 0.1])
    identity = problem.functional(lambda t: t)
    np.testing.assert_allclose(identity.gradient, np.eye(5), atol=1e-13)
    np.testing.assert_array_equal(identity.value, problem.theta)
    difference = problem.functional(lambda t: t[1] - t[4])
    np.testing.assert_allclose(difference.gradient, [[0, 1, 0, 0, -1]], atol=1e-12)
    assert difference.value.shape == ()


def test_nonlinear_functional_has_the_gradient_of_calculus():
    problem = make(decay, [3.0, 0.05])
    half_life = problem.functional(lambda t: np.log(2) / t[1])
    np.testing.assert_allclose(half_life.gradient, [[0, -np.log(2) / 0.05**2]], rtol=1e-11)


def test_unusable_functionals_are_refused():
    problem = make(decay, [3.0, 0.05])
    rng = np.random.default_rng(0)
    with pytest.raises(ModelError, match=r"derivative of q in theta\[1\]"):
        problem.functional(lambda t: abs(t[1] - 0.05))
    with pytest.raises(InputError, match="shape"):
        problem.functional(lambda t: np.ones((2, 2)))
    with pytest.raises(InputError, match="NaN"):
        problem.functional(lambda t: np.nan)
    with pytest.raises(ModelError, match="two evaluations"):
        problem.functional(lambda t: rng.normal())
    with pytest.raises(ModelError, match="the functional failed: IndexError"):
        problem.functional(lambda t: t[7])


# -- curve_fit --------------------------------------------------------------------------------------
def standard_errors(problem: Problem, shape) -> np.ndarray:
    """``s sqrt(diag((J'WJ)^-1))`` with s from the residuals, through the dense pieces of the problem."""
    W = problem.weights
    A = problem.n * assemble(problem, "ggn")
    root = np.sqrt(np.diag(A))
    r = (problem.fitted_values - problem.targets)[:, 0]
    s2 = np.sum(W * r**2) / (problem.n - problem.p)
    return np.sqrt(s2 * np.diag(np.linalg.inv(A / root / root[:, None]))) / root


CURVES = {
    "decay": (lambda x, a, b: a * np.exp(-b * x), [3.0, 0.05], 0.05),
    "badly_scaled": (lambda x, a, b: a * np.exp(-b * x), [1e3, 1e-4], 0.01),
    "peak": (
        lambda x, a, m, s, b: a * np.exp(-((x - m) ** 2) / (2 * s**2)) + b,
        [1e-4, 50.0, 5.0, 1e-5],
        1e-6,
    ),
    "michaelis_menten": (lambda x, v, k: v * x / (k + x), [212.0, 3.0], 2.0),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CURVES)
def test_gauss_newton_errors_equal_those_of_curve_fit(name, weighted):
    f, truth, level = CURVES[name]
    sigma = level * (1 + x / 50) if weighted else None
    y = f(x, *truth) + (level if sigma is None else sigma) * noise
    jac = lambda x, *t: numpy_problem(lambda t, x: f(x, *t), t, x, 0 * x).gradients(x)  # noqa: E731
    popt, pcov = curve_fit(f, x, y, p0=truth, sigma=sigma, jac=jac, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    problem, shape = curve_fit_problem(f, popt, x, y, sigma)
    np.testing.assert_allclose(standard_errors(problem, shape), np.sqrt(np.diag(pcov)), rtol=1e-6)
    np.testing.assert_allclose(problem.weights.mean(), 1)
    assert shape is None if sigma is None else np.array_equal(shape, sigma)


def test_several_predictors_may_stand_in_rows_or_in_columns():
    a, b = x, np.sqrt(x)[::-1].copy()
    truth = [2.0, 0.03]
    y = truth[0] * b * np.exp(-truth[1] * a) + 0.1 * noise
    columns, _ = curve_fit_problem(lambda x, p, q: p * x[1] * np.exp(-q * x[0]), truth, (a, b), y)
    rows, _ = curve_fit_problem(lambda x, p, q: p * x[:, 1] * np.exp(-q * x[:, 0]), truth, np.stack([a, b], 1), y)
    frame = pd.DataFrame({"a": a, "b": b})
    named, _ = curve_fit_problem(lambda x, p, q: p * x["b"] * np.exp(-q * x["a"]), truth, frame, y)
    new = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = columns.gradients(columns.inputs(new))
    assert columns.X.shape == (60, 2)
    assert columns.count(columns.inputs(new)) == 3
    np.testing.assert_allclose(rows.gradients(rows.inputs(new.T)), found, rtol=1e-12)
    np.testing.assert_allclose(
        named.gradients(named.inputs(pd.DataFrame(new.T, columns=["a", "b"]))), found, rtol=1e-12
    )
    with pytest.raises(InputError, match=r"ask for \(2, m\)"):
        columns.inputs(new.T)


def test_constant_curve_and_scalar_sigma_are_taken_as_scipy_takes_them():
    problem, shape = curve_fit_problem(lambda x, a: a, [1.5], x, 1.5 + noise, sigma=0.3)
    np.testing.assert_array_equal(shape, np.full(60, 0.3))
    np.testing.assert_allclose(problem.weights, 1)
    np.testing.assert_allclose(problem.gradients(problem.inputs([1.0])), [[1.0]], rtol=1e-13)


@pytest.mark.parametrize("size", [5e-324, 1e-300, 6.6e-20, 1e-16, 1e-15, -1e-16])
@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-6])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_parameter_at_a_bound_of_zero_has_the_derivatives_of_zero(size, unit, scale):
    """What curve_fit leaves at an active bound is no scale: neither in the offset, nor where the model bends."""

    def peak(x, a, shift, c):
        return scale * (a * np.exp(-(((x - 40.0) / 20.0 - shift / unit) ** 2)) + c / unit)

    problem, _ = curve_fit_problem(peak, [3.0, size * unit, size * unit], x, scale * noise)
    u = (x - 40.0) / 20.0
    bell = np.exp(-(u**2))
    J = scale * np.stack([bell, 6 * u * bell / unit, np.full(60, 1 / unit)], 1)
    size_of = np.abs(J).max(axis=0)
    np.testing.assert_allclose(problem.gradients(problem.inputs(x)) / size_of, J / size_of, atol=1e-11)
    residual = scale * (3.0 * bell - noise)
    bends = scale * np.stack([2 * u * bell / unit, 3 * (4 * u**2 - 2) * bell / unit**2])
    H = J.T @ J / 60
    H[0, 1] += residual @ bends[0] / 60
    H[1, 0] = H[0, 1]
    H[1, 1] += residual @ bends[1] / 60
    root = np.sqrt(np.diag(J.T @ J / 60))
    found = assemble(problem, "hessian")
    np.testing.assert_allclose(found / root / root[:, None], H / root / root[:, None], atol=1e-7)


def test_parameter_that_only_faint_values_see_keeps_a_step_of_its_own():
    """Nothing that theta[1] does ever shows beside the rounding of the other rows."""

    def predict(t, x):
        return np.where(x < 1.0, 1e-20 * np.tanh(1e20 * t[1]), t[0])

    problem = numpy_problem(predict, [1.0, 1e-21], x, x)
    slopes = [[1.0, 0.0], [0.0, 1 - np.tanh(0.1) ** 2]]
    np.testing.assert_allclose(problem.gradients(problem.inputs([50.0, 0.5])), slopes, atol=1e-10)


def test_both_results_of_curve_fit_in_place_of_the_first_are_refused():
    results = curve_fit(lambda x, a, b: a + b * x, x, x + noise)
    with pytest.raises(InputError, match=r"popt is a tuple of 2.*give popt alone, the first"):
        curve_fit_problem(lambda x, a, b: a + b * x, results, x, x + noise)


@pytest.mark.parametrize(
    ("sigma", "words"),
    [
        (np.eye(60), "covariance"),
        (np.ones(59), r"shape \(59,\)"),
        (np.zeros(60), "above 0"),
        (np.nan, "finite"),
    ],
)
def test_unusable_sigma_is_refused(sigma, words):
    with pytest.raises(InputError, match=words):
        curve_fit_problem(lambda x, a: a * x, [1.0], x, x, sigma=sigma)


# -- the rest of the contract -------------------------------------------------------------------------
def test_same_problem_elsewhere_and_with_other_responses_equals_one_made_there():
    f, theta = CASES["logistic_growth"]
    problem = make(f, theta)
    y, other = problem.targets[:, 0], np.array([4.0, 0.25, 45.0])
    predict = lambda t, x: f(t, x, np)  # noqa: E731
    moved, made = problem.at(other), numpy_problem(predict, other, x, y)
    np.testing.assert_allclose(moved.gradient(), made.gradient(), rtol=1e-9)
    np.testing.assert_allclose(assemble(moved, "hessian"), assemble(made, "hessian"), rtol=1e-8)
    np.testing.assert_array_equal(problem.theta, theta)
    changed, remade = problem.with_targets(y[:, None] + 1), numpy_problem(predict, theta, x, y + 1)
    np.testing.assert_allclose(assemble(changed, "hessian"), assemble(remade, "hessian"), rtol=1e-8)
    np.testing.assert_allclose(changed.objective(), remade.objective())


def test_path_of_parameters_reaches_the_derivatives_of_its_end():
    problem = make(decay, [3.0, 1.0])
    for rate in np.geomspace(1.0, 1e-4, 5):
        problem = problem.at(np.array([3.0, rate]))
        J = exact(decay, [3.0, rate])[0]
        assert np.all(np.abs(problem.jvp(np.eye(2))[..., 0].T - J).max(0) <= 1e-10 * np.abs(J).max(0))


@pytest.mark.parametrize("loss", ["half_mse", lambda f, y: (f - y) ** 2 / 2])
def test_objective_at_wild_parameters_is_not_finite_rather_than_an_error(loss):
    problem = make(decay, [3.0, 0.05], loss=loss)
    wild = problem.at(np.array([3.0, -1e3]))
    assert not np.isfinite(wild.objective())
    with pytest.raises(ModelError, match="rows"):
        wild.gradient()
    np.testing.assert_allclose(problem.objective(), 0.5 * np.mean((problem.fitted_values - problem.targets) ** 2))


def test_given_jacobian_may_have_no_value_at_a_step_too_long():
    def jac(t, x):
        return np.stack([np.log(t[1] + x), t[0] / (t[1] + x) if t[1] > 0.045 else np.nan * x], 1)

    y = 2 * np.log(0.05 + x) + 0.1 * noise
    problem = numpy_problem(lambda t, x: t[0] * np.log(t[1] + x), [2.0, 0.05], x, y, jac=jac)
    plain = numpy_problem(lambda t, x: t[0] * np.log(t[1] + x), [2.0, 0.05], x, y)
    np.testing.assert_allclose(assemble(problem, "hessian"), assemble(plain, "hessian"), rtol=1e-8)
    with pytest.raises(ModelError, match="jac failed: KeyError"):
        numpy_problem(lambda t, x: t[0] * x, [2.0], x, x, jac=lambda t, x: {}["missing"])
    with pytest.raises(ModelError, match=r"jac\(theta, X\) has NaN"):
        numpy_problem(lambda t, x: t[0] * x, [2.0], x, x, jac=lambda t, x: np.nan * x[:, None])


def test_derivative_that_drowns_in_rounding_is_refused():
    problem = numpy_problem(lambda t, x: 1e12 + 1e-2 * np.sin(t[0] * x / 50), [1.0], x, 1e12 + np.sin(x))
    with pytest.raises(ModelError, match=r"theta\[0\] is dominated by the rounding"):
        problem.product(np.ones((1, 1)), "ggn")


def test_series_and_missing_values_of_pandas_are_understood():
    series = pd.Series(x, name="time")
    problem = numpy_problem(lambda t, s: t[0] * np.sqrt(s), [2.0], series, np.sqrt(x))
    np.testing.assert_allclose(problem.gradients(problem.inputs([4.0, 9.0])), [[2.0], [3.0]], rtol=1e-12)
    missing = pd.DataFrame({"a": pd.array([1.0, None, 3.0], dtype="Float64")})
    with pytest.raises(InputError, match="row 1"):
        numpy_problem(lambda t, s: t[0] * s["a"], [2.0], missing, np.ones(3))
    with pytest.raises(InputError, match="X is not an array"):
        numpy_problem(lambda t, s: t[0], [2.0], [[1.0, 2.0], [3.0]], np.ones(2))


def test_parameters_are_copies_and_the_dtype_they_came_in_is_kept():
    theta = np.array([3.0, 0.05], dtype=np.float32)
    problem = make(decay, theta)
    problem.params[0] = 9.0
    assert problem.theta[0] == 3.0
    assert numpy_problem(lambda t, x: t[0] * x, np.float32([2]), x, x).facts().dtype == "float32"
    assert numpy_problem(lambda t, x: t[0] * x, [2], x, x).facts().framework == "numpy"
    native, block = problem.native(np.ones((2, 2), np.float32)), np.ones((3, 2))
    assert native.dtype == np.float64
    assert problem.compiled(len) is len
    assert problem.padded(5) == 5
    with problem.scope():
        np.testing.assert_array_equal(problem.numpy(block), block)


def test_model_in_single_precision_is_found_and_its_derivatives_are_as_good_as_it():
    theta, y = [3.0, 0.05], decay([3.0, 0.05], x, np) + 0.1 * noise
    outer = numpy_problem(lambda t, x: decay(t, x, np).astype(np.float32), theta, x, y)
    inner = numpy_problem(lambda t, x: 1.37 * decay(t, x, np).astype(np.float32).astype(float), theta, x, y)
    assert outer.facts().narrow_casts == ("predict returns float32",)
    assert "rounded to a relative" in inner.facts().narrow_casts[0]
    assert 1e-8 < inner.facts().accuracy < 1e-2
    J = 1.37 * exact(decay, theta)[0]
    assert np.all(np.abs(inner.jvp(np.eye(2))[..., 0].T - J).max(0) <= 1e-4 * np.abs(J).max(0))
    assert not make(decay, theta).facts().narrow_casts


def _decay(theta, x):
    return decay(theta, x, np)


def test_problems_survive_pickling_with_what_they_have_computed():
    problem = numpy_problem(_decay, [3.0, 0.05], x, decay([3.0, 0.05], x, np) + noise)
    H = assemble(problem, "hessian")
    restored = pickle.loads(pickle.dumps(problem))
    np.testing.assert_array_equal(assemble(restored, "hessian"), H)
    np.testing.assert_array_equal(restored.at(restored.theta).fitted_values, problem.fitted_values)


def test_data_frames_keep_their_column_names():
    frame = pd.DataFrame({"dose": x, "group": np.where(x > 50, "b", "a")})
    y = np.where(x > 50, 2.0, 1.0) * x

    def predict(theta, frame):
        return frame["dose"] * np.where(frame["group"] == "b", theta[0], theta[1])

    problem = numpy_problem(predict, [2.0, 1.0], frame, y)
    new = problem.inputs(pd.DataFrame({"group": ["a", "b"], "dose": [1.0, 2.0]}))
    np.testing.assert_allclose(problem.gradients(new), [[0, 1], [2, 0]], atol=1e-12)
    with pytest.raises(InputError, match=r"lacks the columns \['group'\]"):
        problem.inputs(pd.DataFrame({"dose": [1.0]}))
    with pytest.raises(InputError, match="data frame"):
        problem.inputs(np.ones((2, 2)))
    with pytest.raises(InputError, match="row 1"):
        problem.inputs(pd.DataFrame({"group": ["a", "b"], "dose": [1.0, np.nan]}))


def test_caller_keeps_the_data_it_gave():
    mine, theta = x.copy(), [3.0, 0.05]
    problem = numpy_problem(lambda t, x: decay(t, x, np), theta, mine, decay(theta, x, np))
    mine[:] = 0
    np.testing.assert_array_equal(problem.X, x)


# -- refusals -----------------------------------------------------------------------------------------
def refuse(predict, words, error=ModelError, theta=(3.0, 0.05), X=x, y=x, **options):
    with pytest.raises(error, match=words):
        numpy_problem(predict, theta, X, y, **options)


def test_models_that_cannot_be_used_are_refused_at_the_door():
    rng = np.random.default_rng(0)

    def writes_theta(t, x):
        t *= 2
        return t[0] * x

    def writes_x(t, x):
        x += 1
        return t[0] * x

    refuse(lambda t, x: t[0] * x + rng.normal(size=len(x)), "two evaluations")
    refuse(writes_theta, "writes into theta")
    refuse(writes_x, "writes into X", X=x.copy())
    refuse(lambda t, x: t[0] * x / x.max(), "depends on the other rows of the call")
    refuse(lambda t, x: t[0] * (x - x.mean()), "depends on the other rows of the call")
    refuse(lambda t, x: t[0] * np.cumsum(x), "depends on the other rows of the call")
    refuse(lambda t, x: np.log(x - 3) * t[0], r"rows 0, 1")
    refuse(lambda t, x: t[0] * x * 1j, "complex")
    refuse(lambda t, x: t[0], r"shape \(\) for 60 rows")
    refuse(lambda t, x: (t[0] * x[:, None]).squeeze(), r"shape \(\) for 1 rows")
    refuse(lambda t, x: t[9] * x, "IndexError")
    refuse("predict", "must be a function", InputError)
    refuse(lambda t, x: t[0] * x, "jac must be a function", InputError, jac=3)


def test_data_that_cannot_be_used_are_refused_at_the_door():
    f = lambda t, x: decay(t, x, np)  # noqa: E731
    hole = np.where(np.arange(60) == 4, np.nan, x)
    refuse(f, "X has NaN or infinite values in row 4", InputError, X=hole)
    refuse(f, "y has NaN or infinite values in row 4", InputError, y=hole)
    refuse(f, "no rows", InputError, X=[])
    refuse(f, r"y has shape \(60, 1\)", InputError, y=x[:, None])
    refuse(f, "theta has NaN", InputError, theta=[np.nan, 1.0])
    refuse(f, "theta has shape", InputError, theta=[[1.0, 2.0]])
    refuse(f, "theta has shape", InputError, theta=[1j, 2.0])
    refuse(f, "weight_decay must be finite and not negative", InputError, weight_decay=-1.0)
    refuse(f, r"weight_decay has shape \(3,\)", InputError, weight_decay=[0, 0, 0])
    refuse(f, "weight_decay='much'", InputError, weight_decay="much")
    refuse(f, "sample_weight has shape", InputError, sample_weight=[1.0])
    refuse(f, r"Jacobian of 60 rows, 1 outputs and 2 parameters needs .* GB", MemoryBudgetError, memory=1000)


@pytest.mark.parametrize(
    ("predict", "j"),
    [
        (lambda t, x: t[0] * x + abs(t[1] - 0.05) * x, 1),
        (lambda t, x: t[1] * np.maximum(x - 30 - t[0], x - 33), 0),
        (lambda t, x: np.round(t[0] * x) + t[1], 0),
        (lambda t, x: t[1] * x + 1e-2 * np.sin(1e13 * t[0] * (1 + x)), 0),
        (lambda t, x: t[0] * x + np.sqrt(t[1] - 0.05) * x, 1),
    ],
    ids=["kink", "hinge", "jumps", "noise", "edge"],
)
def test_model_without_a_derivative_is_refused_with_its_parameter(predict, j):
    problem = numpy_problem(predict, [3.0, 0.05], x, x)
    with pytest.raises(ModelError, match=rf"theta\[{j}\] does not converge"):
        problem.gradient()


def test_gauss_newton_is_not_refused_for_second_differences_that_it_does_not_use():
    """Two nearly equal exponentials: the smallest eigenvalue is below the accuracy of second differences."""
    x, lam = np.linspace(0, 1, 40), 1e-12
    theta = np.array([1.0, 1.0, 1.0, 1.03])

    def decays(t, x):
        return t[0] * np.exp(-t[2] * x) + t[1] * np.exp(-t[3] * x)

    one, other = np.exp(-x), np.exp(-1.03 * x)
    J = np.column_stack([one, other, -x * one, -x * other])
    y = decays(theta, x) + 0.3 * np.random.default_rng(0).normal(size=40)
    fitted = vhat.from_numpy(decays, theta, x, y, weight_decay=lam)
    h = np.linalg.solve(J.T @ J / 40 + lam * np.eye(4), J[:3].T)
    found = fitted.weighted_norm(x[:3], curvature="ggn")
    np.testing.assert_allclose(found.value, np.sum((J @ h) ** 2, axis=0) / 40, rtol=1e-5)


def test_kink_away_from_the_parameters_leaves_gauss_newton_usable():
    y = np.maximum(3.0 - 0.05 * x, 0.0) + 0.1 * noise
    problem = numpy_problem(lambda t, x: np.maximum(t[0] - t[1] * x, 0.0), [3.0, 0.05], x, y)
    J = np.stack([np.ones(60), -x], 1) * (3.0 - 0.05 * x > 0)[:, None]
    np.testing.assert_allclose(assemble(problem, "ggn"), J.T @ J / 60, rtol=1e-8)
    assert np.isfinite(problem.facts().accuracy)


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (np.ones((4, 1)), r"shape \(4, 1\)"),
        (3.0, r"shape \(\)"),
        ([], "no rows"),
        ([1.0, np.inf], "row 1"),
        (["a"], "dtype"),
    ],
)
def test_unusable_test_points_are_refused(new, words):
    problem = make(decay, [3.0, 0.05])
    with pytest.raises(InputError, match=words):
        problem.inputs(new)


def test_test_points_outside_the_domain_of_the_model_are_named():
    problem = numpy_problem(lambda t, x: t[0] * np.log(x), [2.0], x, x)
    with pytest.raises(ModelError, match="row 1"):
        problem.predict(problem.inputs([1.0, -1.0]))


def test_warnings_of_the_model_at_long_steps_do_not_reach_the_user():
    def predict(t, x):
        if t[1] < 0.04:
            raise RuntimeError("no solution")
        return t[0] * np.sqrt(x) * np.log(t[1])

    problem = numpy_problem(predict, [3.0, 0.05], x, x)
    np.testing.assert_allclose(problem.gradients(x)[:, 1], 3 * np.sqrt(x) / 0.05, rtol=1e-10)


def test_inputs_of_higher_rank_pass_through_unchanged():
    images = np.random.default_rng(0).normal(size=(12, 3, 4))
    problem = numpy_problem(lambda t, X: np.tanh(X.sum((1, 2)) * t[0]), [0.3], images, np.zeros(12))
    total = images.sum((1, 2))
    np.testing.assert_allclose(problem.gradients(images)[:, 0], total / np.cosh(0.3 * total) ** 2, rtol=1e-9)
    sizes = [problem.count(problem.take(images, a, b)) for a, b in pairwise([0, 5, 12])]
    assert sizes == [5, 7]
