"""Fits of one training set along a grid of weight decays, each from the last one's minimum where the recipe can."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vhat.checks import as_numbers
from vhat.errors import InputError, VhatError, VhatWarning
from vhat.evidence.minimise.stationarity import evaluate, relative_gradient, units
from vhat.fit.many_fits import Recipe, check_fitted
from vhat.fit.recipe import NetworkRecipe
from vhat.fit.splits import Table

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.networks import Network
    from vhat.models.problem import Problem

__all__ = ["DecayPath", "Family", "Path", "check_grid", "default_grid", "family", "gradient_of", "heard"]

Family = Callable[[float], Recipe]
"""From lam to the recipe that trains under it."""

_DECADES = (-6.0, -1.0)
"""The default grid, beside the trace of the Gauss-Newton matrix at the start: from hardly any decay to a constant."""
_ORDER_ONE = 100.0


class DecayPath(Protocol):
    """One training set on its way along a grid of weight decays."""

    def fit(self, lam: float) -> FittedModel:
        """Fit at ``lam``."""


@dataclass
class Path:
    """One training set on its way along the grid.

    Attributes:
        family: The recipe at each lam.
        train: The rows.
        share: What lam is divided by: see :class:`vhat.fit.splits.Part`.
        seed: Draws the first parameters of a fit that does not start from the last one.
        params: Where the last fit ended; None before the first.
    """

    family: Family
    train: Table
    share: float
    seed: int
    params: Any = None

    def fit(self, lam: float) -> FittedModel:
        """Fit at ``lam``: from where the last fit ended where the recipe has ``resume``, else as it always starts.

        A fit that fails from there is tried once more from the start.

        Raises:
            VhatError: What the recipe raises.
        """
        recipe, table = self.family(lam / self.share), self.train
        resume = getattr(recipe, "resume", None)
        fitted = None
        if resume is not None and self.params is not None:
            try:
                fitted = check_fitted(resume(self.params, table.X, table.y, sample_weight=table.weight))
            except VhatError:
                fitted = None
        if fitted is None:
            fitted = check_fitted(recipe(table.X, table.y, seed=self.seed, sample_weight=table.weight))
        self.params = fitted.params
        return fitted


def family(recipe: Any) -> Family:
    """Return the recipe as a function of lam.

    Args:
        recipe: A dataclass with a field ``weight_decay``, which is replaced; or a function from lam to a recipe.

    Raises:
        InputError: When it is neither.
    """
    if is_dataclass(recipe) and not isinstance(recipe, type) and hasattr(recipe, "weight_decay"):
        return lambda lam: _callable(replace(recipe, weight_decay=float(lam)))
    try:
        inspect.signature(recipe).bind(1.0)
    except (TypeError, ValueError):
        raise InputError(
            f"recipe={recipe!r} cannot be told which weight_decay to train under. Give a recipe of vhat.fit, or a "
            "function from lam to a recipe, such as lambda lam: functools.partial(my_recipe, weight_decay=lam)."
        ) from None
    return lambda lam: _callable(recipe(float(lam)))


def _callable(recipe: Any) -> Recipe:
    if not callable(recipe):
        raise InputError(
            f"recipe(lam) returned {type(recipe).__name__}; it must return a recipe, that is a callable "
            "recipe(X, y, *, seed, sample_weight=None) that returns a fitted model."
        )
    found: Recipe = recipe
    return found


def check_grid(grid: Any, name: str = "grid") -> np.ndarray:
    """Return a grid in rising order, without repetitions.

    Raises:
        InputError: For anything but two or more positive numbers.
    """
    values = as_numbers(name, grid)
    if values.ndim != 1 or not np.all(np.isfinite(values) & (values > 0)) or len(np.unique(values)) < 2:
        raise InputError(
            f"{name}={grid!r} is not a list of two or more different numbers above 0, such as "
            "numpy.logspace(-6, -1, 11)."
        )
    return np.unique(values)


def default_grid(recipe: Any, table: Table, seed: int) -> np.ndarray:
    """Return eleven lams, two a decade, from 1e-6 to 0.1 of the trace of ``J'J/n`` at the first parameters.

    The trace bounds the largest curvature of the loss there. It does not depend on y, and a linear model's does not
    depend on the parameters either.

    Raises:
        InputError: When the recipe trains no :class:`vhat.fit.Network`, or a network with hidden layers is to learn
            responses that are not of order one: its lam has no meaning apart from their unit.
    """
    if not isinstance(recipe, NetworkRecipe):
        raise InputError("grid=None is for recipes of vhat.fit, whose network is known. Give grid=, a list of lams.")
    size = float(np.sqrt(np.mean(table.y**2)))
    if len(recipe.network.widths) > 2 and size > 0 and not 1 / _ORDER_ONE < size < _ORDER_ONE:
        raise InputError(
            f"y has root mean square {size:.1e}. A network's weights start at order one, and what a weight_decay means "
            "to them depends on the unit of y: standardise y (vhat.NetworkRegressor does), or give grid=."
        )
    problem = _start(recipe.network, table, seed)
    with problem.scope():
        trace = float(np.sum(problem.numpy(problem.diagonal())))
    low, high = _DECADES
    return trace * np.logspace(low, high, 1 + math.ceil(2 * (high - low)))


def _start(network: Network, table: Table, seed: int) -> Problem:
    """Return the problem at the first parameters."""
    from vhat.models.dense_network import is_small, network_problem

    params = network.init(seed)
    if is_small(network, len(table)):
        return network_problem(network, params, table.X, table.y, weight_decay=1.0, sample_weight=table.weight)
    from vhat.models.jax import jax_problem

    return jax_problem(network, params, table.X, table.y, weight_decay=1.0, sample_weight=table.weight)


def gradient_of(fitted: FittedModel) -> float:
    """Return the relative gradient of the penalised objective, without unit."""
    if fitted.polished is not None:
        return fitted.polished.relative_gradient
    with fitted.problem.scope():
        return relative_gradient(evaluate(fitted.problem), units(fitted.problem))


@contextmanager
def heard() -> Iterator[list[VhatWarning]]:
    """Collect what this library warns of, one of a kind; other warnings go on to where they would have gone."""
    said: list[VhatWarning] = []
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", VhatWarning)
        try:
            yield said
        finally:
            ours = {type(each.message): each.message for each in recorded if isinstance(each.message, VhatWarning)}
            said.extend(ours.values())
    for each in recorded:
        if not isinstance(each.message, VhatWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
