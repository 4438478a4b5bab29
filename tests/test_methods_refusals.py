"""Every method either answers or says in a sentence what it cannot give: no bare exception of another library."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import vhat
from tests.methods_cases import data, ridge, ridge_solution
from vhat import methods
from vhat.fit import Adam, GradientDescent, Network

LAM = 0.1
POINTS = np.array([[0.3, -0.2], [1.0, 0.5], [-2.0, 1.0]])


def prior(x, seed):
    slope = np.random.default_rng(seed).normal(size=2)
    return np.asarray(x) @ slope


def linear(q, Z):
    """At module level, so that all fits share their compilations."""
    return Z @ q


def jax_ridge(_):
    def recipe(X, y, *, seed, sample_weight=None):
        return vhat.from_jax(linear, ridge_solution(X, y, LAM), X, y, weight_decay=LAM)

    return recipe


def dropout(outputs):
    return Adam(Network((2, 4, outputs)), weight_decay=LAM, steps=50)


def descent(outputs):
    return GradientDescent(Network((2, outputs)), weight_decay=LAM)


METHODS = {
    "SGLD": (methods.SGLD(draws=20, thin=2, burn_in=20), jax_ridge),
    "BayesByBackprop": (methods.BayesByBackprop(steps=20, draws=10), jax_ridge),
    "Bootstrap": (methods.Bootstrap(resamples=5), lambda _: ridge(LAM)),
    "Conformal": (methods.Conformal(), lambda _: ridge(LAM)),
    "ConstrainedFit": (methods.ConstrainedFit(), lambda _: ridge(LAM)),
    "DeepEnsemble": (methods.DeepEnsemble(members=2), lambda _: ridge(LAM)),
    "GaussianProcess": (methods.GaussianProcess(), lambda _: None),
    "KernelRidge": (methods.KernelRidge(), lambda _: None),
    "LastLayer": (methods.LastLayer(leaves=1), lambda _: ridge(LAM)),
    "LinearizedLaplace": (methods.LinearizedLaplace(), lambda _: ridge(LAM)),
    "MCDropout": (methods.MCDropout(draws=5), dropout),
    "NeuralTangent": (methods.NeuralTangent(), lambda _: ridge(LAM)),
    "PerturbedResponses": (methods.PerturbedResponses(members=3), lambda _: ridge(LAM)),
    "Proposed": (methods.Proposed(), lambda _: ridge(LAM)),
    "RandomizedPrior": (methods.RandomizedPrior(members=3, prior=prior), lambda _: ridge(LAM)),
    "UnrolledDescent": (methods.UnrolledDescent(), descent),
    "Wald": (methods.Wald(), lambda _: ridge(LAM)),
    "WithRecipe": (methods.WithRecipe(methods.Wald(), ridge(LAM)), lambda _: None),
}
RIDGE = {"Bootstrap", "ConstrainedFit", "DeepEnsemble", "LinearizedLaplace", "PerturbedResponses", "Proposed", "Wald"}
"""Whose centre is the prediction of the fit to the data, here of ridge regression."""
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
