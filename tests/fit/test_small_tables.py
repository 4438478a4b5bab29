"""Small networks by dense steps: minima that are certified, scores that agree with those of the library elsewhere."""

import numpy as np
import pytest

import vhat
from vhat.errors import ModelError, PolishError
from vhat.evidence.leave_one_out import leave_rows_out
from vhat.fit import Minimum, Network, levenberg_marquardt
from vhat.fit import small_tables as small
from vhat.fit.dense_scoring import _Smoother
from vhat.fit.levenberg_marquardt import Objective, descend
from vhat.fit.score_curve import FAILED
from vhat.fit.splits import check_table
from vhat.fitted.model import FittedModel
from vhat.models.dense_network import network_problem
from vhat.models.dense_network.layers import flatten, forward

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
Y = np.sin(X[:, :2]) + 0.3 * RNG.standard_normal((60, 2))
WEIGHTS = RNG.uniform(0.5, 2.0, 60)
RECIPE = Minimum(Network((3, 5, 1)), 3e-2)


@pytest.mark.parametrize("outputs", [1, 2])
def test_rows_left_out_in_matrices_are_those_left_out_one_by_one(outputs):
    network = Network((3, 6, outputs))
    y = Y[:, :outputs]
    end = descend(Objective(network, X, y, WEIGHTS, 3e-2), flatten(network.init(0)), gtol=1e-9, max_steps=300)
    responses = y[:, 0] if outputs == 1 else y
    fitted = FittedModel(network_problem(network, end.theta, X, responses, weight_decay=3e-2, sample_weight=WEIGHTS))
    for curvature in ("hessian", "ggn"):
        noise = fitted.workspace.noise(None, curvature, 0)
        found = _Smoother(fitted, curvature, noise).left_out()
        expected = leave_rows_out(fitted.problem, fitted.workspace.own_solver(curvature), noise.values)
        for name in ("prediction", "leverage", "variance"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)
        assert found.rough == expected.rough
        np.testing.assert_array_equal(found.status, expected.status)


def test_the_descent_of_a_linear_model_ends_at_the_ridge_solution():
    network = Network((3, 2))
    end = descend(Objective(network, X, Y, WEIGHTS, 0.1), flatten(network.init(0)), gtol=1e-12, max_steps=100)
    design = np.column_stack([np.ones(60), X])
    normal = design.T @ (WEIGHTS[:, None] * design) / 60 + 0.1 * np.eye(4)
    expected = np.linalg.solve(normal, design.T @ (WEIGHTS[:, None] * Y) / 60)
    np.testing.assert_allclose(end.theta, expected.ravel(), rtol=1e-9)


def test_steps_by_a_matrix_of_some_rows_end_at_the_minimum_of_all_rows(monkeypatch):
    monkeypatch.setattr(levenberg_marquardt, "_MANY_PRODUCTS", 0.0)
    rng = np.random.default_rng(1)
    many, weights = rng.standard_normal((6000, 3)), rng.uniform(0.5, 2.0, 6000)
    y = (many @ [1.0, -0.5, 0.2] + np.arange(6000) % 2)[:, None]
    objective = Objective(Network((3, 1)), many, y, weights, 0.1, single=True)
    end = descend(objective, flatten(objective.network.init(0)), gtol=1e-6, max_steps=100)
    design = np.column_stack([np.ones(6000), many])
    normal = design.T @ (weights[:, None] * design) / 6000 + 0.1 * np.eye(4)
    expected = np.linalg.solve(normal, design.T @ (weights[:, None] * y) / 6000)
    assert end.relative_gradient <= 1e-6
    np.testing.assert_allclose(end.theta, expected.ravel(), atol=1e-5)


def test_rows_drawn_from_a_sorted_factorial_table_hold_both_levels_alike():
    pairs = np.repeat(np.random.default_rng(2).standard_normal((4000, 2)), 2, axis=0)
    sorted_rows = np.unique(np.column_stack([pairs, np.tile([-1.0, 1.0], 4000)]), axis=0)
    network = Network((3, 82, 1))
    drawn = levenberg_marquardt._sampled_rows(forward(network, flatten(network.init(0)), sorted_rows))
    assert len(drawn) == len(set(drawn)) == 8 * 411
    assert abs(np.mean(sorted_rows[drawn, 2])) < 4 / np.sqrt(len(drawn))


def test_the_diagonal_of_the_curvature_is_that_of_the_jacobian():
    network = Network((3, 5, 4, 2))
    rows = forward(network, flatten(network.init(0)), X)
    J = rows.jacobian().reshape(60, 2, -1)
    np.testing.assert_allclose(rows.curvature_diagonal(WEIGHTS), np.einsum("i,ikp->p", WEIGHTS, J**2), rtol=1e-12)


def test_a_small_fit_is_a_certified_minimum_and_its_seed_decides_it():
    first, again, other = (small.fit_small(RECIPE, X, Y[:, 0], seed=seed) for seed in (0, 0, 1))
    assert first.polished.relative_gradient <= 1e-10
    assert first.polished.definiteness.verdict == "positive"
    np.testing.assert_array_equal(first.problem.theta, again.problem.theta)
    assert not np.array_equal(first.problem.theta, other.problem.theta)


def test_a_minimum_in_numpy_is_one_in_jax():
    fitted = small.fit_small(RECIPE, X, Y[:, 0], seed=0)
    same = vhat.from_jax(RECIPE.network, fitted.params, X, Y[:, 0], weight_decay=3e-2)
    assert same.audit()["stationarity"].verdict == "holds"
    np.testing.assert_allclose(same.interval(X[:5]).upper, fitted.interval(X[:5]).upper, rtol=1e-8)


def test_a_lam_without_a_certified_minimum_is_marked_and_the_next_best_is_taken(monkeypatch):
    table = check_table(X, Y[:, 0])
    tried = small.try_decays(RECIPE, table, grid=np.array([0.01, 0.03, 0.1]), seed=0)
    certify = Minimum.certify

    def refuse(self, warm, name=""):
        if self.weight_decay == tried.weight_decay:
            raise PolishError("no minimum", "none")
        return certify(self, warm, name)

    monkeypatch.setattr(Minimum, "certify", refuse)
    found = small.selected(RECIPE, table, tried)
    at = list(found.curve.weight_decay).index(tried.weight_decay)
    assert found.weight_decay != tried.weight_decay
    assert found.curve.status[at] == FAILED
    assert "no minimum" in found.curve.remark[at]
    assert found.trained.polished is not None
    monkeypatch.setattr(
        Minimum, "certify", lambda *_: refuse(RECIPE.__class__(RECIPE.network, tried.weight_decay), None)
    )
    with pytest.raises(ModelError, match="has a certified minimum"):
        small.selected(RECIPE, table, tried)


def test_only_the_minimum_of_a_small_network_is_served():
    assert small.is_served(RECIPE, 60)
    assert not small.is_served(Minimum(RECIPE.network, 0.1, warmup=10), 60)
    assert not small.is_served(vhat.fit.Adam(RECIPE.network, 0.1), 60)
    assert not small.is_served(Minimum(Network((3, 500, 1)), 0.1), 60)
