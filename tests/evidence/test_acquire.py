"""Choosing what to measure next: against designs updated in closed form, brute force, and chance."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import vhat
from tests import oracle
from vhat.study import MaternTruth, sample

RNG = np.random.default_rng(0)
N, P, LAM = 20, 3, 0.05
X = RNG.normal(size=(N, P))
Y = X @ np.ones(P) + 0.1 * RNG.standard_normal(N)
POOL = RNG.normal(size=(12, P))


def linear(q, Z):
    return Z @ q


def design(rows, n=N):
    return rows.T @ rows / n + LAM * np.eye(rows.shape[1])


def variances(rows, points, n=N):
    """x' A^-1 x / n for a ridge on these rows, with the 1/n of the first n."""
    return np.sum(points * np.linalg.solve(design(rows, n), points.T).T, axis=1) / n


@pytest.fixture(scope="module")
def fitted():
    return vhat.from_jax(linear, np.linalg.solve(design(X), X.T @ Y / N), X, Y, weight_decay=LAM)


# -- the choice ------------------------------------------------------------------------------------------
def test_each_step_is_the_best_one_by_brute_force(fitted):
    found = fitted.acquire(POOL, 4)
    rows, chosen = X, []
    np.testing.assert_allclose(found.before, variances(X, POOL), rtol=1e-9)
    for step in range(4):
        left = [np.sum(variances(np.vstack([rows, POOL[i]]), POOL)) for i in range(12)]
        best = min((i for i in range(12) if i not in chosen), key=left.__getitem__)
        assert found.indices[step] == best
        assert found.gains[step] == pytest.approx(np.sum(variances(rows, POOL)) - left[best], rel=1e-8)
        rows, chosen = np.vstack([rows, POOL[best]]), [*chosen, best]
    np.testing.assert_allclose(found.after, variances(rows, POOL), rtol=1e-9)
    assert "4 from a pool of 12" in repr(found)
    assert "not a fixed design" in repr(found)


def test_blocks_and_solvers_do_not_matter(fitted, monkeypatch):
    whole = fitted.acquire(POOL, 3)
    iterated = fitted.acquire(POOL, 3, solver=vhat.CG(rtol=1e-12))
    monkeypatch.setattr("vhat.variance.weighted_norm.points_together", lambda _: 5)
    parts = fitted.acquire(POOL, 3)
    for other in (iterated, parts):
        np.testing.assert_array_equal(other.indices, whole.indices)
        np.testing.assert_allclose(other.after, whole.after, rtol=1e-7)


def test_rows_of_weight_zero_bring_no_curvature_and_take_none_away():
    weights = 1.0 * (np.arange(N) % 4 == 0)
    kept = weights > 0
    theta = np.linalg.solve(X[kept].T @ X[kept] / kept.sum() + LAM * np.eye(P), X[kept].T @ Y[kept] / kept.sum())
    few = vhat.from_jax(linear, theta, X[kept], Y[kept], weight_decay=LAM).acquire(POOL, 3)
    every = vhat.from_jax(linear, theta, X, Y, weight_decay=LAM * kept.mean(), sample_weight=weights).acquire(POOL, 3)
    np.testing.assert_array_equal(every.indices, few.indices)
    np.testing.assert_allclose(every.gains, few.gains, rtol=1e-9)
    np.testing.assert_allclose(every.before, few.before, rtol=1e-9)


def test_two_outputs_are_measured_together_and_weights_scale_what_a_row_brings():
    """Outputs that share parameters, rows of weight 2: a new row is expected to bring the mean curvature, 2 I."""
    rows, pool = RNG.normal(size=(N, 2, P)), RNG.normal(size=(7, 2, P))
    y = rows @ np.ones(P)
    fitted = vhat.from_jax(
        lambda q, R: R @ q, np.ones(P), rows, y, weight_decay=LAM, sample_weight=np.full(N, 2.0)
    ).polish()
    found = fitted.acquire(pool, 2)

    def total(extra):
        flat = np.concatenate([rows.reshape(-1, P), *extra])
        A = 2 * flat.T @ flat / N + LAM * np.eye(P)
        return 2 * np.einsum("iap,pq,iaq->i", pool, np.linalg.inv(A), pool) / N

    np.testing.assert_allclose(found.before, total([]), rtol=1e-8)
    first = min(range(7), key=lambda i: total([pool[i]]).sum())
    second = min((i for i in range(7) if i != first), key=lambda i: total([pool[first], pool[i]]).sum())
    assert found.indices.tolist() == [first, second]
    np.testing.assert_allclose(found.after, total([pool[first], pool[second]]), rtol=1e-8)


def test_the_variance_of_a_network_is_that_of_the_dense_oracle():
    rng = np.random.default_rng(2)
    Z = rng.uniform(-2, 2, size=(30, 1))
    y = np.sin(2 * Z[:, 0]) + 0.1 * rng.standard_normal(30)
    predict = oracle.network("tanh", None)
    fitted = vhat.from_jax(predict, oracle.random_params(rng, 1, 5, None), Z, y, weight_decay=1e-3).polish()
    pool = np.linspace(-3, 3, 9)[:, None]
    gh = oracle.dense(predict, fitted.params, Z, y, pool, 1e-3)[1]
    found = fitted.acquire(pool, 2)
    np.testing.assert_allclose(found.before, gh / 30, rtol=1e-7)
    assert np.all(found.after < found.before)


# -- the gap problem -----------------------------------------------------------------------------------------
FEATURES, SMALL, TAKEN = 40, 1e-3, 6
SLOPES, TURNS = (np.random.default_rng(100).normal(size=(2, FEATURES)).T * [2.0, 3.0]).T
GRID = np.linspace(-3, 3, 121)[:, None]


def features(x):
    return np.tanh(x * SLOPES + TURNS)


def solve(x, y):
    A = features(x).T @ features(x) / len(y) + SMALL * np.eye(FEATURES)
    return np.linalg.solve(A, features(x).T @ y / len(y))


def gap_model(seed):
    truth = MaternTruth(dimension=1, seed=seed)
    data = sample(truth, 40, seed=seed)  # none in [-0.5, 0.5]
    fitted = vhat.from_numpy(
        lambda q, x: features(x) @ q,
        solve(data.X, data.y),
        data.X,
        data.y,
        jac=lambda q, x: features(x),
        hess=lambda q, x: np.zeros((len(x), FEATURES, FEATURES)),
        weight_decay=SMALL,
    )
    return truth, data, fitted


def test_the_points_are_not_all_in_one_place():
    """Ranked without the update, the widest points are neighbours; with it both ends and the gap are visited."""
    found = gap_model(0)[2].acquire(GRID, TAKEN)
    chosen, widest = np.sort(GRID[found.indices, 0]), np.sort(GRID[np.argsort(-found.before)[:TAKEN], 0])
    assert np.diff(chosen).min() > 0.1
    assert chosen[0] < -2
    assert chosen[-1] > 2
    assert np.any(np.abs(chosen) < 0.5)
    assert not np.any(np.abs(widest) < 0.5)
    assert np.diff(widest).min() < 0.06


def test_acquiring_beats_chance_on_the_gap_problem_in_eight_of_ten_seeds():
    """Six points measured, refitted: mean squared error of the truth over the pool, against fifty random choices."""
    better, better_than_one = 0, 0
    for seed in range(10):
        truth, data, fitted = gap_model(seed)
        right = truth(GRID)
        measured = right + 0.1 * np.random.default_rng([seed, 1]).standard_normal(len(GRID))

        def error(taken, data=data, right=right, measured=measured):
            theta = solve(np.vstack([data.X, GRID[taken]]), np.append(data.y, measured[taken]))
            return np.mean((features(GRID) @ theta - right) ** 2)

        rng = np.random.default_rng([seed, 2])
        chance = [error(rng.choice(len(GRID), TAKEN, replace=False)) for _ in range(50)]
        ours = error(fitted.acquire(GRID, TAKEN).indices)
        better += ours < np.mean(chance)
        better_than_one += ours < chance[0]
    assert better >= 8
    assert better_than_one >= 8


# -- invariance and refusals ---------------------------------------------------------------------------------
def test_units_order_and_containers_do_not_change_the_choice(fitted):
    plain = fitted.acquire(POOL, 3)
    theta = np.asarray(fitted.params)
    scaled = vhat.from_jax(linear, 1e6 * theta, X, 1e6 * Y, weight_decay=LAM).acquire(POOL, 3)
    np.testing.assert_array_equal(scaled.indices, plain.indices)
    np.testing.assert_allclose(scaled.before, plain.before, rtol=1e-9)
    renamed = vhat.from_jax(lambda q, Z: Z @ (q / 1e4), 1e4 * theta, X, Y, weight_decay=LAM / 1e8).acquire(POOL, 3)
    np.testing.assert_array_equal(renamed.indices, plain.indices)
    order = np.random.default_rng(3).permutation(12)
    np.testing.assert_array_equal(order[fitted.acquire(POOL[order], 3).indices], plain.indices)
    frame = pd.DataFrame(X, columns=list("abc"))
    framed = vhat.from_numpy(lambda q, F: F.to_numpy() @ q, theta, frame, Y, weight_decay=LAM)
    shuffled = pd.DataFrame(POOL, columns=list("abc"))[["c", "a", "b"]]
    np.testing.assert_array_equal(framed.acquire(shuffled, 3).indices, plain.indices)


def test_a_pool_that_cannot_be_used_is_refused_in_words(fitted):
    with pytest.raises(vhat.InputError, match="k=13 points were asked of a pool of 12"):
        fitted.acquire(POOL, 13)
    for k in (0, -1, 2.5, True):
        with pytest.raises(vhat.InputError, match="not a whole number of at least 1"):
            fitted.acquire(POOL, k)
    with pytest.raises(vhat.InputError, match="pool: x is empty"):
        fitted.acquire(POOL[:0], 1)
    with pytest.raises(vhat.InputError, match="pool: x has rows of shape"):
        fitted.acquire(POOL[:, :2], 1)
    with pytest.raises(vhat.InputError, match="pool: x has NaN"):
        fitted.acquire(np.full((3, P), np.nan), 1)


def test_a_pool_too_large_for_its_kernel_is_refused_with_the_number_that_fits():
    small = vhat.from_jax(linear, np.zeros(P), X, Y, weight_decay=LAM, memory=1e6)
    with pytest.raises(vhat.MemoryBudgetError, match="Give at most 204 points"):
        small.acquire(RNG.normal(size=(300, P)), 2)


def test_a_point_whose_solve_failed_is_never_chosen():
    """A root taken at zero: a finite prediction there, and no gradient."""

    def predict(q, Z):
        z = Z[:, 0]
        return q[0] + q[1] * z**2 + jnp.sqrt(jnp.where(z == 9.0, 0.0 * q[1], 1.0)) - 1.0

    Z, y = np.linspace(-1, 1, 10)[:, None], np.linspace(-1, 1, 10) ** 2
    fitted = vhat.from_jax(predict, np.array([0.0, 1.0]), Z, y, weight_decay=1e-6).polish()
    pool = np.array([[0.0], [9.0], [2.0]])
    with pytest.warns(vhat.ConvergenceWarning, match="row 1"):
        found = fitted.acquire(pool, 2)
    assert set(found.indices) == {0, 2}
    assert np.isnan(found.before[1])
    assert found.status[1] == "not finite"
    with pytest.raises(vhat.InputError, match="only 2 of 3 pool points have a usable solve"):
        fitted.acquire(pool, 3)
