"""Fits of one training set along a grid of weight decays, with warm starts if the recipe supports them."""

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

__all__ = ["DecayPath", "Family", "Path", "check_grid", "collect_warnings", "default_grid", "family", "gradient_of"]

Family = Callable[[float], Recipe]
"""A function from lam to the recipe with this decay."""

_DECADES = (-6.0, -1.0)
"""Decimal logarithms of the ends of the default grid, in units of the trace of the Gauss-Newton matrix at the first
parameters: from hardly any decay to a nearly constant prediction."""
_LAMS_PER_DECADE = 2
"""Density of the default grid."""
_LARGEST_SCALE = 100.0
"""Root mean squares of y between one over this and this number count as order one."""


class DecayPath(Protocol):
    """The fits of one training set along a grid of weight decays."""

    def fit(self, lam: float) -> FittedModel:
        """Return the fit at ``lam``."""


@dataclass
class Path:
    """The fits of one training set along the grid, each from the parameters of the last if possible.

    Attributes:
        family: The recipe at each lam.
        train: The rows.
        share: Divisor of lam: see :class:`vhat.fit.splits.Part`.
        seed: Seed of the first parameters of a fit without a warm start.
        params: Parameters of the last fit; None before the first.
    """

    family: Family
    train: Table
    share: float
    seed: int
    params: Any = None

    def fit(self, lam: float) -> FittedModel:
        """Return the fit at ``lam``.

        If the recipe has ``resume``, the fit starts from the parameters of the last. If that fails, or the recipe has
        no ``resume``, the fit starts from the recipe's own first parameters.

        Raises:
            VhatError: When the recipe raises it.
        """
        recipe = self.family(lam / self.share)
        table = self.train
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
    """Return a recipe after checking that it can be called.

    Raises:
        InputError: When it cannot.
    """
    if not callable(recipe):
        raise InputError(
            f"recipe(lam) returned {type(recipe).__name__}; it must return a recipe, that is a callable "
            "recipe(X, y, *, seed, sample_weight=None) that returns a fitted model."
        )
    checked: Recipe = recipe
    return checked


def check_grid(grid: Any, name: str = "grid") -> np.ndarray:
    """Return a grid in ascending order, without repetitions.

    Raises:
        InputError: When it is not a list of at least two different finite numbers above 0.
    """
    values = as_numbers(name, grid)
    positive = np.all(np.isfinite(values) & (values > 0))
    if values.ndim != 1 or not positive or len(np.unique(values)) < 2:
        raise InputError(
            f"{name}={grid!r} is not a list of two or more different numbers above 0, such as "
            "numpy.logspace(-6, -1, 11)."
        )
    return np.unique(values)


def default_grid(recipe: Any, table: Table, seed: int) -> np.ndarray:
    """Return eleven lams, two per decade, from 1e-6 to 0.1 of the trace of ``J'J/n`` at the first parameters.

    The trace is an upper bound on the largest curvature of the loss there. It does not depend on y. For a linear model
    it does not depend on the parameters either.

    Raises:
        InputError: When the recipe does not train a :class:`vhat.fit.Network`, or the network has hidden layers and the
            responses are not of order one: the meaning of its lam depends on their unit.
    """
    if not isinstance(recipe, NetworkRecipe):
        raise InputError("grid=None is for recipes of vhat.fit, whose network is known. Give grid=, a list of lams.")
    size = float(np.sqrt(np.mean(table.y**2)))
    has_hidden_layer = len(recipe.network.widths) > 2
    if has_hidden_layer and size > 0 and not 1 / _LARGEST_SCALE < size < _LARGEST_SCALE:
        raise InputError(
            f"y has root mean square {size:.1e}. A network's weights start at order one, and what a weight_decay means "
            "to them depends on the unit of y: standardise y (vhat.NetworkRegressor does), or give grid=."
        )
    problem = _first_problem(recipe.network, table, seed)
    with problem.scope():
        trace = float(np.sum(problem.numpy(problem.diagonal())))
    low, high = _DECADES
    return trace * np.logspace(low, high, 1 + math.ceil(_LAMS_PER_DECADE * (high - low)))


def _first_problem(network: Network, table: Table, seed: int) -> Problem:
    """Return the problem at the first parameters of a network."""
    from vhat.models.dense_network import is_small, network_problem

    params = network.init(seed)
    if is_small(network, len(table)):
        return network_problem(network, params, table.X, table.y, weight_decay=1.0, sample_weight=table.weight)
    from vhat.models.jax import jax_problem

    return jax_problem(network, params, table.X, table.y, weight_decay=1.0, sample_weight=table.weight)


def gradient_of(fitted: FittedModel) -> float:
    """Return the relative gradient of the penalised objective at the fit, without unit."""
    if fitted.polished is not None:
        return fitted.polished.relative_gradient
    with fitted.problem.scope():
        return relative_gradient(evaluate(fitted.problem), units(fitted.problem))


@contextmanager
def collect_warnings() -> Iterator[list[VhatWarning]]:
    """Collect the warnings of this library, the last of each type; emit all other warnings again at the end."""
    collected: list[VhatWarning] = []
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", VhatWarning)
        try:
            yield collected
        finally:
            by_type = {type(each.message): each.message for each in recorded if isinstance(each.message, VhatWarning)}
            collected.extend(by_type.values())
    for each in recorded:
        if not isinstance(each.message, VhatWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
