"""The base class of methods: options with a ``fit``.

A method implements ``_fit(data)`` and inherits ``fit``. ``data`` checks recipe, rows, responses and seed when the
method uses them, so that no method repeats these checks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError
from vhat.fit.many_fits import Recipe, fit_many
from vhat.fit.splits import Table, check_table
from vhat.methods.base.method import FittedMethod, check_data, fit_once, responses

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["BaseMethod", "MethodWithoutRecipe", "SplitRows", "Training"]

Fitted = TypeVar("Fitted", bound=FittedMethod)

_FEWEST_ROWS = 5
"""Least number of rows in each part of a split: fewer determine neither features nor a noise level."""


class SplitRows(NamedTuple):
    """Two parts of the training rows.

    Attributes:
        first: The rows to train a model on.
        rest: The rows held out from that training.
        numbers: Row numbers of ``rest`` in the data, ascending.
    """

    first: Table
    rest: Table
    numbers: np.ndarray


class Training(NamedTuple):
    """The arguments of ``fit``; every function of this class checks the arguments that it uses.

    Attributes:
        recipe: The recipe, not yet checked.
        X: Rows.
        y: Responses.
        seed: The seed.
    """

    recipe: Recipe
    X: Any
    y: Any
    seed: int

    def fit_once(self) -> FittedModel:
        """Train once on all rows.

        Raises:
            InputError: When the recipe or the data cannot be used.
        """
        return fit_once(self.recipe, self.X, self.y, self.seed)

    def fit_many(self, seeds: list[int], *, sample_weights: Any = None, targets: Any = None) -> tuple[FittedModel, ...]:
        """Train one model per seed.

        Args:
            seeds: The seeds.
            sample_weights: Row weights of each fit, (fits, n); None for equal weights.
            targets: Responses of each fit, (fits, n) or (fits, n, outputs); None for those of the data.
        """
        check_count("seed", self.seed)
        check_data(self.X, self.y)
        fits = fit_many(self.recipe, self.X, self.y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        return tuple(fits)

    def responses(self) -> np.ndarray:
        """Return the responses as finite numbers, (n,) or (n, outputs)."""
        return responses(self.y)

    def table(self) -> Table:
        """Return rows and responses as arrays of finite numbers."""
        return check_table(self.X, self.y)

    def random(self, stream: int) -> np.random.Generator:
        """Return a random generator determined by the seed and the number of a stream.

        Streams keep draws for different purposes independent under one seed.
        """
        return np.random.default_rng([self.seed, stream])

    def seeds(self, count: int) -> list[int]:
        """Return ``count`` seeds: the seed itself, and others derived from it."""
        check_count("seed", self.seed)
        others = np.random.SeedSequence(self.seed).generate_state(max(count - 1, 0))
        return [self.seed, *(int(each) for each in others)]

    def refit_seeds(self, count: int, *, new: bool) -> list[int]:
        """Return the seeds of ``count`` refits.

        Args:
            count: Number of refits.
            new: Whether every refit gets a new seed; otherwise all have the seed of the fit to the data.
        """
        if new:
            return self.seeds(count + 1)[1:]
        return [self.seed] * count

    def split(self, share: float, *, stream: int, method: str, parts: str) -> SplitRows:
        """Split the rows at random into those to train a model on and those to hold out.

        Args:
            share: The share of rows to train on.
            stream: Number of the stream of random numbers.
            method: The method's name, for the message.
            parts: The name of the parts, for the message.

        Raises:
            InputError: When a part has fewer than five rows.
        """
        check_count("seed", self.seed)
        table = self.table()
        first = round(share * len(table))
        rest = len(table) - first
        if min(first, rest) < _FEWEST_ROWS:
            raise InputError(
                f"{method} leaves {first} and {rest} of {len(table)} rows to its two {parts}; each needs at least "
                f"{_FEWEST_ROWS}."
            )
        order = self.random(stream).permutation(len(table))
        # Sorted, so that the order of the rows in each part does not depend on the draw.
        trained = np.sort(order[:first])
        held_out = np.sort(order[first:])
        return SplitRows(table.rows(trained), table.rows(held_out), held_out)


class BaseMethod(ABC, Generic[Fitted]):
    """Options of a method. Implement :meth:`_fit`, inherit :meth:`fit`.

    Subclasses are frozen dataclasses whose fields are the options. ``_fit`` returns the fitted method, an instance of a
    subclass of :class:`vhat.methods.base.BaseFitted`.
    """

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> Fitted:
        """Train all models that the method needs.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``: one of :mod:`vhat.fit`, or a training loop
                of your own.
            X: Rows.
            y: Responses, (n,) or (n, outputs).
            seed: Seed of the training and of all random draws.

        Returns:
            The fitted method, with ``interval(x, delta, target=...)``.

        Raises:
            InputError: When the method cannot use the recipe, the data or the model that the recipe returns.
            NoiseError: When the noise must be estimated for the fit and the model interpolates.
            MissingPackage: When the method needs a package that is not installed.
        """
        return self._fit(Training(recipe, X, y, seed))

    @abstractmethod
    def _fit(self, data: Training) -> Fitted:
        """Train, and return the fitted method."""


class MethodWithoutRecipe(BaseMethod[Fitted]):
    """A method that fits a model of its own in place of the network. Implement ``_fit``, inherit ``fit``."""

    def fit(self, recipe: Recipe | None, X: Any, y: Any, *, seed: int = 0) -> Fitted:
        """Fit the method's own model.

        Args:
            recipe: Not used: there is no network.
            X: Rows, (n, columns).
            y: Responses, (n,) or (n, outputs).
            seed: Seed of all random draws.

        Returns:
            The fitted method, with ``interval(x, delta, target=...)``.

        Raises:
            InputError: When the data cannot be used by this method.
            MissingPackage: When the method needs a package that is not installed.
        """
        return self._fit(Training(cast(Recipe, recipe), X, y, seed))
