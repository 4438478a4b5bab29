"""Intervals by other methods than the library's own, with one interface.

Each method is a frozen dataclass of options. Its ``fit`` trains by a *recipe*: one of :mod:`vhat.fit`, or a training
loop ``recipe(X, y, *, seed, sample_weight=None) -> fitted`` of your own. The fitted method returns the same
:class:`vhat.Interval` as the library, with its own sentence in ``guarantee``:

>>> import numpy as np, vhat
>>> x = np.linspace(-1, 1, 30)[:, None]
>>> y = x[:, 0] + 0.1 * np.cos(40 * x[:, 0])
>>> recipe = vhat.fit.Minimum(vhat.fit.Network((1, 1)), weight_decay=1e-3)
>>> vhat.methods.DeepEnsemble(members=2).fit(recipe, x, y, seed=0).interval([[0.5]], delta=0.05).bound
'deep ensemble'
"""

from __future__ import annotations

from vhat.methods.base.method import FittedMethod, Method
from vhat.methods.base.with_recipe import WithRecipe
from vhat.methods.bayes_by_backprop import BayesByBackprop
from vhat.methods.bootstrap import Bootstrap
from vhat.methods.conformal import Conformal
from vhat.methods.constrained_fit import ConstrainedFit
from vhat.methods.deep_ensemble import DeepEnsemble
from vhat.methods.gaussian_process import GaussianProcess
from vhat.methods.kernel_ridge import KernelRidge
from vhat.methods.last_layer import LastLayer
from vhat.methods.linearized_laplace import LinearizedLaplace
from vhat.methods.mc_dropout import MCDropout
from vhat.methods.neural_tangent import NeuralTangent
from vhat.methods.perturbed_responses import PerturbedResponses
from vhat.methods.proposed import Proposed
from vhat.methods.randomized_prior import RandomizedPrior
from vhat.methods.sgld import SGLD
from vhat.methods.trees import GradientBoosting, RandomForest
from vhat.methods.unrolled_descent import UnrolledDescent
from vhat.methods.wald import Wald

__all__ = [
    "SGLD",
    "BayesByBackprop",
    "Bootstrap",
    "Conformal",
    "ConstrainedFit",
    "DeepEnsemble",
    "FittedMethod",
    "GaussianProcess",
    "GradientBoosting",
    "KernelRidge",
    "LastLayer",
    "LinearizedLaplace",
    "MCDropout",
    "Method",
    "NeuralTangent",
    "PerturbedResponses",
    "Proposed",
    "RandomForest",
    "RandomizedPrior",
    "UnrolledDescent",
    "Wald",
    "WithRecipe",
]
