"""Every method either answers or says in a sentence what it cannot give: no bare exception of another library."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import vhat
from tests.methods_cases import data, ridge_solution
from tests.methods_table import LAM, METHODS, POINTS, RIDGE
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
    if name == "Conformal":
        assert "only for 'observation'" in mean
    else:
        assert mean.target == "mean"
        assert np.all(mean.half_width < observation.half_width)


@every
def test_two_outputs_are_answered_or_refused(name):
    X, y = data(outputs=2)
    (band,) = ask(name, X, y, targets=("observation",))
    if isinstance(band, str):
        assert name in {"Conformal", "LastLayer", "NeuralTangent", "RandomizedPrior"}
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
    if name in {"GaussianProcess", "KernelRidge", "WithRecipe"}:
        assert np.all(np.isfinite(found.lower))
    else:
        assert isinstance(found, str)
        assert "recipe" in found
