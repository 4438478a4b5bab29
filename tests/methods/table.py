"""Every method of vhat.methods in a small, quick form, with a recipe that it can use: for tests over all of them."""

from __future__ import annotations

import numpy as np

import vhat
from tests.methods.cases import ridge, ridge_solution
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
    "GradientBoosting": (methods.GradientBoosting(), lambda _: None),
    "KernelRidge": (methods.KernelRidge(), lambda _: None),
    "LastLayer": (methods.LastLayer(leaves=1), lambda _: ridge(LAM)),
    "LinearizedLaplace": (methods.LinearizedLaplace(), lambda _: ridge(LAM)),
    "MCDropout": (methods.MCDropout(draws=5), dropout),
    "NeuralTangent": (methods.NeuralTangent(), lambda _: ridge(LAM)),
    "PerturbedResponses": (methods.PerturbedResponses(members=3), lambda _: ridge(LAM)),
    "Proposed": (methods.Proposed(), lambda _: ridge(LAM)),
    "RandomForest": (methods.RandomForest(), lambda _: None),
    "RandomizedPrior": (methods.RandomizedPrior(members=3, prior=prior), lambda _: ridge(LAM)),
    "UnrolledDescent": (methods.UnrolledDescent(), descent),
    "Wald": (methods.Wald(), lambda _: ridge(LAM)),
    "WithRecipe": (methods.WithRecipe(methods.Wald(), ridge(LAM)), lambda _: None),
}
RIDGE = {"Bootstrap", "ConstrainedFit", "DeepEnsemble", "LinearizedLaplace", "PerturbedResponses", "Proposed", "Wald"}
"""Whose centre is the prediction of the fit to the data, here of ridge regression."""
CONFORMAL = {"Conformal", "GradientBoosting", "RandomForest"}
"""Which answer for a new response alone."""
