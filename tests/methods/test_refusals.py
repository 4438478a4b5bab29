"""Every method either answers or says in a sentence what it cannot give: no bare exception of another library."""

from __future__ import annotations

import inspect
import re
import warnings

import numpy as np
import pytest

import vhat
from tests.methods.cases import data, ridge, ridge_solution, torch_recipe
from tests.methods.table import CONFORMAL, LAM, METHODS, POINTS, RIDGE
from vhat import methods
from vhat.fit import Network

every = pytest.mark.parametrize("name", METHODS)


def ask(name, X, y, *, targets=("mean",), recipe=()):
    """Return an answer a target: the interval, or the sentence in which it was refused. Nothing else may be raised."""
    method, make = METHODS[name]
    outputs = 1 if np.ndim(y) == 1 else np.shape(y)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", vhat.VhatWarning)
        try:
            fit = method.fit(make(outputs) if recipe == () else recipe, X, y, seed=0)
        except vhat.VhatError as error:
            return [_sentence(error) for _ in targets]
        return [_answer(fit, target) for target in targets]


def _answer(fit, target):
    try:
        return fit.interval(POINTS, 0.2, target=target)
    except vhat.VhatError as error:
        return _sentence(error)


def _sentence(error):
    said = str(error)
    assert said.rstrip().endswith(".")
    assert len(said.split()) >= 5
    return said


def test_no_method_is_left_out():
    """Whoever adds a method to the package adds it here."""
    concrete = {name for name in methods.__all__ if not getattr(getattr(methods, name), "_is_protocol", False)}
    assert set(METHODS) == concrete
    assert all(inspect.isclass(getattr(methods, name)) for name in METHODS)


@every
def test_each_target_is_answered_or_refused(name):
    X, y = data()
    mean, observation, unknown = ask(name, X, y, targets=("mean", "observation", "median"))
    assert "target='median' is not known" in unknown
    assert observation.target == "observation"
    assert np.all((observation.lower < observation.center) & (observation.center < observation.upper))
    if name in CONFORMAL:
        assert "only for 'observation'" in mean
    else:
        assert mean.target == "mean"
        assert np.all(mean.half_width < observation.half_width)


@every
def test_two_outputs_are_answered_or_refused(name):
    X, y = data(outputs=2)
    (band,) = ask(name, X, y, targets=("observation",))
    if isinstance(band, str):
        assert name in CONFORMAL | {"LastLayer", "NeuralTangent", "RandomizedPrior"}
        assert ("one output" in band) or ("(30, 2)" in band)
    else:
        assert band.center.shape == band.lower.shape == band.upper.shape == (3, 2)
        assert np.all((band.lower < band.center) & (band.center < band.upper))
        if name in RIDGE:
            np.testing.assert_allclose(band.center, POINTS @ ridge_solution(X, y, LAM), rtol=1e-6)


@every
def test_two_rows_are_answered_or_refused(name):
    X, y = data(2)
    for band in ask(name, X, y, targets=("mean", "observation")):
        if isinstance(band, str):
            continue
        good = band.status == "converged"
        assert np.all(np.isnan(band.lower) == ~good)
        assert np.all(band.lower[good] <= band.upper[good])


@every
def test_missing_responses_are_refused_with_their_rows(name):
    X, y = data()
    for bad in (np.nan, np.inf):
        (sentence,) = ask(name, X, np.where(np.arange(30) == 4, bad, y))
        assert isinstance(sentence, str)
        assert "y has NaN or infinite values in row 4" in sentence


@every
def test_more_responses_than_rows_are_refused(name):
    X, y = data()
    (sentence,) = ask(name, X[:-1], y)
    assert isinstance(sentence, str)
    assert "29" in sentence
    assert "30" in sentence


@every
@pytest.mark.parametrize(
    "recipe",
    [None, "adam", Network, Network((2, 4, 1)), lambda X, y: None, lambda X, y, *, seed, sample_weight=None: (X, y)],
    ids=["None", "name", "class", "network", "no seed", "no fitted model"],
)
def test_what_is_no_recipe_is_refused_by_all_that_need_one(name, recipe):
    X, y = data()
    (found,) = ask(name, X, y, recipe=recipe)
    if name in {"GaussianProcess", "GradientBoosting", "KernelRidge", "RandomForest", "WithRecipe"}:
        assert np.all(np.isfinite(found.lower))
    else:
        assert isinstance(found, str)
        assert "recipe" in found


def shuffles(X, y, *, seed, sample_weight=None):
    rows = np.random.default_rng(seed).permutation(len(y))
    return ridge(LAM)(X[rows], y[rows], seed=seed)


def keeps_some_back(X, y, *, seed, sample_weight=None):
    return ridge(LAM)(X[:20], y[:20], seed=seed)


def standardises(X, y, *, seed, sample_weight=None):
    return ridge(LAM)(X, (y - y.mean()) / y.std(), seed=seed)


def takes_roots(X, y, *, seed, sample_weight=None):
    return ridge(LAM)(X, np.sign(y) * np.sqrt(np.abs(y)), seed=seed)


def scales_in_place(X, y, *, seed, sample_weight=None):
    X *= 2.0
    return ridge(LAM)(X, y, seed=seed)


def centres_in_place(X, y, *, seed, sample_weight=None):
    y -= y.mean()
    return ridge(LAM)(X, y, seed=seed)


@pytest.mark.parametrize("name", [*sorted(RIDGE), "RandomizedPrior"])
@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (shuffles, "in another order than they came in"),
        (keeps_some_back, "handed 30 rows and its model holds 20"),
        (standardises, "y in other units"),
        (takes_roots, "other responses than came"),
        (scales_in_place, "changed X in place"),
        (centres_in_place, "changed y in place"),
    ],
)
def test_a_recipe_whose_model_holds_other_rows_than_it_was_handed_is_refused_by_all(name, recipe, words):
    X, y = data()
    (found,) = ask(name, X, y, recipe=recipe)
    assert isinstance(found, str)
    assert words in found


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_other_units_are_named_and_float32_is_not_taken_for_them(unit):
    X, y = data(outputs=2)
    y = unit * y

    def single(X, y, *, seed, sample_weight=None):
        return ridge(LAM)(X, y.astype(np.float32), seed=seed)

    def scaled(X, y, *, seed, sample_weight=None):
        return ridge(LAM)(X, np.c_[y[:, 0], 0.5 * y[:, 1] - 3 * unit], seed=seed)

    assert np.all(np.isfinite(methods.Wald().fit(single, X, y).interval(POINTS).lower))
    with pytest.raises(vhat.InputError, match=re.escape(f"other units, 0.5 y - {3 * unit:.3g} ")):
        methods.Wald().fit(scaled, X, y)


def test_a_y_that_float32_cannot_tell_apart_is_not_what_came():
    X, y = data()
    with pytest.raises(vhat.InputError, match="rounded inside"):
        methods.Wald().fit(
            lambda X, y, *, seed, sample_weight=None: ridge(LAM)(X, y.astype("f4"), seed=seed), X, y + 1e8
        )
    with pytest.raises(vhat.InputError, match="another order"):
        methods.Wald().fit(shuffles, X, y + 1e8)


def test_models_of_torch_and_of_the_estimator_hold_what_came():
    x = np.linspace(-1, 1, 20)[:, None]
    y = 50 + 3 * np.sin(2 * x[:, 0])
    network = vhat.NetworkRegressor((), weight_decay=1e-2)
    recipes = [lambda X, y, *, seed, sample_weight=None: network.fit(X, y, sample_weight).fitted_, torch_recipe]
    for recipe in recipes:
        fits = vhat.fit.fit_many(recipe, x, y, seeds=[0], sample_weights=[np.arange(20) % 3])
        held = fits[0].problem.targets[:, 0]
        np.testing.assert_allclose(held, y[np.arange(20) % 3 > 0] if len(held) < 20 else y)


def test_an_estimator_in_place_of_a_recipe_or_of_its_model_is_told_what_to_write():
    from sklearn.base import clone

    X, y = data()
    network = vhat.NetworkRegressor((), weight_decay=1e-2)
    for given in (network, vhat.NetworkRegressor):
        with pytest.raises(vhat.InputError, match="the recipe is an estimator") as error:
            methods.Wald().fit(given, X, y)
    with pytest.raises(vhat.InputError, match=r"returned NetworkRegressor.*fitted_"):
        methods.Wald().fit(lambda X, y, *, seed, sample_weight=None: clone(network).fit(X, y), X, y)
    # what the sentence says to write is a recipe
    said = str(error.value)
    advised = said[said.index("lambda") : said.index(", where network")].replace("sklearn.base.clone", "clone")
    band = methods.Wald().fit(eval(advised, {"clone": clone, "network": network}), X, y).interval(POINTS)
    expected = clone(network).fit(X, y).predict(POINTS)
    np.testing.assert_allclose(band.center, expected)
