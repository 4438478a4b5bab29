"""Every recipe goes where it says, alone or in company, and says so where it does not."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest

import vhat
from vhat.errors import InputError, ModelError, NotMinimumWarning
from vhat.fit import (
    Adam,
    AdamW,
    GradientDescent,
    Network,
    VarianceScaling,
    fit_many,
    gradient_descent,
    objective,
    training,
)

NETWORK = Network((2, 6, 1), "tanh", initial=VarianceScaling())
LINE = Network((2, 1))
LAM = 0.05


def problem(n=25, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    y = np.sin(X @ rng.standard_normal((2, outputs))) + 0.1 * rng.standard_normal((n, outputs))
    return X, y[:, 0] if outputs == 1 else y


def gradient(params, X, y, lam, weights=None):
    """The gradient of 1/(2n) sum w (f - y)^2 + lam/2 |theta|^2 for one tanh layer, by hand, flat."""
    (w1, b1), (w2, b2) = ([np.asarray(layer[name], float) for name in ("w", "b")] for layer in params)
    hidden = np.tanh(X @ w1 + b1)
    error = (hidden @ w2 + b2)[:, 0] - y
    error = (error if weights is None else weights * error)[:, None] / len(X)
    back = (error @ w2.T) * (1 - hidden**2)
    slope = np.concatenate([part.ravel() for part in (back.sum(0), X.T @ back, error.sum(0), hidden.T @ error)])
    return slope + lam * flat(params)


def flat(params):
    """Biases before weights, layer by layer: the order of ``gradient``."""
    return np.concatenate([np.asarray(layer[name], float).ravel() for layer in params for name in ("b", "w")])


def misalignment(params, X, y, lam):
    return np.linalg.norm(gradient(params, X, y, lam)) / (lam * np.linalg.norm(flat(params)))


def same(one, other, **tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


# -- where each recipe goes -----------------------------------------------------------------


def test_gradient_descent_aligns_to_eight_digits():
    X, y = problem()
    end = GradientDescent(NETWORK, weight_decay=LAM).train(X, y, seeds=[0])[0]
    assert misalignment(end.params, X, y, LAM) <= 1e-8
    assert end.trace.alignment[-1] == pytest.approx(misalignment(end.params, X, y, LAM), rel=1e-3)
    assert end.trace.implied_decay[-1] == pytest.approx(LAM, rel=1e-8)
    assert end.trace.alignment[0] > 1e-4  # it was not there from the start


def test_adamw_does_not_align():
    X, y = problem()
    end = AdamW(NETWORK, weight_decay=LAM, steps=5_000, learning_rate=1e-2, dtype="float64").train(X, y, seeds=[0])[0]
    assert misalignment(end.params, X, y, LAM) > 0.5
    assert end.trace.implied_decay[-1] < 0.5 * LAM
    assert end.trace.alignment[-1] == pytest.approx(misalignment(end.params, X, y, LAM), rel=1e-6)


def test_adam_comes_close_to_the_minimum_that_gradient_descent_finds():
    X, y = problem()
    line = Adam(LINE, weight_decay=LAM, steps=4_000, learning_rate=1e-2, dtype="float64").train(X, y, seeds=[0])[0]
    design = np.column_stack([X, np.ones(len(X))])
    expected = np.linalg.solve(design.T @ design / len(X) + LAM * np.eye(3), design.T @ y / len(X))
    np.testing.assert_allclose(line.params[0]["w"][:, 0], expected[:2], atol=1e-6)
    np.testing.assert_allclose(line.params[0]["b"], expected[2:], atol=1e-6)


def test_adam_decays_through_its_scaling():
    """Kingma and Ba's algorithm 1 on L + lam/2 |theta|^2 with half a cosine, by hand."""
    X, y = problem()
    weights = np.linspace(0.0, 2.0, len(X))
    recipe = Adam(NETWORK, weight_decay=0.3, steps=15, learning_rate=0.05, dtype="float64")
    theta, params = flat(NETWORK.init(3)), NETWORK.init(3)
    first = second = np.zeros_like(theta)
    for t in range(15):
        slope = gradient(params, X, y, 0.3, weights)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        rate = 0.05 * (1 + np.cos(np.pi * t / 15)) / 2
        theta = theta - rate * first / (1 - 0.9 ** (t + 1)) / (np.sqrt(second / (1 - 0.999 ** (t + 1))) + 1e-8)
        params = ({"b": theta[:6], "w": theta[6:18].reshape(2, 6)}, {"b": theta[18:19], "w": theta[19:, None]})
    found = recipe.train(X, y, seeds=[3], sample_weights=[weights])[0].params
    np.testing.assert_allclose(flat(found), theta, rtol=1e-10, atol=1e-12)


def test_gradient_descent_ends_at_the_ridge_solution():
    X, y = problem()
    design = np.column_stack([X, np.ones(len(X))])
    expected = np.linalg.solve(design.T @ design / len(X) + LAM * np.eye(3), design.T @ y / len(X))
    found = GradientDescent(LINE, weight_decay=LAM).train(X, y, seeds=[1])[0].params[0]
    np.testing.assert_allclose([*found["w"][:, 0], *found["b"]], expected, atol=1e-8)


def test_the_power_method_finds_the_largest_curvature():
    X, y = problem()
    design = np.column_stack([X, np.ones(len(X))])
    largest = np.linalg.eigvalsh(design.T @ design / len(X) + LAM * np.eye(3))[-1]
    rule = gradient_descent.DescentRule()
    with jax.enable_x64(True):
        fit = objective.Fit(X, y[:, None], np.ones(len(X)), LAM)
        state = rule.prepare(LINE, fit, rule.init(jax.tree.map(jax.numpy.asarray, LINE.init(0))))
    assert float(state.curvature) == pytest.approx(gradient_descent._CURVATURE_MARGIN * largest, rel=1e-6)


def test_gradient_descent_never_climbs_even_from_too_long_a_step(monkeypatch):
    """With a tenth of the curvature the first steps break the descent lemma: they are refused, and steps shorten."""
    monkeypatch.setattr(gradient_descent, "_CURVATURE_MARGIN", 0.1)
    monkeypatch.setattr(training, "CHUNK", 20)
    jax.clear_caches()
    X, y = problem()
    end = GradientDescent(NETWORK, weight_decay=LAM).train(X, y, seeds=[2])[0]
    jax.clear_caches()
    assert np.all(np.diff(end.trace.objective) <= 1e-14)
    assert misalignment(end.params, X, y, LAM) <= 1e-8


def test_gradient_descent_out_of_steps_says_so():
    X, y = problem()
    with pytest.warns(NotMinimumWarning, match=r"steps=40 .*above tol=1.0e-08 \(fits 0, 1\).*Raise steps"):
        GradientDescent(NETWORK, weight_decay=LAM, steps=40).many(X, y, seeds=[0, 1])


def test_gradient_descent_without_decay_takes_all_its_steps():
    X, y = problem()
    trace = GradientDescent(NETWORK, weight_decay=0.0, steps=700).train(X, y, seeds=[0])[0].trace
    assert trace.steps.tolist() == [500, 700]
    assert np.isnan(trace.alignment).all()


@pytest.mark.parametrize("level", [0.0, 3.0])
def test_a_constant_target_is_fitted_without_a_false_word(level):
    """The minimum for zero targets is zero parameters, where alignment means nothing: no warning may come."""
    X, _ = problem()
    fitted = GradientDescent(NETWORK, weight_decay=LAM)(X, np.full(len(X), level), seed=0)
    theta = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(fitted.params)])
    assert (np.abs(theta).max() < 1e-12) if level == 0 else (np.abs(fitted.predict(X) - level).max() < 0.5)


# -- what is seen on the way ------------------------------------------------------------------


def test_the_trace_is_what_the_formulas_give_at_the_end():
    X, y = problem()
    end = Adam(NETWORK, weight_decay=LAM, steps=700, dtype="float64").train(X, y, seeds=[0])[0]
    theta, slope = flat(end.params), gradient(end.params, X, y, 0.0)
    with jax.enable_x64(True):
        loss = np.mean((np.asarray(NETWORK(end.params, X)) - y) ** 2) / 2
    assert end.trace.steps.tolist() == [500, 700]
    assert end.trace.loss[-1] == pytest.approx(loss)
    assert end.trace.objective[-1] == pytest.approx(loss + LAM / 2 * theta @ theta)
    assert end.trace.gradient_norm[-1] == pytest.approx(np.linalg.norm(slope + LAM * theta))
    assert end.trace.implied_decay[-1] == pytest.approx(-slope @ theta / (theta @ theta))


def test_progress_tells_loss_and_alignment(monkeypatch):
    from contextlib import contextmanager

    notes = []

    @contextmanager
    def bar(label, total):
        notes.append((label, total))
        yield notes.append

    monkeypatch.setattr(training, "bar", bar)
    X, y = problem()
    Adam(NETWORK, weight_decay=LAM, steps=600).train(X, y, seeds=[0, 1])
    assert notes[0] == ("Adam", 2)
    assert len(notes) == 3
    assert all(note.startswith("2 fits, loss ") and ", alignment " in note for note in notes[1:])


# -- many fits together -----------------------------------------------------------------------

RECIPES = [
    AdamW(NETWORK, weight_decay=1e-3, steps=700),
    Adam(NETWORK, weight_decay=1e-2, steps=300),
    GradientDescent(NETWORK, weight_decay=LAM),
]
names = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)


@names
@pytest.mark.parametrize("kind", ["seeds", "resamples", "targets"])
def test_fits_of_a_batch_are_the_fits_done_alone(recipe, kind):
    X, y = problem()
    rng = np.random.default_rng(1)
    counts = rng.multinomial(len(y), np.full(len(y), 1 / len(y)), size=3) if kind == "resamples" else None
    redrawn = y + 0.1 * rng.standard_normal((3, len(y))) if kind == "targets" else None
    together = fit_many(recipe, X, y, seeds=[4, 0, 7], sample_weights=counts, targets=redrawn)
    for k, seed in enumerate([4, 0, 7]):
        target, weight = (y if redrawn is None else redrawn[k]), (None if counts is None else counts[k])
        alone = recipe(X, target, seed=seed, sample_weight=weight)
        same(together[k].params, alone.params, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(together[k].problem.targets[:, 0], target)
        np.testing.assert_array_equal(together[k].problem.weights, np.ones(len(y)) if weight is None else weight)


def test_fits_side_by_side_are_the_fits_done_alone(monkeypatch):
    """How an accelerator runs the batch; rounding differs, so few steps."""
    X, y = problem(outputs=3)
    recipe = AdamW(Network((2, 6, 3)), weight_decay=1e-3, steps=50)
    counts = np.random.default_rng(0).multinomial(len(y), np.full(len(y), 1 / len(y)), size=2)
    alone = recipe.train(X, y, seeds=[1, 2], sample_weights=counts)
    monkeypatch.setattr(training, "vectorise_fits", lambda: True)
    beside = recipe.train(X, y, seeds=[1, 2], sample_weights=counts)
    for a, b in zip(alone, beside, strict=True):
        same(a.params, b.params, rtol=1e-4, atol=1e-5)


def test_fits_that_end_early_wait_unchanged():
    X, y = problem()
    recipe = GradientDescent(NETWORK, weight_decay=LAM)
    ends = recipe.train(X, y, seeds=range(4))
    lengths = [end.trace.steps[-1] for end in ends]
    assert len(set(lengths)) > 1
    shortest = int(np.argmin(lengths))
    alone = recipe.train(X, y, seeds=[shortest])[0]
    same(ends[shortest].params, alone.params, rtol=1e-12)
    np.testing.assert_allclose(ends[shortest].trace.objective, alone.trace.objective, rtol=1e-12)


@pytest.mark.parametrize("many", [10**9, 1], ids=["all rows", "rows in use"])
def test_counts_are_the_rows_repeated(monkeypatch, many):
    monkeypatch.setattr(training, "_MANY_ROWS", many)
    X, y = problem()
    counts = np.random.default_rng(3).multinomial(len(y), np.full(len(y), 1 / len(y)))
    recipe = AdamW(NETWORK, weight_decay=1e-2, steps=40, dtype="float64")
    weighted = recipe.train(X, y, seeds=[0], sample_weights=[counts])[0].params
    repeated = recipe.train(np.repeat(X, counts, axis=0), np.repeat(y, counts), seeds=[0])[0].params
    same(weighted, repeated, rtol=1e-9, atol=1e-11)


def test_fits_on_the_rows_in_use_are_touched_by_no_neighbour(monkeypatch):
    """Fits that use different numbers of rows go their own ways, each as if it were alone."""
    monkeypatch.setattr(training, "_MANY_ROWS", 1)
    X, y = problem()
    few, every = np.zeros(len(y)), np.ones(len(y))
    few[::5] = 2.0
    counts = np.random.default_rng(0).multinomial(len(y), np.full(len(y), 1 / len(y)), size=3)
    weights = [counts[0], few, every, *counts[1:]]
    recipe = AdamW(NETWORK, weight_decay=1e-3, steps=300)
    together = recipe.train(X, y, seeds=range(5), sample_weights=weights)
    for k, weight in enumerate(weights):
        alone = recipe.train(X, y, seeds=[k], sample_weights=[weight])[0]
        same(together[k].params, alone.params, rtol=0, atol=0)
    assert {len(end.trace.steps) for end in together} == {1}


def test_diverged_fits_are_named():
    X, y = problem()
    with pytest.raises(ModelError, match=r"in fits 0, 1\. Lower learning_rate"):
        AdamW(NETWORK, weight_decay=1e6, steps=200, learning_rate=1e3).many(X, y, seeds=[0, 1])
    assert not jax.config.jax_enable_x64


# -- a training loop of the user's own ----------------------------------------------------------


def torch_recipe(X, y, *, seed, sample_weight=None):
    import torch

    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
    X, y = torch.as_tensor(X), torch.as_tensor(y)[:, None]
    weights = torch.ones(len(y)) if sample_weight is None else torch.as_tensor(sample_weight)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02, weight_decay=1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        (weights[:, None] * (module(X) - y) ** 2).mean().div(2).backward()
        optimizer.step()
    return vhat.from_torch(module, X, y, weight_decay=1e-2, sample_weight=sample_weight)


def test_a_torch_loop_is_a_recipe():
    X, y = problem()
    counts = np.random.default_rng(3).multinomial(len(y), np.full(len(y), 1 / len(y)), size=2)
    fits = fit_many(torch_recipe, X, y, seeds=[0, 0], sample_weights=counts)
    assert all(isinstance(fitted, vhat.FittedModel) for fitted in fits)
    repeated = torch_recipe(np.repeat(X, counts[1], axis=0), np.repeat(y, counts[1]), seed=0)
    np.testing.assert_allclose(fits[1].predict(X), repeated.predict(X), rtol=1e-6, atol=1e-8)
    assert fits[0].audit()["alignment"].value == pytest.approx(
        1.0, abs=0.05
    )  # the loop's objective is the one declared


def test_a_plain_callable_is_called_once_a_fit_with_its_own_data():
    X, y = problem()
    calls = []

    def recipe(X, y, *, seed, sample_weight=None):
        calls.append((seed, y, sample_weight))
        return vhat.from_jax(lambda q, X: X @ q, np.ones(2), X, y, weight_decay=0.1, sample_weight=sample_weight)

    redrawn, counts = np.stack([y, 2 * y]), np.stack([np.ones(len(y)), np.arange(len(y))])
    fits = fit_many(recipe, X, y, seeds=(5, 6), sample_weights=counts, targets=redrawn)
    assert [seed for seed, _, _ in calls] == [5, 6]
    for fitted, target, weight, (_, got, weighed) in zip(fits, redrawn, counts, calls, strict=True):
        np.testing.assert_array_equal(got, target)
        np.testing.assert_array_equal(weighed, weight)
        np.testing.assert_array_equal(fitted.problem.targets[:, 0], target)


def test_a_recipe_that_returns_no_fitted_model_is_told_how_to_end():
    X, y = problem()
    with pytest.raises(InputError, match=r"returned dict; it must end in a fitted model"):
        fit_many(lambda X, y, *, seed, sample_weight=None: {}, X, y, seeds=[0])


# -- bad input ------------------------------------------------------------------------------------

X, Y = problem(n=5)
BAD = np.where(np.arange(5) == 2, np.nan, Y)


@names
@pytest.mark.parametrize(
    ("X", "y", "sentence"),
    [
        (X[:1], Y[:1], "X has one row.*at least two"),
        (X[:0], Y[:0], "X has no rows"),
        (X, BAD, "y has NaN or infinite values in row 2"),
        (np.where(np.arange(5)[:, None] == 3, np.inf, X), Y, "X has NaN or infinite values in row 3"),
        (1e9 * X, Y, r"X in column 0 holds values up to .*e\+0?9.*Standardise it"),
        (X, 1e9 * Y, r"y holds values up to .*e\+0?[89].*Standardise it"),
        (X + np.array([0.0, 1e6 - 10]), Y, r"X in column 1 varies by no more than .* around 1.0e\+06.*float32"),
        (X, np.array(["a"] * 5), "y has dtype"),
        (np.array([["a", "b"]] * 5), Y, "X has dtype"),
        (X, Y[:4], "X has 5 rows and y has 4"),
    ],
)
def test_nothing_trains_on_bad_data(recipe, X, y, sentence):
    with pytest.raises(InputError, match=sentence):
        recipe(X, y, seed=0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": []}, r"seeds=\[\] is not a list of seeds"),
        ({"seeds": 3}, "seeds=3 is not a list of seeds"),
        ({"seeds": [0, -1]}, "seeds=-1"),
        ({"seeds": [0.5]}, "seeds=0.5"),
        ({"seeds": [0], "sample_weights": np.ones(5)}, r"sample_weights has shape \(5,\).*1 seeds.*\(1, rows\)"),
        ({"seeds": [0, 1], "sample_weights": np.ones((3, 5))}, r"sample_weights has shape \(3, 5\); there are 2 seeds"),
        ({"seeds": [0, 1], "sample_weights": [np.ones(5), np.ones(4)]}, "sample_weights cannot be read as one array"),
        ({"seeds": [0, 1], "targets": np.ones((3, 5))}, r"targets has shape \(3, 5\)"),
        ({"seeds": [0, 1], "targets": np.stack([Y, BAD])}, "fit 1: y has NaN or infinite values in row 2"),
        ({"seeds": [0, 1], "sample_weights": np.stack([Y * 0, Y**2])}, "fit 0: sample_weight is zero in every row"),
        ({"seeds": [0, 1], "sample_weights": np.ones((2, 4))}, r"fit 0: sample_weight has shape \(4,\)"),
        ({"seeds": [0], "targets": 1e9 * Y[None]}, "y holds values up to"),
    ],
)
def test_a_batch_of_other_shapes_is_refused_in_a_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence):
        RECIPES[0].many(X, Y, **options)


def test_a_constant_column_and_duplicate_rows_train():
    rows = np.repeat(np.column_stack([X[:, 0], np.full(5, 2.0)]), 2, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = RECIPES[1](rows, np.repeat(Y, 2), seed=0)
    assert np.isfinite(fitted.predict(rows)).all()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GradientDescent(NETWORK, weight_decay=-1.0), "weight_decay=-1.0"),
        (lambda: GradientDescent(NETWORK, weight_decay="small"), "weight_decay='small'"),
        (lambda: GradientDescent(NETWORK, weight_decay=LAM, tol=2.0), "tol=2.0"),
        (lambda: GradientDescent(NETWORK, weight_decay=LAM, steps=0), "steps=0"),
        (lambda: Adam(NETWORK, weight_decay=LAM, learning_rate=float("nan")), "learning_rate=nan"),
        (lambda: Adam("mlp", weight_decay=LAM), "network='mlp'"),
        (lambda: NETWORK.init(-1), "seed=-1"),
    ],
)
def test_impossible_options_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
