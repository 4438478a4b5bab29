"""The noise from the part that no parameter explains, compared with statsmodels and dense projections."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm

from vhat.models.jax import jax_problem
from vhat.models.numpy import numpy_problem
from vhat.models.scaling import Scaling
from vhat.variance.noise import projected_noise, weights_match

N, P = 20, 4


def data(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, P))
    return X, X @ np.array([1.0, -2.0, 0.5, 3.0]) + rng.standard_normal(N)


def identity(x):
    return x


def linear(X, y, lam=0.0, weight=None, theta=None, **options):
    """A linear model at the minimum of its objective, in NumPy."""
    w = np.ones(len(X)) if weight is None else weight
    n, p = X.shape
    if theta is None:
        theta = np.linalg.solve(X.T * w @ X / n + lam * np.eye(p), X.T * w @ y / n)
    return numpy_problem(
        lambda q, x: x @ q, theta, X, y, jac=identity, weight_decay=lam, sample_weight=weight, **options
    )


def ones(problem):
    return np.ones((problem.n, problem.outputs))


def unexplained(X, y):
    """``(I - P) y`` by least squares, and the rank."""
    theta, _, rank, _ = np.linalg.lstsq(X, y, rcond=None)
    return y - X @ theta, rank


def test_it_is_the_scale_of_ordinary_least_squares():
    X, y = data()
    problem = linear(X, y)
    found = projected_noise(problem, ones(problem))
    assert found.level == pytest.approx([np.sqrt(sm.OLS(y, X).fit().scale)], rel=1e-12)
    assert found.df == pytest.approx([N - P])
    assert found.source == "estimated from what no parameter explains (n - rank = 16)"
    assert found.estimated
    assert found.uniform


def test_it_is_the_scale_of_weighted_least_squares_in_the_shape_of_the_noise():
    X, y = data()
    sigma = np.random.default_rng(1).uniform(0.2, 3.0, N)
    problem = linear(X, y, weight=1 / sigma**2)
    found = projected_noise(problem, sigma[:, None])
    scale = np.sqrt(sm.WLS(y, X, weights=1 / sigma**2).fit().scale)
    assert found.values[:, 0] == pytest.approx(scale * sigma, rel=1e-12)
    assert not found.uniform
    assert weights_match(problem, sigma[:, None])


@pytest.mark.parametrize("lam", [0.0, 1e-3, 1.0, 1e6])
def test_neither_decay_nor_the_parameters_move_it(lam):
    X, y = data()
    expected = np.sqrt(sm.OLS(y, X).fit().scale)
    problem = linear(X, y, lam)
    elsewhere = problem.at(np.array([50.0, -3.0, 0.0, 8.0]))
    for each in (problem, elsewhere):
        assert projected_noise(each, ones(each)).level == pytest.approx([expected], rel=1e-9)


def test_an_offset_of_the_inputs_alone_is_no_noise():
    X, y = data()
    offset = np.exp(X[:, 0])
    problem = jax_problem(lambda q, x: x @ q + jnp.exp(x[:, 0]), np.zeros(P), X, y + offset, weight_decay=0.1)
    assert projected_noise(problem, ones(problem)).level == pytest.approx(np.sqrt([sm.OLS(y, X).fit().scale]), rel=1e-9)


def test_columns_that_repeat_others_take_no_degree_of_freedom():
    X, y = data()
    wide = np.column_stack([X, X @ np.ones(P), np.zeros(N), 1e-7 * X[:, 0] + 1e3 * X[:, 1]])
    problem = linear(wide, y, lam=0.1)
    found = projected_noise(problem, ones(problem))
    assert found.df == pytest.approx([N - P])
    assert found.level == pytest.approx([np.sqrt(sm.OLS(y, X).fit().scale)], rel=1e-9)


def test_many_parameters_and_few_places_leave_the_replicates():
    """More parameters than rows, but five rows at each of four places: the pooled variance within places."""
    rng = np.random.default_rng(4)
    place = np.repeat(np.arange(4), 5)
    X, y = rng.standard_normal((4, 30))[place], rng.standard_normal(N)
    problem = linear(X, y, lam=0.3)
    found = projected_noise(problem, ones(problem))
    within = sum(np.sum((y[place == k] - y[place == k].mean()) ** 2) for k in range(4)) / (N - 4)
    assert found.df == pytest.approx([N - 4])
    assert found.level == pytest.approx([np.sqrt(within)], rel=1e-9)


def test_no_unit_and_no_order_changes_it():
    X, y = data()
    here = projected_noise(linear(X, y, 0.1), np.ones((N, 1)))
    for scale in (1e-8, 1e8):
        there = projected_noise(linear(X, y * scale, 0.1), np.ones((N, 1)))
        assert there.level / scale == pytest.approx(here.level, rel=1e-9)
        assert np.array_equal(there.df, here.df)
        units = scale ** np.array([1.0, -1.0, 0.0, 0.5])
        there = projected_noise(linear(X * units, y, theta=np.zeros(P)), np.ones((N, 1)))
        assert there.level == pytest.approx(here.level, rel=1e-9)
        assert np.array_equal(there.df, here.df)
        shaped = projected_noise(linear(X, y, 0.1), np.full((N, 1), scale))
        assert shaped.values == pytest.approx(here.values, rel=1e-9)
    order = np.random.default_rng(2).permutation(N)
    assert projected_noise(linear(X[order], y[order], 0.1), np.ones((N, 1))).level == pytest.approx(
        here.level, rel=1e-9
    )


def test_rows_that_the_loss_does_not_see_do_not_count():
    X, y = data()
    weight = np.where(np.arange(N) % 4 == 0, 0.0, 1.0)
    problem = linear(X, np.where(weight > 0, y, 1e6), 0.1, weight)
    seen = weight > 0
    found = projected_noise(problem, ones(problem))
    assert found.level == pytest.approx([np.sqrt(sm.OLS(y[seen], X[seen]).fit().scale)], rel=1e-9)
    assert found.df == pytest.approx([15 - P])
    assert weights_match(problem, ones(problem))


def test_a_row_counts_once_whatever_its_weight():
    X, y = data()
    once = projected_noise(linear(X, y, 0.1, np.full(N, 2.0)), np.ones((N, 1)))
    twice = projected_noise(linear(np.repeat(X, 2, 0), np.repeat(y, 2), 0.1, np.full(2 * N, 0.5)), np.ones((2 * N, 1)))
    assert once.df == pytest.approx([N - P])
    assert twice.df == pytest.approx([2 * N - P])
    assert twice.level**2 * (2 * N - P) == pytest.approx(2 * once.level**2 * (N - P), rel=1e-9)


def two_outputs(seed=3, shared=True):
    """Return two outputs that depend on all parameters, or on one half each."""
    rng = np.random.default_rng(seed)
    J = rng.standard_normal((N, 2, 2 * P))
    if not shared:
        J[:, 0, P:] = J[:, 1, :P] = 0
    y = rng.standard_normal((N, 2)) * np.array([1.0, 50.0])
    rows = np.arange(N)
    return J, y, numpy_problem(lambda q, i: J[i] @ q, np.zeros(2 * P), rows, y, jac=lambda i: J[i], weight_decay=0.2)


@pytest.mark.parametrize("shared", [False, True])
def test_every_output_has_its_own_projection_and_level(shared):
    J, y, problem = two_outputs(shared=shared)
    found = projected_noise(problem, ones(problem))
    for k in range(2):
        part, rank = unexplained(J[:, k], y[:, k])
        assert rank == (2 * P if shared else P)
        assert found.df[k] == N - rank
        assert found.level[k] == pytest.approx(np.sqrt(part @ part / (N - rank)), rel=1e-9)


@pytest.mark.parametrize("shared", [False, True])
def test_the_part_that_is_used_is_orthogonal_to_all_that_the_fit_reads_of_the_responses(shared):
    """``Cov((I - P_k) y_k, J'W y) = 0``: for normal noise that is independence of the fit, at different levels too."""
    J, _, problem = two_outputs(shared=shared)
    levels = np.array([1.0, 50.0])
    scores = np.concatenate([J[:, k].T * levels[k] for k in range(2)], axis=1)  # of standard normal noise, (p, 2 n)
    for k in range(2):
        left = np.eye(N) - J[:, k] @ np.linalg.pinv(J[:, k])
        unexplained = np.zeros((N, 2 * N))
        unexplained[:, k * N : (k + 1) * N] = levels[k] * left
        assert np.abs(unexplained @ scores.T).max() < 1e-9 * levels.max() ** 2
    assert weights_match(problem, ones(problem) * levels)


def test_standardised_data_give_the_same_in_the_units_of_the_user():
    X, y = data()
    scaling = Scaling(np.arange(P), np.full(P, 0.5), np.full(P, 3.0), np.array([2.0]), np.array([7.0]))
    user = X * 3.0 + 0.5
    standardised = replace(linear(X, (y - 2) / 7, 0.1), X=user, targets=y[:, None], scaling=scaling)
    found = projected_noise(standardised, np.ones((N, 1)))
    assert found.level == pytest.approx(7 * np.sqrt([sm.OLS((y - 2) / 7, X).fit().scale]), rel=1e-9)
    assert weights_match(standardised, np.ones((N, 1)))


def test_weights_match_when_they_are_one_over_the_square_of_the_noise():
    X, y = data()
    sigma = np.random.default_rng(1).uniform(0.2, 3.0, (N, 1))
    weighted = linear(X, y, 0.1, 5e-7 / sigma[:, 0] ** 2)
    assert weights_match(weighted, 1e9 * sigma)
    assert not weights_match(weighted, np.ones((N, 1)))
    assert not weights_match(linear(X, y, 0.1), sigma)
    assert weights_match(linear(X, y, 0.1), np.full((N, 1), 0.3))
    with_loss = numpy_problem(lambda q, x: x @ q, np.ones(P), X, y, jac=identity, loss=lambda f, y: (f - y) ** 2 / 2)
    assert not weights_match(with_loss, np.ones((N, 1)))


def test_there_is_none_where_it_would_not_be_what_it_says():
    X, y = data()
    shape = np.ones((N, 1))
    assert projected_noise(linear(X, y), shape) is not None
    curved = jax_problem(lambda q, x: jnp.tanh(x @ q), np.full(P, 0.1), X, y, weight_decay=0.1)
    by_differences = numpy_problem(lambda q, x: x @ q, np.ones(P), X, y)
    own_loss = numpy_problem(lambda q, x: x @ q, np.ones(P), X, y, jac=identity, loss=lambda f, y: (f - y) ** 2 / 2)
    square = linear(np.random.default_rng(1).standard_normal((N, N)), y, 0.1)
    exact = linear(X, X @ np.arange(1.0, P + 1), 0.1)
    for problem in (curved, by_differences, own_loss, square, exact):
        assert projected_noise(problem, shape) is None


def test_there_is_none_where_it_would_not_fit_or_take_too_long(monkeypatch):
    X, y = data()
    problem = linear(X, y)
    small = linear(X, y, memory=8 * N * P * 6)
    assert projected_noise(small, np.ones((N, 1))) is None
    monkeypatch.setattr("vhat.variance.noise._EXACT_FLOPS", 10 * N * P * P - 1)
    assert projected_noise(problem, np.ones((N, 1))) is None
